#![no_main]
//! libFuzzer entry of the target `umbilical_to_task`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("umbilical_to_task");
