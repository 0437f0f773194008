//! Whole jobs in local mode, and task processes under a tracker that is a test.

mod local;
mod task;
