#![no_main]
//! libFuzzer entry of the target `input_records`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("input_records");
