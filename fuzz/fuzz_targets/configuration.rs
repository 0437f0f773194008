#![no_main]
//! The libFuzzer entry of the target `configuration` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("configuration");
