#![no_main]
//! The libFuzzer entry of the target `journal` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("journal");
