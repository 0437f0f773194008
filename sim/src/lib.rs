//! The same core and schedulers in a simulated world.
//!
//! Empty until the simulator fills it.
