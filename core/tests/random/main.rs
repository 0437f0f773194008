//! Random lives of a cluster, from a seed: jobs come, attempts end in every way, trackers fall silent, break off and
//! come back, the JobTracker dies and replays its journal. After every event the invariants hold; when the faults
//! stop, every job ends; and the journal always gives the cluster that it came from.
//!
//! `FERMATA_SEED=7 cargo test -p mrcore --test random` plays one seed, `FERMATA_SEEDS=1000` so many.

mod dice;
mod life;
mod play;
mod policy;
mod seen;
mod world;

use dice::Dice;
use play::play;
use policy::Anyhow;
use seen::Seen;
use std::rc::Rc;
use world::mind;

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
        seen += play(seed, Rc::new(|seed| mind(Box::new(Anyhow(Dice(seed))))));
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
        seen.drains,
        seen.outputs_taken,
        seen.checkpoints_taken,
    ];
    assert!(one.is_some() || rarest.iter().all(|count| *count > 10), "something hardly happened: {seen:?}");
}
