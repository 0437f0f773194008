//! The same core and schedulers in a simulated world.
//!
//! A [`World`] is made of a [`Setup`] (machines, network, costs, faults, policy, seed) and a [`Workload`] (jobs and
//! when they come); it runs to an [`Outcome`] (figures and a hash of all facts). Pure but for the files it reads and
//! writes, and the clock that policies are timed by. Read [`world`] first.

pub mod catalog;
pub mod clusters;
pub mod experiment;
pub mod fault;
pub mod fuzz;
pub mod profile;
pub mod replay;
pub mod report;
pub mod repro;
pub mod rng;
pub mod scenario;
pub mod setup;
pub mod trial;
pub mod workload;
pub mod world;

pub use mrcore::{
    PerPhase, Span,
    metrics::{JobFigures, shares::MinShare},
};
pub use setup::Setup;
pub use workload::Workload;
pub use world::{Outcome, RuleViolation, World};

/// `1 job`, `2 jobs`: of things whose names take an s.
pub(crate) fn count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
