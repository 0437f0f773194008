//! Chronos acts when a tracker becomes suspect: tested with every policy in random clusters, using
//! generated scenarios.
//!
//! Jobs of three users fill every slot. Then the connection of a tracker with a task of the first
//! job breaks. Attempts on live trackers are preempted at once, at most as many as it ran tasks,
//! and none is killed. If the tracker recovers, its attempts continue, and no more attempts are
//! preempted.

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

/// A cluster of `trackers`, with two map slots each: the commands, and where each task was launched
/// (`j1.m0` on `t2`).
struct Full {
    commands: String,
    trackers: u64,
    runs: BTreeMap<String, String>,
}

fn play(policy: &str, commands: &str) -> String {
    let build = |spec: &str, params: &Params| -> Result<Box<dyn Scheduler>, String> {
        make(spec, params).map_err(|error| error.to_string())
    };
    let text = format!("{commands}----\n");
    let played = mrcore::scenario::run(&text, policy, &build, &invariants::check);
    played.unwrap_or_else(|error| panic!("{policy}: {error}\n{commands}"))
}

fn full(policy: &str, seed: u64) -> Full {
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
    let played = play(policy, &commands);
    let launched = played.lines().filter_map(|line| line.strip_prefix("assign ")?.split_once(" on "));
    let runs =
        launched.map(|(task, rest)| (task.to_owned(), rest.split(' ').next().unwrap_or("").to_owned()));
    let runs = runs.collect();
    Full { commands, trackers, runs }
}

impl Full {
    fn on(&self, tracker: &str) -> Vec<&str> {
        self.runs.iter().filter(|(_, on)| *on == tracker).map(|(task, _)| task.as_str()).collect()
    }

    /// Returns heartbeats of all trackers that report this progress of their attempts.
    fn beat(&self, at: u64, done: f32) -> String {
        let mut text = String::new();
        for number in 1..=self.trackers {
            let name = format!("t{number}");
            let running: Vec<String> = self.on(&name).iter().map(|task| format!("{task}.0:{done}")).collect();
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
    let (mut acted, mut quiet) = (BTreeMap::<&str, u32>::new(), 0);
    for policy in POLICIES {
        let spec = format!("chronos({policy})");
        for seed in 0..40 {
            let full = full(&spec, seed);
            let Some(suspect) = full.runs.get("j1.m0").cloned() else { continue };
            let before = format!("{}{}", full.commands, full.beat(2, 0.3));
            let broken = format!("{before}disconnect {suspect} at=3s\n");
            let played = play(&spec, &broken);
            let back = preempted(&played);
            assert!(!played.contains("to kill"), "{spec}, seed {seed}: something is killed\n{played}");
            for victim in &back {
                assert_ne!(
                    full.runs[*victim], suspect,
                    "{spec}, seed {seed}: {victim} is where nothing can start"
                );
            }
            let most = full.on(&suspect).len();
            assert!(
                back.len() <= most,
                "{spec}, seed {seed}: {} slots for {most} tasks\n{played}",
                back.len()
            );
            if back.is_empty() {
                quiet += 1;
            } else {
                *acted.entry(policy).or_default() += 1;
            }
            // A false alarm: no attempt of the tracker is stopped, and no more attempts are
            // preempted.
            let healed = play(&spec, &format!("{broken}{}tick at=5s\n", full.beat(4, 0.4)));
            assert_eq!(preempted(&healed), back, "{spec}, seed {seed}: preempts after a false alarm");
            assert!(!healed.contains("\nstop "), "{spec}, seed {seed}: an attempt is stopped\n{healed}");
        }
    }
    println!("acted: {acted:?}; no victim: {quiet}");
    for policy in POLICIES {
        assert!(
            acted.get(policy).is_some_and(|count| *count >= 5),
            "chronos({policy}) hardly acts: {acted:?}"
        );
    }
}
