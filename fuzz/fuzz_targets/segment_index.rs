#![no_main]
//! The libFuzzer entry of the target `segment_index` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("segment_index");
