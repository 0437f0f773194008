#![no_main]
//! libFuzzer entry of the target `checksum_file`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("checksum_file");
