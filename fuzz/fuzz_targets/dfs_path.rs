#![no_main]
//! libFuzzer entry of the target `dfs_path`, whose body is in the crate `fermata-fuzzing`.

fermata_fuzz::entry!("dfs_path");
