#![no_main]
//! libFuzzer entry of the target `namenode_snapshot`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("namenode_snapshot");
