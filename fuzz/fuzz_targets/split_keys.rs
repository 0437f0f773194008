#![no_main]
//! The libFuzzer entry of the target `split_keys` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("split_keys");
