#![no_main]
//! The libFuzzer entry of the target `checksum_file` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("checksum_file");
