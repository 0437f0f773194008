//! DataNodes on real sockets and real files, with a NameNode that only listens and commands.

mod damage;
mod disks;
mod harness;
mod failing_disks;
mod orders;
mod reads;
mod writes;
