#![no_main]
//! libFuzzer entry of the target `revoked_list`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("revoked_list");
