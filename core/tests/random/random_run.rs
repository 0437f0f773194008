//! A whole life: faults for a while, then peace until every job has ended.

use crate::{
    event_counts::EventCounts,
    world::{Make, SimTracker, World},
};
use mrcore::{Event, Phase, Span, digest::digest};
use std::panic::{self, AssertUnwindSafe};

/// Plays a life to its end. Whatever goes wrong in the core itself, the seed is told.
pub(crate) fn play(seed: u64, make: Make) -> EventCounts {
    panic::catch_unwind(AssertUnwindSafe(|| live(seed, make))).unwrap_or_else(|trouble| {
        eprintln!("it was seed {seed}");
        panic::resume_unwind(trouble)
    })
}

fn live(seed: u64, make: Make) -> EventCounts {
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
        assert!(steps < 20_000, "seed {seed}: not at rest\n{}", digest(world.core.cluster()));
    }
    world.return_drained();
    // Every slot is free again, and nothing is kept of a finished job once its tracker has spoken.
    for at in 0..world.trackers.len() {
        world.register(at);
    }
    for tracker in world.core.cluster().trackers() {
        for phase in Phase::BOTH {
            assert_eq!(tracker.free(phase), tracker.slots[phase], "seed {seed}: {} leaks", tracker.name);
        }
    }
    let nothing_left = |body: &SimTracker| body.jobs.is_empty() && body.checkpoints.is_empty();
    assert!(world.trackers.iter().all(nothing_left), "seed {seed}: files are left");
    // A policy with nothing to do is not asked all the time.
    let before = world.core.rounds();
    for _ in 0..20 {
        world.now = world.now + Span::millis(200);
        world.send(Event::Tick);
    }
    let asked = world.core.rounds() - before;
    assert!(asked <= 5, "seed {seed}: asked {asked} times in 4 s of peace");
    world.restart();
    world.counts.jobs = world.submitted;
    world.counts
}
