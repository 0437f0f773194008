//! Clusters as `mrctl` and the lab use them: on this machine, on other machines, and how to find
//! one.

#![allow(missing_docs, reason = "only mrctl and lab use it; what is not obvious has a comment")]

pub mod certificates;
pub mod folder;
pub mod local;
pub mod locate;
pub mod remote;
pub mod trust;
