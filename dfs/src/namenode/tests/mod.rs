//! Tests of the state machine, on a test bench with fake DataNodes and a simulated clock.

mod bench;
mod cluster;
mod commits;
mod fake_node;
mod files;
mod group;
mod memory;
mod model;
mod nodes;
mod permits;
mod random;
mod repair;
mod replay;
