//! Checks that Chronos acts when a tracker becomes suspect, with every policy, in random clusters
//! and generated scenarios.
//!
//! Jobs of three users fill every slot. Then the connection of a tracker with a task of the first
//! job breaks. Attempts on live trackers are preempted at once, at most as many as the suspect
//! tracker ran tasks, and no attempt is killed. If the tracker recovers, its attempts continue, and
//! no more attempts are preempted.

use fermata_schedulers::{Params, make};
use mrcore::{Scheduler, invariants};
use std::{collections::BTreeMap, fmt::Write as _};

/// A small random number generator.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A cluster whose slots are all in use, two map slots on each of `trackers` trackers: the commands
/// that create it, and the tracker of each task (`t2` for `j1.m0`).
struct FullCluster {
    commands: String,
    trackers: u64,
    tracker_of_task: BTreeMap<String, String>,
}

fn run_scenario(policy: &str, commands: &str) -> String {
    let build = |spec: &str, params: &Params| -> Result<Box<dyn Scheduler>, String> {
        make(spec, params).map_err(|error| error.to_string())
    };
    let text = format!("{commands}----\n");
    let played = mrcore::scenario::run(&text, policy, &build, &invariants::check);
    played.unwrap_or_else(|error| panic!("{policy}: {error}\n{commands}"))
}

fn full_cluster(policy: &str, seed: u64) -> FullCluster {
    let mut rng = Rng(seed << 40);
    rng.below(1);
    let trackers = 3 + rng.below(4);
    let mut commands =
        "config suspect_after=30s lost_after=60s task_timeout=900s launch_timeout=900s\n".to_owned();
    let _ = writeln!(
        commands,
        "scheduler {policy} fair.node_wait=0s fair.rack_wait=0s fcs.node_wait=0s fcs.rack_wait=0s"
    );
    commands.push_str("cluster");
    for number in 1..=trackers {
        let _ = write!(commands, " t{number}:h{number}");
    }
    commands.push_str(" slots=2m0r\n");
    let first = 2 + rng.below(trackers);
    for (job, maps) in [(1, first), (2, 3 * trackers), (3, 3 * trackers)] {
        let hosts: Vec<String> = (0..maps)
            .map(|_| {
                let one = rng.below(trackers);
                let other = (one + 1 + rng.below(trackers - 1)) % trackers;
                format!("h{}+h{}", one + 1, other + 1)
            })
            .collect();
        let (user, data) = (["ann", "bob", "cid"][job - 1], hosts.join(","));
        let _ = writeln!(commands, "submit j{job} maps={maps} data={data} user={user} speculation=on");
    }
    let played = run_scenario(policy, &commands);
    let launched = played.lines().filter_map(|line| line.strip_prefix("assign ")?.split_once(" on "));
    let runs =
        launched.map(|(task, rest)| (task.to_owned(), rest.split(' ').next().unwrap_or("").to_owned()));
    let runs = runs.collect();
    FullCluster { commands, trackers, tracker_of_task: runs }
}

impl FullCluster {
    fn tasks_on(&self, tracker: &str) -> Vec<&str> {
        self.tracker_of_task.iter().filter(|(_, on)| *on == tracker).map(|(task, _)| task.as_str()).collect()
    }

    /// Returns heartbeats of all trackers that report this progress of their attempts.
    fn heartbeats(&self, at: u64, done: f32) -> String {
        let mut text = String::new();
        for number in 1..=self.trackers {
            let name = format!("t{number}");
            let running: Vec<String> =
                self.tasks_on(&name).iter().map(|task| format!("{task}.0:{done}")).collect();
            let _ = writeln!(text, "heartbeat {name} at={at}s running={}", running.join(","));
        }
        text
    }
}

/// Returns the attempts that were preempted.
fn preempted(played: &str) -> Vec<&str> {
    let lines = played.lines().filter_map(|line| line.strip_prefix("preempt-requested "));
    lines.filter_map(|line| line.split(".0 ").next()).collect()
}

const POLICIES: [&str; 7] = ["fifo", "fair", "capacity", "hsrtf-pu", "hsrtf-pr", "fcs", "coshh"];

#[test]
fn suspect_tracker_triggers_lossless_recovery() {
    let (mut acted, mut without_victim) = (BTreeMap::<&str, u32>::new(), 0);
    for policy in POLICIES {
        let spec = format!("chronos({policy})");
        for seed in 0..40 {
            let full = full_cluster(&spec, seed);
            let Some(suspect) = full.tracker_of_task.get("j1.m0").cloned() else { continue };
            let before = format!("{}{}", full.commands, full.heartbeats(2, 0.3));
            let broken = format!("{before}disconnect {suspect} at=3s\n");
            let played = run_scenario(&spec, &broken);
            let back = preempted(&played);
            assert!(!played.contains("to kill"), "{spec}, seed {seed}: an attempt is killed\n{played}");
            for victim in &back {
                assert_ne!(
                    full.tracker_of_task[*victim], suspect,
                    "{spec}, seed {seed}: {victim} is preempted on the suspect tracker"
                );
            }
            let most = full.tasks_on(&suspect).len();
            assert!(
                back.len() <= most,
                "{spec}, seed {seed}: {} attempts are preempted for {most} tasks\n{played}",
                back.len()
            );
            if back.is_empty() {
                without_victim += 1;
            } else {
                *acted.entry(policy).or_default() += 1;
            }
            // A false alarm: no attempt of the tracker is stopped, and no more attempts are
            // preempted.
            let recovered = run_scenario(&spec, &format!("{broken}{}tick at=5s\n", full.heartbeats(4, 0.4)));
            assert_eq!(preempted(&recovered), back, "{spec}, seed {seed}: preempts after a false alarm");
            assert!(
                !recovered.contains("\nstop "),
                "{spec}, seed {seed}: an attempt is stopped\n{recovered}"
            );
        }
    }
    println!("acted: {acted:?}; no victim: {without_victim}");
    for policy in POLICIES {
        assert!(
            acted.get(policy).is_some_and(|count| *count >= 5),
            "chronos({policy}) preempts attempts for too few seeds: {acted:?}"
        );
    }
}
