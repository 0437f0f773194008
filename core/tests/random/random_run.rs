//! A complete random run: faults for a while, then no faults until every job has ended.

use crate::{
    event_counts::EventCounts,
    world::{Make, SimTracker, World},
};
use mrcore::{Event, Phase, Span, digest::digest};
use std::panic::{self, AssertUnwindSafe};

/// Runs a seed. If the core panics, the seed is printed.
pub(crate) fn play(seed: u64, make: Make) -> EventCounts {
    panic::catch_unwind(AssertUnwindSafe(|| run(seed, make))).unwrap_or_else(|panic_payload| {
        eprintln!("the failing seed is {seed}");
        panic::resume_unwind(panic_payload)
    })
}

fn run(seed: u64, make: Make) -> EventCounts {
    let mut world = World::new(seed, make);
    for _ in 0..800 {
        world.step();
    }
    world.faults = false;
    let mut steps = 0;
    while !world.is_idle() {
        world.release();
        world.step();
        steps += 1;
        assert!(steps < 20_000, "seed {seed}: not idle\n{}", digest(world.core.cluster()));
    }
    world.return_drained();
    // Every slot is free again, and trackers have no files of finished jobs after they have
    // registered.
    for at in 0..world.trackers.len() {
        world.register(at);
    }
    let cluster = world.core.cluster();
    for tracker in cluster.trackers() {
        for phase in Phase::BOTH {
            assert_eq!(
                cluster.free(tracker, phase),
                tracker.slots[phase],
                "seed {seed}: {} leaks",
                tracker.name
            );
        }
    }
    let nothing_left = |sim: &SimTracker| sim.jobs.is_empty() && sim.checkpoints.is_empty();
    assert!(world.trackers.iter().all(nothing_left), "seed {seed}: files are left");
    // A policy without work is not asked all the time.
    let before = world.core.rounds();
    for _ in 0..20 {
        world.now = world.now + Span::millis(200);
        world.send(Event::Tick);
    }
    let asked = world.core.rounds() - before;
    assert!(asked <= 5, "seed {seed}: {asked} rounds in 4 s without events");
    world.restart();
    world.counts.jobs = world.submitted;
    world.counts
}
