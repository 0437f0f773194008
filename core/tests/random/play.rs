//! A whole life: faults for a while, then peace until every job has ended.

use crate::{
    seen::Seen,
    world::{Body, Make, World},
};
use mrcore::{Event, Phase, Span, digest::digest};
use std::panic::{self, AssertUnwindSafe};

/// Plays a life to its end. Whatever goes wrong in the mind itself, the seed is told.
pub(crate) fn play(seed: u64, make: Make) -> Seen {
    panic::catch_unwind(AssertUnwindSafe(|| live(seed, make))).unwrap_or_else(|trouble| {
        eprintln!("it was seed {seed}");
        panic::resume_unwind(trouble)
    })
}

fn live(seed: u64, make: Make) -> Seen {
    let mut world = World::new(seed, make);
    for _ in 0..800 {
        world.step();
    }
    world.faults = false;
    let mut steps = 0;
    while !world.is_quiet() {
        world.let_go();
        world.step();
        steps += 1;
        assert!(steps < 20_000, "seed {seed}: not at rest\n{}", digest(world.mind.cluster()));
    }
    world.return_drained();
    // Every slot is free again, and nothing is kept of a job that is over once its tracker has spoken.
    for at in 0..world.bodies.len() {
        world.register(at);
    }
    for tracker in world.mind.cluster().trackers() {
        for phase in Phase::BOTH {
            assert_eq!(tracker.free(phase), tracker.slots[phase], "seed {seed}: {} leaks", tracker.name);
        }
    }
    let nothing_left = |body: &Body| body.jobs.is_empty() && body.checkpoints.is_empty();
    assert!(world.bodies.iter().all(nothing_left), "seed {seed}: files are left");
    // A policy with nothing to do is not asked all the time.
    let before = world.mind.rounds();
    for _ in 0..20 {
        world.now = world.now + Span::millis(200);
        world.send(Event::Tick);
    }
    let asked = world.mind.rounds() - before;
    assert!(asked <= 5, "seed {seed}: asked {asked} times in 4 s of peace");
    world.restart();
    world.seen.jobs = world.submitted;
    world.seen
}
