#![no_main]
//! The libFuzzer entry of the target `namenode_edit` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("namenode_edit");
