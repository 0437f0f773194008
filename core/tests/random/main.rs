//! Random runs of a cluster, from a seed: jobs are submitted, attempts end in every way, trackers
//! stop sending heartbeats, disconnect and come back, the JobTracker dies and replays its journal.
//! After every event, the invariants hold, and the facts so far, applied to an empty cluster, give
//! the durable half of the cluster. When the faults stop, every job ends.
//!
//! `FERMATA_SEED=7 cargo test -p mrcore --test random` runs one seed, `FERMATA_SEEDS=1000` runs
//! this many, starting with `FERMATA_FIRST`.

mod event_counts;
mod map_events;
mod policy;
mod races;
mod random_events;
mod random_run;
mod rng;
mod world;

use event_counts::EventCounts;
use policy::RandomPolicy;
use random_run::play;
use rng::Rng;
use std::rc::Rc;
use world::core;

#[test]
fn random_runs_keep_the_invariants_and_terminate() {
    let number = |key| std::env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
    let one = number("FERMATA_SEED");
    let first = number("FERMATA_FIRST").unwrap_or(0);
    let seeds = match one {
        Some(seed) => seed..seed + 1,
        None => first..first + number("FERMATA_SEEDS").unwrap_or(120),
    };
    let mut counts = EventCounts::default();
    for seed in seeds {
        counts += play(seed, Rc::new(|seed| core(Box::new(RandomPolicy(Rng(seed))))));
    }
    println!("{counts:#?}");
    let rarest = [
        counts.succeeded,
        counts.failed,
        counts.zombies,
        counts.duplicates,
        counts.outputs_lost,
        counts.unfetched,
        counts.trackers_lost,
        counts.restarts,
        counts.late_reports,
        counts.forgotten,
        counts.cleaned,
        counts.splits,
        counts.splits_of_remainders,
        counts.pauses,
        counts.pauses_again,
        counts.resumes,
        counts.released,
        counts.checkpoints_lost,
        counts.dropped,
        counts.drains,
        counts.outputs_copied,
        counts.checkpoints_copied,
        counts.preemptions_too_late,
        counts.preemptions_repeated,
        counts.preemptions_after_end,
        counts.restarts_while_pausing,
        counts.pauses_unreported,
        counts.replaced_after_pause,
        counts.remainders_lost,
        counts.resumes_while_pausing,
        counts.kills_after_pause,
        counts.refused,
        counts.unreachable,
        counts.kills_by_user,
        counts.overdue,
    ];
    // These need two attempts of one reduce.
    let rarer = [counts.duplicates_paused, counts.duplicates_resumed, counts.behind_other_checkpoint];
    assert!(one.is_some() || rarer.iter().all(|count| *count > 0), "a case did not occur: {counts:?}");
    assert!(
        one.is_some() || rarest.iter().all(|count| *count > 10),
        "a case occurred too rarely: {counts:?}"
    );
}
