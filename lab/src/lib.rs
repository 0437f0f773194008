//! Experiments on real clusters: benchmarks, faults and soak tests, and trials that compare the
//! simulator with a cluster. `mrctl bench`, `mrctl chaos` and `mrctl sim verify` are its commands.

#![allow(missing_docs, reason = "the doc comments of commands and flags are their help texts")]

pub mod bench;
pub mod chaos;
pub mod trial;
pub mod verify;
