//! Tests of the daemon with a real file system, and trackers that are simulated over real streams.

mod bad_jobs;
mod cluster;
mod crash;
mod jobs;
mod overload;
mod restart;
