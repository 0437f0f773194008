//! A simulator that runs the core, the schedulers and the tracker agents of Fermata on simulated
//! machines.
//!
//! A [`World`] is made of a [`Setup`] (machines, network, costs, faults, policy, seed) and a
//! [`Workload`] (jobs and their submission times). It runs to an [`Outcome`] (figures and a hash of
//! all facts). The crate is pure except for reading and writing files, for the processes of external
//! policies, and for the clock that measures the run time of policies. Read [`world`] first.

pub mod campaign;
mod case_size;
pub mod catalog;
mod cluster_file;
pub mod clusters;
pub mod experiment;
pub mod export;
mod external;
pub mod fault;
pub mod fuzz;
mod histories;
mod outcome;
pub mod profile;
mod random_policy;
pub mod replay;
pub mod report;
pub mod repro;
pub mod rng;
pub mod scenario;
pub mod setup;
mod toml_file;
pub mod trial;
pub mod workload;
pub mod world;

pub use cluster_file::{MACHINES_MAX, SLOTS_MAX};
pub use external::kill_all as kill_external_policies;
pub use histories::Recording;
pub use mrcore::{
    PerPhase, Phase, Span,
    metrics::{JobFigures, shares::MinShare},
};
pub use outcome::{Cases, Outcome, RuleViolation, UnsubmittedJob};
pub use setup::Setup;
pub use workload::Workload;
pub use world::{WhyError, World};

/// Time of the start of every run.
pub const BEGINNING: mrcore::Time = mrcore::Time(1_000_000);

/// Returns a number with a noun: `1 job`, `2 jobs`. Only for nouns with a plural in s.
pub(crate) fn count(count: usize, noun: &str) -> String {
    mrcore::quantity::count(count as u64, noun)
}
