#![no_main]
//! The libFuzzer entry of the target `jobtracker_facts` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("jobtracker_facts");
