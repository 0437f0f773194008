#![no_main]
//! The libFuzzer entry of the target `trace_swim` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("trace_swim");
