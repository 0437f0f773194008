#![no_main]
//! libFuzzer entry of the target `segment`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("segment");
