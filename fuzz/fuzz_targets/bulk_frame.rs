#![no_main]
//! The libFuzzer entry of the target `bulk_frame` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("bulk_frame");
