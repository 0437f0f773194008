#![no_main]
//! libFuzzer entry of the target `shuffle_request`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("shuffle_request");
