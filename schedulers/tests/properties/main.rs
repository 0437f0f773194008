//! Properties of every policy, in random clusters and histories. They use the same worlds as the
//! random test of the core. A new policy is covered as soon as it is registered.
//!
//! - No decision is refused, invariants hold after every event, and a replayed journal gives the
//!   same cluster.
//! - When no more jobs are submitted, every job ends: no job starves, and paused tasks are resumed.
//! - No slot stays free while a pending task could use it.
//! - Equal histories give equal decisions.
//!
//! `FERMATA_SEED=7 FERMATA_POLICY=fair cargo test -p fermata-schedulers --test properties` runs one
//! seed and policy.

#[path = "../../../core/tests/random/event_counts.rs"]
mod event_counts;
#[path = "../../../core/tests/random/map_events.rs"]
mod map_events;
#[path = "../../../core/tests/random/races.rs"]
mod races;
#[path = "../../../core/tests/random/random_events.rs"]
mod random_events;
#[path = "../../../core/tests/random/random_run.rs"]
mod random_run;
#[path = "../../../core/tests/random/rng.rs"]
mod rng;
#[path = "../../../core/tests/random/world.rs"]
mod world;

use event_counts::EventCounts;
use fermata_schedulers::{Params, make};
use mrcore::{Scheduler, fact::Entry};
use random_run::play;
use std::rc::Rc;
use world::{Make, World, core};

/// Short times, so that everything happens in a short run, and no waiting for locality, which
/// leaves slots free.
const TUNED: &[(&str, &str)] = &[
    ("fair.node_wait", "0s"),
    ("fair.rack_wait", "0s"),
    ("fair.min_share_timeout", "1s"),
    ("fair.fair_share_timeout", "2s"),
    ("coshh.recheck", "2s"),
    ("coshh.users.u1.weight", "3"),
    ("coshh.users.u2.min_maps", "2"),
    ("coshh.users.u2.min_reduces", "1"),
    ("fcs.node_wait", "0s"),
    ("fcs.rack_wait", "0s"),
    ("fcs.skips", "0"),
    ("fcs.newly_launched", "1s"),
    ("fcs.tolerance", "1s"),
    ("capacity.queues.a.capacity", "30"),
    ("capacity.queues.b.capacity", "50"),
    ("capacity.queues.b.c.capacity", "80"),
    ("capacity.queues.b.d.capacity", "20"),
    ("capacity.reclaim_after", "1s"),
    ("hsrtf.every", "2s"),
    ("hsrtf.colocate_wait", "0s"),
    ("fair.pools.u1.weight", "3"),
    ("fair.pools.u2.min_maps", "2"),
    ("fair.pools.u2.min_reduces", "1"),
];

/// Policies that leave reduce slots free on purpose, and why.
const IDLES: &[(&str, &str)] =
    &[("fifo", "reduces whose maps wait behind those of an earlier job would only hold slots")];

/// All policies, alone and wrapped.
fn specs() -> Vec<String> {
    let chosen = std::env::var("FERMATA_POLICY").ok();
    let names: Vec<String> = fermata_schedulers::specs();
    names.into_iter().filter(|name| chosen.as_ref().is_none_or(|chosen| chosen == name)).collect()
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |key| std::env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
    match number("FERMATA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FERMATA_SEEDS").unwrap_or(default),
    }
}

fn policy(spec: &str) -> Box<dyn Scheduler> {
    let params: Params = TUNED.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    make(spec, &params).unwrap()
}

fn maker(spec: &str) -> Make {
    let spec = spec.to_owned();
    Rc::new(move |_| core(policy(&spec)))
}

fn journal(seed: u64, make: Make) -> Vec<Entry> {
    let mut world = World::new(seed, make);
    (0..400).for_each(|_| world.step());
    world.journal
}

#[test]
fn no_decision_is_refused_no_slot_idles_and_every_job_ends() {
    for spec in specs() {
        let mut counts = EventCounts::default();
        for seed in seeds(12) {
            let run = play(seed, maker(&spec));
            assert_eq!(run.refusals, 0, "{spec}: seed {seed} has refused decisions");
            let reduces = IDLES.iter().any(|(name, _)| spec.contains(name));
            assert_eq!(run.idle.map, 0, "{spec}: seed {seed} leaves map slots free");
            assert!(reduces || run.idle.reduce == 0, "{spec}: seed {seed} leaves reduce slots free");
            counts += run;
        }
        println!("{spec}: {counts:?}");
    }
}

#[test]
fn equal_histories_give_equal_decisions() {
    for spec in specs() {
        for seed in seeds(4) {
            let (one, other) = (journal(seed, maker(&spec)), journal(seed, maker(&spec)));
            assert_eq!(one, other, "{spec}: seed {seed}");
        }
    }
}

#[test]
fn shadow_has_no_effect_and_agrees_with_an_equal_policy() {
    for spec in specs() {
        for seed in seeds(3) {
            let with_shadow = |shadow: &'static str| -> Make {
                let spec = spec.clone();
                Rc::new(move |_| {
                    let shadow = if shadow.is_empty() { spec.as_str() } else { shadow };
                    core(policy(&spec)).with_shadow(policy(shadow))
                })
            };
            let alone = journal(seed, maker(&spec));
            assert_eq!(
                alone,
                journal(seed, with_shadow("fair")),
                "{spec}: seed {seed}: the shadow has an effect"
            );
            let mut world = World::new(seed, with_shadow(""));
            (0..400).for_each(|_| world.step());
            let shadow = world.core.shadow().unwrap();
            assert_eq!(shadow.differences().next(), None, "{spec}: seed {seed}: {:?}", shadow.tally());
            assert_eq!(shadow.tally().policy_preempted, shadow.tally().both_preempted, "{spec}: seed {seed}");
        }
    }
}

/// Variants that leave slots free on purpose: no decision is refused, and every job ends.
#[test]
fn idle_slots_on_purpose_starve_no_job() {
    let variants =
        [("coshh", "coshh.literal", "true"), ("fcs", "fcs.skips", "60"), ("fcs", "fcs.literal", "true")];
    for (spec, key, value) in variants {
        let mut params: Params = TUNED.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        params.insert(key.into(), value.into());
        for seed in seeds(12) {
            let params = params.clone();
            let run = play(seed, Rc::new(move |_| core(make(spec, &params).unwrap())));
            assert_eq!(run.refusals, 0, "{spec}, {key} = {value}: seed {seed} has refused decisions");
        }
    }
}
