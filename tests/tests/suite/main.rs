//! All cluster tests in one binary, and the tidy test. Each module is one promise of the product.

mod command_line;
mod dfs_bad_input;
mod dfs_commands;
mod dfs_damage;
mod dfs_namenode_restart;
mod dfs_operating;
mod dfs_recovery;
mod dfs_survival;
mod jobs;
mod jobs_drain;
mod jobs_faults;
mod jobs_harm;
mod jobs_inputs;
mod jobs_long;
mod jobs_order;
mod jobs_pause;
mod jobs_preempt;
mod jobs_programs;
mod jobs_retention;
mod jobs_storm;
mod local_cluster;
mod machines;
mod schedulers;
mod security;
mod tidy;
mod trials;
