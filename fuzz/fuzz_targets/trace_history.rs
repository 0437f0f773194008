#![no_main]
//! The libFuzzer entry of the target `trace_history` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("trace_history");
