//! Runs of small simulated clusters: durations that can be computed by hand, and reproducibility.

use fermata_sim as sim;
use mrcore::{PerPhase, Span, ids::JobId, metrics::JobFigures};
use sim::{
    Outcome, Setup, Workload, World,
    fault::{Fault, FaultKind},
    profile::{self, Profile},
    rng::Rng,
    workload::{Outline, papers},
};

const MB: u64 = 1_000_000;

/// 10 MB/s in maps, 20 MB/s in reduces, 100 MB/s in merges; map output is half of the input.
const PLAIN: Profile = Profile {
    map_mbps: 10.0,
    map_out: 0.5,
    reduce_mbps: 20.0,
    reduce_out: 1.0,
    merge_mbps: 100.0,
    start_s: 1.0,
    spread: 0.0,
};

fn job(at_s: f64, maps: u32, reduces: u32) -> Outline<'static> {
    let (name, user) = (format!("job-at-{at_s}"), "ann".to_owned());
    Outline { at_s, group: name.clone(), name, user, maps, block: 100 * MB, reduces, profile: &PLAIN }
}

fn workload(jobs: Vec<Outline<'static>>) -> Workload {
    let mut rng = Rng::new(1);
    let jobs = jobs.into_iter().map(|job| job.plan(&mut rng)).collect();
    Workload { name: "test".into(), jobs }
}

fn setup(nodes: u32) -> Setup {
    let mut setup = Setup::even(nodes, PerPhase { map: 2, reduce: 1 }, "fifo");
    setup.checked = true;
    setup
}

fn play(setup: Setup, workload: Workload) -> Outcome {
    let outcome = World::new(setup, workload).expect("a policy").run(Some(Span::secs(100_000)));
    let outcome = outcome.unwrap_or_else(|broken| panic!("{broken}"));
    assert_eq!(outcome.unfinished, 0, "every job ends");
    outcome
}

fn figures(outcome: &Outcome, job: u32) -> &JobFigures {
    outcome.metrics.job(JobId(job)).expect("it is known")
}

fn makespan_s(outcome: &Outcome, job: u32) -> f64 {
    figures(outcome, job).makespan().expect("it has ended").as_secs_f64()
}

#[track_caller]
fn assert_near(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not {expected} within {tolerance}");
}

#[test]
fn node_local_map_takes_time_in_proportion_to_its_bytes() {
    // Two nodes have all the data and four slots. Eight maps of 10 s with a start of 1 s run in two
    // waves.
    let outcome = play(setup(2), workload(vec![job(5.0, 8, 0)]));
    assert_near(makespan_s(&outcome, 1), 22.1, 0.3);
    assert_eq!(figures(&outcome, 1).near, [8, 0, 0]);
}

#[test]
fn shuffle_overlaps_the_maps_before_merge_and_reduce() {
    // Eight maps produce 400 MB, so each of two reduces gets 200 MB. Most of it is fetched while
    // maps run. The output of the last wave is fetched at 80 MB/s, merged in 2 s and reduced in 10
    // s.
    let outcome = play(setup(2), workload(vec![job(5.0, 8, 2)]));
    assert_near(makespan_s(&outcome, 1), 22.1 + 100.0 / 80.0 + 2.0 + 10.0, 1.0);
    let mut late = workload(vec![job(5.0, 8, 2)]);
    late.jobs[0].slow_start = 1.0;
    let slower = play(setup(2), late);
    assert_near(makespan_s(&slower, 1) - makespan_s(&outcome, 1), 1.0 + 100.0 / 80.0, 0.6);
}

#[test]
fn remote_maps_share_the_link() {
    // All data is on node 0, which has no slots. Node 1 reads four streams of up to 10 MB/s through
    // a link of 20 MB/s.
    let mut setup = setup(2);
    setup.machines[0].slots = PerPhase { map: 0, reduce: 0 };
    setup.machines[1].slots.map = 4;
    setup.machines.iter_mut().for_each(|machine| machine.nic = 20e6);
    setup.replication = 1;
    let mut workload = workload(vec![job(5.0, 4, 0)]);
    workload.jobs[0].hosts = vec![vec![0]; 4];
    let outcome = play(setup, workload);
    assert_near(makespan_s(&outcome, 1), 21.1, 0.5);
    assert_eq!(figures(&outcome, 1).near, [0, 4, 0], "all maps must be rack-local");
}

#[test]
fn slow_machine_recovers_after_the_fault() {
    let mut setup = setup(1);
    setup.faults =
        vec![Fault { at_s: 8.0, for_s: Some(10.0), what: FaultKind::Slow { node: 0, factor: 10.0 } }];
    let outcome = play(setup, workload(vec![job(5.0, 1, 0)]));
    // Two seconds of work are done from 6.03 to 8 s, one in the next ten seconds, and the remaining
    // seven after that.
    assert_near(makespan_s(&outcome, 1), 13.0 + 7.05, 0.3);
}

#[test]
fn lost_node_is_detected_and_its_maps_run_again() {
    let mut setup = setup(3);
    setup.faults = vec![Fault { at_s: 20.0, for_s: None, what: FaultKind::Node { node: 1 } }];
    let outcome = play(setup, workload(vec![job(2.0, 12, 2)]));
    assert!(outcome.metrics.recovery.tasks > 0);
    let job = figures(&outcome, 1);
    assert!(job.succeeded && job.lost > Span(0));
}

#[test]
fn restarted_jobtracker_resumes_its_state() {
    let mut setup = setup(3);
    setup.faults = vec![Fault { at_s: 12.0, for_s: Some(5.0), what: FaultKind::JobTracker }];
    let outcome = play(setup, workload(vec![job(2.0, 12, 2), job(14.0, 3, 1)]));
    assert_eq!(figures(&outcome, 1).lost, Span(0), "no work must run twice");
    assert!(figures(&outcome, 2).submitted.since(figures(&outcome, 1).submitted) >= Span::secs(15));
}

#[test]
fn jobs_survive_partitions_an_unreachable_rack_and_a_dead_tracker() {
    let mut setup = setup(3);
    setup.faults = vec![
        Fault { at_s: 8.0, for_s: Some(30.0), what: FaultKind::Partition { node: 0 } },
        Fault { at_s: 9.0, for_s: Some(6.0), what: FaultKind::NoOrders { node: 1 } },
        Fault { at_s: 60.0, for_s: Some(20.0), what: FaultKind::Rack { rack: 0 } },
        Fault { at_s: 90.0, for_s: Some(4.0), what: FaultKind::Tracker { node: 2 } },
    ];
    let jobs = (0..6).map(|number| job(f64::from(number) * 15.0 + 2.0, 12, 2)).collect();
    assert!(figures(&play(setup, workload(jobs)), 1).succeeded);
}

#[test]
fn same_seed_gives_the_same_facts() {
    let run = |seed| {
        let mut setup = Setup::even(58, PerPhase { map: 8, reduce: 2 }, "fifo");
        setup.seed = seed;
        setup.faults = vec![Fault { at_s: 60.0, for_s: Some(60.0), what: FaultKind::Node { node: 3 } }];
        let outcome = play(setup, papers::hsrtf(&profile::built_in(), seed));
        (outcome.hash, outcome.facts, outcome.events)
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first.0, run(2).0);
}

#[test]
fn idle_time_is_skipped() {
    let outcome = play(setup(4), workload(vec![job(1.0, 2, 1), job(86_400.0, 2, 1)]));
    assert!(outcome.events < 5_000, "{} events", outcome.events);
    assert_near(makespan_s(&outcome, 1), makespan_s(&outcome, 2), 1.5);
}

/// Simulates one node with a slot of each kind. A user preempts its attempts at `at_s` and resumes
/// them three seconds later.
fn run_with_preemption(jobs: Vec<Outline<'static>>, at_s: f64) -> Outcome {
    let mut setup = Setup::even(1, PerPhase { map: 1, reduce: 1 }, "fifo");
    setup.checked = true;
    setup.faults = vec![Fault { at_s, for_s: Some(3.0), what: FaultKind::PreemptAll { node: 0 } }];
    play(setup, workload(jobs))
}

#[test]
fn split_costs_the_write_and_a_new_start() {
    let (job, calm) = (|| job(5.0, 1, 0), play(setup(1), workload(vec![job(5.0, 1, 0)])));
    let outcome = run_with_preemption(vec![job()], 11.0);
    // Half of the map is done. The split takes 0.05 s, then 25 MB of output are written in 0.25 s
    // without other work. The remainder starts after 1.03 s.
    let cost = 0.05 + 0.25 + 1.03;
    assert_near(makespan_s(&outcome, 1) - makespan_s(&calm, 1), cost, 0.05);
    let job = figures(&outcome, 1);
    assert_eq!((job.preemption.splits, job.lost), (1, Span(0)));
    assert_near(job.overhead().as_secs_f64(), cost, 0.05);
}

#[test]
fn pause_costs_the_write_and_read_of_the_data_in_memory() {
    // Four maps run one after the other and are done after 44.1 s. After 40 s the reduce has 150
    // MB, of which 134 MB are in memory.
    let calm = run_with_preemption(vec![job(0.0, 4, 1)], 500.0);
    let outcome = run_with_preemption(vec![job(0.0, 4, 1)], 40.0);
    let job = figures(&outcome, 1);
    assert_eq!((job.preemption.pauses, job.preemption.resumes, job.lost), (1, 1, Span(0)));
    let memory = f64::from(128 << 20);
    let (split, write, read) = (0.05 + 35e6 / 100e6, 0.1 + memory / 100e6, memory / 100e6);
    // The map that ran at the same time was split, and its remainder was started as a new map.
    assert_near(job.overhead().as_secs_f64(), write + 1.03 + read + split + 1.03, 0.1);
    // The reduce is on hold for 3 s, then needs 1.03 s to start and 1.3 s to read. The last map is
    // done by then.
    assert_near(makespan_s(&outcome, 1) - makespan_s(&calm, 1), 43.0 + 1.03 + read - 44.1, 0.3);
}

#[test]
fn checkpoint_transfer_takes_longer_over_a_narrow_link() {
    // The only reduce of a long job is paused for small jobs that take both reduce slots. The nodes
    // have different speeds, so that the other node is sometimes free first. The checkpoint is then
    // transferred to that node, over a link of 20 MB/s or 125 MB/s.
    let run = |nic: f64| {
        let mut setup = Setup::even(2, PerPhase { map: 2, reduce: 1 }, "fcs");
        setup.checked = true;
        setup.machines.iter_mut().for_each(|machine| machine.nic = nic);
        setup.machines[0].speed = 0.4;
        setup.params = [("fcs.skips", "0"), ("fcs.newly_launched", "0s")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let small = (0..6).map(|number| job(25.0 + f64::from(number) * 11.0, 2, 2));
        play(setup, workload(std::iter::once(job(0.0, 30, 1)).chain(small).collect()))
    };
    let (wide, narrow) = (run(125e6), run(20e6));
    let moved =
        |outcome: &Outcome| outcome.metrics.jobs().map(|(_, job)| job.preemption.migrations).sum::<u32>();
    let overhead = |outcome: &Outcome| figures(outcome, 1).restarting.as_secs_f64();
    assert!(moved(&wide) > 0 && moved(&narrow) > 0);
    assert!(overhead(&narrow) / f64::from(moved(&narrow)) > overhead(&wide) / f64::from(moved(&wide)));
}

#[test]
fn maps_of_a_node_share_its_disk() {
    // Two maps of 100 MB at 10 MB/s, each with 50 MB of output, fit into a disk of 30 MB/s only if
    // the output stays in memory.
    let run = |disk: f64, cache: u64| {
        let mut setup = setup(1);
        setup.machines.iter_mut().for_each(|machine| (machine.disk, machine.cache) = (disk, cache));
        setup.costs.memory = 1 << 40;
        play(setup, workload(vec![job(0.0, 2, 0), job(100.0, 8, 1)]))
    };
    let fast = run(1e9, 1 << 40);
    // The output of a job without reduces is always written: 2 x 15 MB/s.
    assert_near(makespan_s(&run(30e6, 1 << 40), 1), makespan_s(&fast, 1), 0.05);
    assert_near(makespan_s(&run(15e6, 1 << 40), 1), makespan_s(&fast, 1) + 10.0, 0.2);
    // The map outputs of the second job are written only if the cache is full.
    let (cached, written) = (run(20e6, 1 << 40), run(20e6, 0));
    assert_near(makespan_s(&cached, 2), makespan_s(&fast, 2), 3.0);
    assert!(makespan_s(&written, 2) > makespan_s(&cached, 2) + 10.0);
}

#[test]
fn tasks_with_memory_leave_less_for_cached_files() {
    // Eight maps with 50 MB of output each, then a reduce, on a machine with 1 GB for tasks and files.
    let run = |slots: u32, task_memory: u64| {
        let mut setup = setup(1);
        let machine = &mut setup.machines[0];
        (machine.disk, machine.cache, machine.task_memory) = (20e6, 1000 * MB, task_memory);
        machine.slots = PerPhase { map: slots, reduce: 1 };
        let mut workload = workload(vec![job(0.0, 8, 1)]);
        workload.jobs[0].slow_start = 1.0;
        makespan_s(&play(setup, workload), 1)
    };
    // Without memory of tasks, and with little of it, the cache holds all files.
    assert_near(run(8, 10 * MB), run(8, 0), 0.01);
    // Two tasks of 300 MB leave 400 MB, four leave nothing.
    assert_near(run(2, 300 * MB), run(2, 0), 0.01);
    assert!(run(4, 300 * MB) > run(4, 0) + 5.0, "{} s, {} s without", run(4, 300 * MB), run(4, 0));
}

#[test]
fn spilled_data_of_reduces_needs_cache_where_tasks_have_memory() {
    // 200 MB of map outputs fit into 300 MB. The reduce spills the same amount.
    let run = |task_memory: u64| {
        let mut setup = setup(1);
        let machine = &mut setup.machines[0];
        (machine.disk, machine.cache, machine.task_memory) = (10e6, 300 * MB, task_memory);
        setup.costs.memory = 0;
        let mut workload = workload(vec![job(0.0, 4, 1)]);
        workload.jobs[0].slow_start = 1.0;
        makespan_s(&play(setup, workload), 1)
    };
    // A quarter of the 200 MB is read from a disk of 10 MB/s that also writes the output.
    assert_near(run(1), run(0) + 5.0, 0.3);
}

#[test]
fn computing_tasks_of_a_node_share_its_cores() {
    let run = |cores: f64, maps: u32| {
        let mut setup = setup(1);
        setup.machines[0].cores = cores;
        makespan_s(&play(setup, workload(vec![job(0.0, maps, 0)])), 1)
    };
    // A map computes for 10 s. One core is enough for one map, and half of what two maps need.
    let own = run(f64::INFINITY, 2);
    assert_near(run(2.0, 2), own, 0.05);
    assert_near(run(1.0, 1), own, 0.05);
    assert_near(run(1.0, 2), own + 10.0, 0.6);
    assert_near(run(0.5, 1), own + 10.0, 0.6);
    // The third map runs alone when the others have ended.
    assert_near(run(1.0, 3), own + 10.0 + 11.0, 0.6);
}

#[test]
fn shuffle_from_few_nodes_is_limited_by_their_links() {
    // The input, and therefore the map outputs, are on node 0 only.
    let run = |nic: f64, at: usize| {
        let mut setup = setup(3);
        (setup.replication, setup.output_replication) = (1, 1);
        for (node, machine) in setup.machines.iter_mut().enumerate() {
            let (maps, reduces) = (u32::from(node == 0) * 2, u32::from(node == at));
            (machine.slots, machine.nic) = (PerPhase { map: maps, reduce: reduces }, nic);
        }
        let mut workload = workload(vec![job(0.0, 4, 1)]);
        workload.jobs[0].slow_start = 1.0;
        workload.jobs[0].hosts = vec![vec![0]; 4];
        play(setup, workload)
    };
    let (near, far) = (makespan_s(&run(10e6, 0), 1), makespan_s(&run(10e6, 1), 1));
    assert_near(far - near, 200e6 / 10e6 - 200e6 / 80e6, 1.5);
    assert_near(makespan_s(&run(1e9, 1), 1), near, 0.5);
}
