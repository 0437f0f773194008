#![no_main]
//! The libFuzzer entry of the target `checkpoint` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("checkpoint");
