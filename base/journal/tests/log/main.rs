//! Tests of the public interface of the log, on the crash disk and on real files.

mod arbitrary;
mod common;
mod crash_points;
mod damage;
mod failure;
mod gate;
mod group;
mod real_disk;
mod round_trip;
