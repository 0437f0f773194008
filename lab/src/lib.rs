//! Experiments on real clusters: benchmarks, faults and soak tests, and trials that compare the
//! simulator with a cluster. `mrctl bench`, `mrctl chaos` and `mrctl verify` are its commands.

pub mod bench;
pub mod chaos;
pub mod trial;
pub mod verify;
