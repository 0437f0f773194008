#![no_main]
//! The libFuzzer entry of the target `shuffle_answer` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("shuffle_answer");
