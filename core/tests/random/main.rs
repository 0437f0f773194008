//! Random lives of a cluster, from a seed: jobs come, attempts end in every way, trackers fall silent, break off and
//! come back, the JobTracker dies and replays its journal. After every event the invariants hold; when the faults
//! stop, every job ends; and the journal always gives the cluster that it came from.
//!
//! `FERMATA_SEED=7 cargo test -p mrcore --test random` plays one seed, `FERMATA_SEEDS=1000` so many.

mod life;
mod policy;
mod seen;
mod world;

use mrcore::{Phase, digest::digest};
use policy::{Anyhow, Dice};
use seen::Seen;
use world::{Body, World};

fn play(seed: u64) -> Seen {
    let mut world = World::new(seed, |seed| Box::new(Anyhow(Dice(seed))));
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
    world.restart();
    world.seen.jobs = world.submitted;
    world.seen
}

#[test]
fn random_lives_hold_the_invariants_and_come_to_rest() {
    let number = |key| std::env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
    let one = number("FERMATA_SEED");
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => 0..number("FERMATA_SEEDS").unwrap_or(60),
    };
    let mut seen = Seen::default();
    for seed in seeds {
        seen += play(seed);
    }
    println!("{seen:#?}");
    let rarest = [
        seen.succeeded,
        seen.failed,
        seen.zombies,
        seen.duplicates,
        seen.outputs_lost,
        seen.unfetched,
        seen.trackers_lost,
        seen.restarts,
        seen.late_words,
        seen.forgotten,
        seen.cleaned,
        seen.splits,
        seen.splits_of_tails,
        seen.pauses,
        seen.pauses_again,
        seen.resumes,
        seen.released,
        seen.checkpoints_lost,
        seen.dropped,
    ];
    assert!(one.is_some() || rarest.iter().all(|count| *count > 10), "something hardly happened: {seen:?}");
}
