#![no_main]
//! The libFuzzer entry of the target `shuffle_request` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("shuffle_request");
