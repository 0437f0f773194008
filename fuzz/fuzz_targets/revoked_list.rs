#![no_main]
//! The libFuzzer entry of the target `revoked_list` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("revoked_list");
