//! The JobTracker's mind: cluster model, state machine, `Scheduler` trait and `Plan`. Pure: no clock, no I/O.
//!
//! Empty until the runtime fills it.
