#![no_main]
//! libFuzzer entry of the target `journal`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("journal");
