//! Properties of every policy, in clusters with random events. A new policy is covered as soon as
//! it is registered.
//!
//! - No decision is refused, invariants hold after every event, and a replayed journal gives the
//!   same cluster.
//! - When the random events have ended, every job ends: no job starves, and paused tasks are
//!   resumed.
//! - No slot stays free while a pending task could use it.
//! - Equal histories give equal decisions.
//! - Without a failure, `chronos` decides nothing itself.
//!
//! `FERMATA_SEED=7 FERMATA_POLICY=fair cargo test -p fermata-sim --test properties` runs one seed
//! and policy.

use fermata_sim::{
    Outcome, World,
    catalog::{self, Request},
    fault::{Fault, FaultKind},
    fuzz,
};
use schedulers::Params;
use std::collections::BTreeSet;

/// Policy parameters with short times, so that everything happens in a short run. There is no
/// waiting for locality, because it leaves slots free.
const SHORT_TIMES: &[(&str, &str)] = &[
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
    ("coda.node_wait", "0s"),
    ("coda.rack_wait", "0s"),
    ("coda.newly_launched", "1s"),
    ("coda.avoid_slow_nodes", "off"),
    ("coda.wait_for_checkpoint", "off"),
    ("coda.pools.u1.weight", "3"),
    ("coda.pools.u2.min_maps", "2"),
    ("coda.pools.u2.min_reduces", "1"),
    ("las.quantum", "1s"),
    ("las.newly_launched", "1s"),
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
const LEAVE_REDUCE_SLOTS_FREE: &[(&str, &str)] =
    &[("fifo", "reduces whose maps wait behind those of an earlier job would only hold slots")];

/// Returns all policies, alone and wrapped in Chronos.
fn specs() -> Vec<String> {
    let chosen = std::env::var("FERMATA_POLICY").ok();
    let names = schedulers::specs().into_iter();
    names.filter(|name| chosen.as_ref().is_none_or(|chosen| chosen == name)).collect()
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |key| std::env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
    match number("FERMATA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FERMATA_SEEDS").unwrap_or(default),
    }
}

fn tuned() -> Params {
    SHORT_TIMES.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn play(seed: u64, spec: &str, params: Params, shadow: Option<&str>) -> Outcome {
    let (mut setup, workload) = fuzz::with_random_events(seed, spec, params);
    setup.shadow = shadow.map(str::to_owned);
    fuzz::run(setup, workload).unwrap_or_else(|bad| panic!("{spec}: seed {seed}: {bad}"))
}

#[test]
fn no_decision_is_refused_no_slot_idles_and_every_job_ends() {
    for spec in specs() {
        for seed in seeds(4) {
            let cases = play(seed, &spec, tuned(), None).cases;
            let reduces = LEAVE_REDUCE_SLOTS_FREE.iter().any(|(name, _)| spec.contains(name));
            assert_eq!(cases.get("free map slot"), 0, "{spec}: seed {seed} leaves map slots free");
            let free = cases.get("free reduce slot");
            assert!(reduces || free == 0, "{spec}: seed {seed} leaves reduce slots free");
        }
    }
}

#[test]
fn equal_histories_give_equal_decisions() {
    for spec in specs() {
        for seed in seeds(1) {
            let hash = || play(seed, &spec, tuned(), None).hash;
            assert_eq!(hash(), hash(), "{spec}: seed {seed}");
        }
    }
}

#[test]
fn shadow_has_no_effect_and_agrees_with_an_equal_policy() {
    for spec in specs() {
        for seed in seeds(1) {
            let alone = play(seed, &spec, tuned(), None).hash;
            assert_eq!(alone, play(seed, &spec, tuned(), Some("fair")).hash, "{spec}: seed {seed}");
            assert_eq!(alone, play(seed, &spec, tuned(), Some(&spec)).hash, "{spec}: seed {seed}");
        }
    }
}

/// Checks variants that leave slots free on purpose, and the rules of the papers: no decision is
/// refused, and every job ends. The modes of hSRTF that kill are left out: as printed, their jobs
/// kill each other's tasks.
#[test]
fn policies_that_leave_slots_free_on_purpose_starve_no_job() {
    let variants = [
        ("coshh", "coshh.literal", "true"),
        ("fcs", "fcs.skips", "60"),
        ("fcs", "fcs.literal", "true"),
        ("coda", "coda.avoid_slow_nodes", "on"),
        ("coda", "coda.wait_for_checkpoint", "on"),
        ("hsrtf-pu", "hsrtf.literal", "true"),
        ("hsrtf-pr", "hsrtf.literal", "true"),
        ("chronos(fifo)", "chronos.literal", "true"),
        ("chronos(fair)", "chronos.literal", "true"),
    ];
    for (spec, key, value) in variants {
        let mut params = tuned();
        params.insert(key.into(), value.into());
        for seed in seeds(4) {
            play(seed, spec, params.clone(), None);
        }
    }
}

/// Returns the outcome of a policy on a busy cluster.
fn run_busy_cluster(spec: &str, params: Params, faults: Vec<Fault>) -> Outcome {
    let request = Request {
        workload: "gridmix".into(),
        jobs: Some(40),
        nodes: Some(8),
        load: Some(0.9),
        ..Request::default()
    };
    let case = catalog::open(&request).expect("a workload");
    let mut setup = case.setup;
    (setup.scheduler, setup.params, setup.faults) = (spec.to_owned(), params, faults);
    World::new(setup, (case.workload)(1)).expect("a policy").run(None).expect("no rule broken")
}

#[test]
fn chronos_changes_nothing_while_no_node_fails() {
    let literal = Params::from([("fcs.literal".to_owned(), "true".to_owned())]);
    let inner = schedulers::specs().into_iter().filter(|name| !name.contains('('));
    let cases = inner.map(|name| (name, Params::new())).chain([("fcs".to_owned(), literal)]);
    let (mut hashes, mut preempting) = (BTreeSet::new(), 0);
    for (name, params) in cases {
        let alone = run_busy_cluster(&name, params.clone(), Vec::new());
        let wrapped = run_busy_cluster(&format!("chronos({name})"), params.clone(), Vec::new());
        assert_eq!(wrapped.hash, alone.hash, "chronos({name}) with {params:?}");
        hashes.insert(alone.hash);
        preempting += usize::from(alone.metrics.jobs().any(|(_, job)| job.preemption.preemptions() > 0));
    }
    // Otherwise the runs would not show a difference.
    assert!(hashes.len() >= 9 && preempting >= 5, "{} different runs, {preempting} preempt", hashes.len());
    let off = Params::from([("coda.recover".to_owned(), "off".to_owned())]);
    let [with, without] =
        [Params::new(), off].map(|params| run_busy_cluster("coda", params, Vec::new()).hash);
    assert_eq!(with, without, "coda without recover");
    let fault = Fault { at_s: 60.0, for_s: None, what: FaultKind::Node { node: 1 } };
    let [alone, wrapped] =
        ["fair", "chronos(fair)"].map(|spec| run_busy_cluster(spec, Params::new(), vec![fault.clone()]).hash);
    assert_ne!(alone, wrapped, "a failure is what chronos is for");
}
