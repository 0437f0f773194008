#![no_main]
//! libFuzzer entry of the target `checkpoint`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("checkpoint");
