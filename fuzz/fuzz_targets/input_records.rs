#![no_main]
//! The libFuzzer entry of the target `input_records` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("input_records");
