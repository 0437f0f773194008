#![no_main]
//! libFuzzer entry of the target `shuffle_answer`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("shuffle_answer");
