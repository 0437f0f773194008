#![no_main]
//! libFuzzer entry of the target `split_keys`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("split_keys");
