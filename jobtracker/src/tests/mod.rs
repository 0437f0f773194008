//! Tests the daemon with a real distributed file system, and with simulated trackers that use real
//! gRPC streams.

mod bad_jobs;
mod cluster;
mod crash;
mod encoding;
mod group;
mod jobs;
mod limits;
mod overload;
mod restart;
