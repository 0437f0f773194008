#![no_main]
//! libFuzzer entry of the target `umbilical_from_task`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("umbilical_from_task");
