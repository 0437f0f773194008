//! Tests of DataNodes with real sockets and files, and a fake NameNode that records requests and
//! sends commands.

mod damage;
mod disks;
mod failing_disks;
mod group;
mod harness;
mod orders;
mod reads;
mod writes;
