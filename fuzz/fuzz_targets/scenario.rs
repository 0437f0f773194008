#![no_main]
//! The libFuzzer entry of the target `scenario` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("scenario");
