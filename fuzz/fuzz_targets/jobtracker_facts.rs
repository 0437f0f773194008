#![no_main]
//! libFuzzer entry of the target `jobtracker_facts`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("jobtracker_facts");
