#![no_main]
//! The libFuzzer entry of the target `token` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("token");
