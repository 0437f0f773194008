//! Tests of the whole state machine, on a bench with pretended DataNodes and a clock that is turned by hand.

mod bench;
mod cluster;
mod commits;
mod fake_node;
mod files;
mod memory;
mod model;
mod nodes;
mod permits;
mod random;
mod repair;
mod replay;
