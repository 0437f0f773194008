#![no_main]
//! libFuzzer entry of the target `trace_history`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("trace_history");
