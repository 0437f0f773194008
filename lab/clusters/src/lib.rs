//! Clusters as `mrctl` and the lab use them: on this machine, on other machines, and how to find
//! one.

pub mod certificates;
pub mod folder;
pub mod local;
pub mod locate;
pub mod remote;
pub mod trust;
