//! A deterministic simulation of the control plane: real NameNodes with their group and journals, in
//! one thread, under simulated time, network and disks. A seed determines the whole run.
//!
//! - [`mod@run`]: a run from begin to end;
//! - `namenodes`: real drivers, members, stores; their disks and clocks;
//! - `datanodes`: DataNodes without data;
//! - `clients`: calls, repetitions, records;
//! - `faults`: what goes wrong;
//! - `network`: delays, loss, cuts;
//! - `history`: the check of the records of clients;
//! - `simulation`: random numbers, trace, counters.
//!
//! The masters and agents of jobs are not simulated yet: they belong beside `namenodes` and
//! `datanodes`, on the same network.
//!
//! How it is deterministic: ADR 0045.

mod clients;
mod datanodes;
mod faults;
mod history;
mod namenodes;
mod network;
pub mod run;
mod simulation;

pub use journal::bugs::Bug;
pub use run::{Failure, Options, RARE_EVENTS, Report, run};
