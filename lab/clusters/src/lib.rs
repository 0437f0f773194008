//! Starts, stops and finds clusters, on this machine and on other machines, for `mrctl` and the
//! lab.

pub mod certificates;
pub mod folder;
pub mod local;
pub mod locate;
pub mod remote;
pub mod trust;
