#![no_main]
//! libFuzzer entry of the target `token`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("token");
