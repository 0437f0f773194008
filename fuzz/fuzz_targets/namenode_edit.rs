#![no_main]
//! libFuzzer entry of the target `namenode_edit`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("namenode_edit");
