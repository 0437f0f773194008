//! DataNodes on real sockets and real files, with a NameNode that only listens and commands.

mod damage;
mod disks;
mod failing_disks;
mod harness;
mod orders;
mod reads;
mod writes;
