#![no_main]
//! libFuzzer entry of the target `scenario`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("scenario");
