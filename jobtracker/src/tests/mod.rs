//! The daemon against a real file system, with trackers that are played over the real stream.

mod bad_jobs;
mod cluster;
mod crash;
mod jobs;
mod overload;
mod restart;
