//! The commands, with one module per command. The commands for files and jobs are in `fs` and
//! `job`.

pub(crate) mod backup;
pub(crate) mod cluster;
pub(crate) mod cluster_status;
pub(crate) mod compare;
pub(crate) mod demo;
pub(crate) mod down;
pub(crate) mod drain;
pub(crate) mod health;
mod interrupt;
pub(crate) mod machines;
mod master_reports;
pub(crate) mod masters;
pub(crate) mod membership;
pub(crate) mod new;
pub(crate) mod nodes;
mod offline;
mod outputs;
pub(crate) mod provenance;
pub(crate) mod renew;
pub(crate) mod restore;
pub(crate) mod revoke;
mod rolling;
pub(crate) mod schedulers;
pub(crate) mod shadow;
pub(crate) mod sim;
mod sim_csv;
mod sim_fuzz;
mod sim_json;
#[cfg(feature = "parquet")]
mod sim_parquet;
pub(crate) mod sim_replay;
pub(crate) mod sim_repro;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod up;
pub(crate) mod verify;
pub(crate) mod web;
pub(crate) mod why;
