#![no_main]
//! The libFuzzer entry of the target `segment` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("segment");
