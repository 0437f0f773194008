#![no_main]
//! The libFuzzer entry of the target `dfs_path` of the crate `fermata-fuzzing`.

fermata_fuzz::entry!("dfs_path");
