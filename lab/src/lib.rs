//! Experiments on real clusters: benchmarks, faults and soak tests, and trials that compare the
//! simulator with a cluster. The commands are `mrctl bench`, `mrctl chaos` and `mrctl verify`.

pub mod bench;
pub mod chaos;
pub mod trial;
pub mod verify;
