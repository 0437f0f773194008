//! All cluster tests in one binary, and the tidy test. Each module is one promise of the product.

mod dfs_bad_input;
mod dfs_commands;
mod dfs_damage;
mod dfs_namenode_restart;
mod dfs_operating;
mod dfs_recovery;
mod dfs_survival;
mod jobs;
mod jobs_faults;
mod local_cluster;
mod tidy;
