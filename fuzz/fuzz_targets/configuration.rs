#![no_main]
//! libFuzzer entry of the target `configuration`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("configuration");
