#![no_main]
//! The libFuzzer entry of the target `umbilical_from_task` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("umbilical_from_task");
