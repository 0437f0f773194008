#![no_main]
//! libFuzzer entry of the target `bulk_frame`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("bulk_frame");
