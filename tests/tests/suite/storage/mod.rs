//! The storage-fault matrix on the real daemons: faults of disks on one machine at a time, and a
//! different fault on every machine at once.
//!
//! A known set of files is written first. Gets, puts and a job continue during the fault. For every
//! fault, checks that no wrong byte is ever read, that no acknowledged data is lost without a
//! message, that every block with a good replica is served, and that the file system is healthy
//! afterwards. Each row is printed as a line of the table in docs/operate/storage-faults.md.

mod faults;
mod work;

use faults::{Fault, InjectedFault, Machine, Master};
use fermata_tests::{Cluster, Up, copy_folder, eventually};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};
use work::{Known, Served, Work};

/// Settings with which reads go through the DataNodes, the scrubber reads everything every two
/// seconds, and the masters make a snapshot every few records. Nodes that are slow on a busy
/// machine are not declared dead, and calls do not fail because of them.
const SETTINGS: &str = "[namenode]\nheartbeat = \"200ms\"\nsuspect_after = \"3s\"\ndead_after = \"10s\"\n\
     snapshot_bytes = \"4KiB\"\n\
     [jobtracker]\nheartbeat = \"200ms\"\nsuspect_after = \"3s\"\nlost_after = \"10s\"\nsnapshot_bytes = \"4KiB\"\n\
     [datanode]\nscrub_rate = \"256MiB\"\nscrub_period = \"2s\"\n\
     [client]\ndeadline = \"20s\"\nshort_circuit = false\n";

fn cluster(nodes: u32, replication: u32) -> (Arc<Cluster>, Known) {
    let cluster = Cluster::up(Up { nodes, replication, settings: SETTINGS, ..Up::default() });
    let known = Known::put(&cluster);
    (Arc::new(cluster), known)
}

/// When a fault was detected, and the log line about it.
struct Detection {
    detected: Duration,
    message: String,
}

/// Waits until a log has a line about the fault.
fn await_detection(
    cluster: &Cluster,
    fault: Fault,
    machine: Machine,
    before: &faults::Logs,
    begun: Instant,
) -> Detection {
    let message = eventually(&format!("{fault} of {machine} is detected"), || {
        before.line_since(cluster, machine, fault)
    });
    Detection { detected: begun.elapsed(), message }
}

/// Waits until the file system is healthy: every block has its replicas, and none is damaged.
fn await_health(cluster: &Cluster) {
    let ran = cluster.try_mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    assert_eq!(ran.code, 0, "fsck after a minute: {}{}", ran.stdout, ran.stderr);
}

fn print_row(fault: Fault, machine: &str, seen: &Detection, served: &Served, whole: Duration) {
    println!(
        "| {fault} | {machine} | {:.1} s: {} | {served} | {:.1} s |",
        seen.detected.as_secs_f64(),
        seen.message,
        whole.as_secs_f64()
    );
}

/// Tests one fault of the disk of a DataNode. Skipped without strace.
fn node_row(cluster: &Arc<Cluster>, known: &Known, fault: Fault, number: u32) {
    let machine = Machine::Node(number);
    let before = faults::Logs::now(cluster);
    let work = Work::begin(cluster, known);
    let begun = Instant::now();
    let mut used = BTreeSet::new();
    let Some(injected) = InjectedFault::inject(cluster, known, fault, machine, &mut used) else {
        work.end();
        return;
    };
    let seen = await_detection(cluster, fault, machine, &before, begun);
    // Lets the fault continue for a while after its detection.
    work.rounds(6);
    drop(injected);
    let fault_removed = Instant::now();
    faults::restart_daemons(cluster, machine);
    let served = work.end();
    assert_eq!(served.gets_failed, 0, "{fault} of {machine}: a file with a good replica was not served");
    assert_eq!(served.puts_failed, 0, "{fault} of {machine}: the other nodes did not accept a new file");
    known.check(cluster, &served.acknowledged);
    await_health(cluster);
    print_row(fault, &machine.to_string(), &seen, &served, fault_removed.elapsed());
}

/// Tests one fault of the disk of a running master. Checks that the master acknowledges nothing
/// that is not durable.
fn running_master_row(cluster: &Arc<Cluster>, known: &Known, fault: Fault, master: Master) {
    let machine = Machine::Master(master);
    let before = faults::Logs::now(cluster);
    let work = Work::begin(cluster, known);
    let begun = Instant::now();
    let mut used = BTreeSet::new();
    let Some(injected) = InjectedFault::inject(cluster, known, fault, machine, &mut used) else {
        work.end();
        return;
    };
    faults::provoke(cluster, master);
    let seen = await_detection(cluster, fault, machine, &before, begun);
    drop(injected);
    let fault_removed = Instant::now();
    faults::restart_daemons(cluster, machine);
    let served = work.end();
    known.check(cluster, &served.acknowledged);
    await_health(cluster);
    print_row(fault, &machine.to_string(), &seen, &served, fault_removed.elapsed());
}

/// Tests one fault in the files of a master before its start. Checks that the master refuses to
/// start until the operator accepts the loss, or that it has lost nothing.
fn starting_master_row(cluster: &Arc<Cluster>, known: &Known, fault: Fault, master: Master) {
    let machine = Machine::Master(master);
    let before = faults::Logs::now(cluster);
    let work = Work::begin(cluster, known);
    work.rounds(3);
    let sacrificed = faults::provoke(cluster, master);
    let begun = Instant::now();
    faults::kill(cluster, master);
    faults::damage(cluster, fault, master);
    let recovered = faults::start_or_recover(cluster, master);
    assert!(!recovered || fault != Fault::Snapshot, "the {machine} did not start from its older snapshot");
    let seen = await_detection(cluster, fault, machine, &before, begun);
    let served = work.end_after(recovered);
    if !recovered {
        // If no recovery was necessary, nothing may be missing.
        known.check(cluster, &served.acknowledged);
        faults::assert_folders_exist(cluster, &sacrificed);
    }
    known.check_or_missing(cluster, &served.acknowledged, recovered);
    await_health(cluster);
    let how = if recovered { "refused to start, then --recover" } else { "started" };
    print_row(fault, &format!("{machine} ({how})"), &seen, &served, begun.elapsed());
}

/// Restores an older copy of the JobTracker folder. Checks that the JobTracker refuses to start
/// with it, also at the second attempt, that it starts with `--recover`, and that new jobs have new
/// IDs and their own output.
fn restored_jobtracker_row(cluster: &Arc<Cluster>, known: &Known) {
    let folder = cluster.path(".fermata/data/jobtracker");
    let copy = cluster.path("jobtracker.copy");
    faults::kill(cluster, Master::JobTracker);
    copy_folder(&folder, &copy);
    faults::start(cluster, Master::JobTracker);
    let written = Work::begin(cluster, known).end();
    let job_ids = || -> BTreeSet<String> {
        let jobs = cluster.json(&["jobs"]);
        jobs.as_array().unwrap().iter().map(|job| job["job"].to_string()).collect()
    };
    let assigned = job_ids();
    let before = faults::Logs::now(cluster);
    let begun = Instant::now();
    faults::kill(cluster, Master::JobTracker);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(&copy, &folder).unwrap();
    for _ in 0..2 {
        faults::assert_start_refused(cluster, Master::JobTracker, "an older copy of its folder");
    }
    let machine = Machine::Master(Master::JobTracker);
    let seen = await_detection(cluster, Fault::StaleRestore, machine, &before, begun);
    cluster.recover("jobtracker", |_| {});
    faults::start(cluster, Master::JobTracker);
    let kept = job_ids();
    assert!(kept.is_subset(&assigned) && kept != assigned, "not an older copy: {kept:?} of {assigned:?}");
    // Runs a job, and compares its output with the correct output.
    let served = Work::begin(cluster, known).end();
    let new: BTreeSet<String> = job_ids().difference(&kept).cloned().collect();
    assert!(!new.is_empty() && new.is_disjoint(&assigned), "an ID was assigned again: {new:?}");
    known.check(cluster, &written.acknowledged);
    known.check(cluster, &served.acknowledged);
    await_health(cluster);
    let how = "jobtracker (refused to start, then --recover)";
    print_row(Fault::StaleRestore, how, &seen, &served, begun.elapsed());
}

/// Restores an older copy of the NameNode folder while a DataNode is down. Checks that newer data
/// is never read as the data of another file.
fn restored_namenode_row(cluster: &Arc<Cluster>, known: &Known) {
    let fault = Fault::StaleRestore;
    let folder = cluster.path(".fermata/data/namenode");
    let (copy, newest) = (cluster.path("namenode.copy"), cluster.path("namenode.newest"));
    faults::kill(cluster, Master::NameNode);
    copy_folder(&folder, &copy);
    faults::start(cluster, Master::NameNode);
    let work = Work::begin(cluster, known);
    work.rounds(6);
    let written = work.end();
    let before = faults::Logs::now(cluster);
    let begun = Instant::now();
    cluster.mrctl(&["chaos", "kill", "node3", "--daemon", "datanode"]);
    faults::kill(cluster, Master::NameNode);
    std::fs::rename(&folder, &newest).unwrap();
    copy_folder(&copy, &folder);
    let started = cluster.try_mrctl(&["chaos", "restart", "namenode"]).code == 0;
    let seen = await_detection(cluster, fault, Machine::Master(Master::NameNode), &before, begun);
    let work = Work::begin(cluster, known);
    work.rounds(4);
    // The DataNode runs, but it also refuses the older NameNode, so it does not serve yet.
    let back = cluster.try_mrctl(&["chaos", "restart", "node3", "--daemon", "datanode"]);
    assert!(back.code == 0 || back.stderr.contains("an older NameNode runs"), "{}", back.stderr);
    work.rounds(2);
    // All bytes that were read were correct. With the newest folder all files exist again.
    if started {
        faults::kill(cluster, Master::NameNode);
    }
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(&newest, &folder).unwrap();
    faults::start(cluster, Master::NameNode);
    eventually("the datanodes are back", || {
        (cluster.try_mrctl(&["fs", "fsck", "/", "--wait", "5s"]).code == 0).then_some(())
    });
    let served = work.end();
    known.check(cluster, &written.acknowledged);
    known.check(cluster, &served.acknowledged);
    print_row(fault, "namenode, node3 down", &seen, &served, begun.elapsed());
}

const NODE_FAULTS: [Fault; 6] = [
    Fault::ReadError,
    Fault::WriteError,
    Fault::NoSpace,
    Fault::SyncError,
    Fault::RotInData,
    Fault::RotInChecksums,
];
const RUNNING_MASTER_FAULTS: [Fault; 3] = [Fault::WriteError, Fault::NoSpace, Fault::SyncError];
const STARTING_MASTER_FAULTS: [Fault; 4] =
    [Fault::JournalTail, Fault::JournalMiddle, Fault::Snapshot, Fault::MissingSegment];

/// Injects a different fault on every machine at once.
#[test]
fn different_storage_faults_on_all_machines_lose_no_data() {
    let (cluster, known) = cluster(4, 3);
    let node_faults =
        [(Fault::ReadError, 1), (Fault::RotInData, 2), (Fault::RotInChecksums, 3), (Fault::SyncError, 4)];
    let before = faults::Logs::now(&cluster);
    let work = Work::begin(&cluster, &known);
    let begun = Instant::now();
    let (mut injected, mut used) = (Vec::new(), BTreeSet::new());
    for (fault, number) in node_faults {
        let machine = Machine::Node(number);
        let Some(one) = InjectedFault::inject(&cluster, &known, fault, machine, &mut used) else {
            work.end();
            return;
        };
        injected.push(one);
    }
    let mut rows = Vec::new();
    for (fault, number) in node_faults {
        let machine = Machine::Node(number);
        rows.push((fault, machine, await_detection(&cluster, fault, machine, &before, begun)));
    }
    work.rounds(4);
    // So far there were only reads and writes of files, and all must be served.
    let served = work.end();
    assert_eq!(served.gets_failed, 0, "a file with a good replica was not served");
    let work = Work::begin(&cluster, &known);
    let master_faults = [(Fault::Snapshot, Master::NameNode), (Fault::JournalTail, Master::JobTracker)];
    let mut recovered = false;
    for (fault, master) in master_faults {
        faults::provoke(&cluster, master);
        faults::kill(&cluster, master);
        faults::damage(&cluster, fault, master);
        recovered |= faults::start_or_recover(&cluster, master) && master == Master::NameNode;
        let machine = Machine::Master(master);
        rows.push((fault, machine, await_detection(&cluster, fault, machine, &before, begun)));
    }
    drop(injected);
    let fault_removed = Instant::now();
    for number in 1..=4 {
        faults::restart_daemons(&cluster, Machine::Node(number));
    }
    let later = work.end();
    known.check(&cluster, &served.acknowledged);
    known.check_or_missing(&cluster, &later.acknowledged, recovered);
    await_health(&cluster);
    for (fault, machine, seen) in &rows {
        print_row(*fault, &machine.to_string(), seen, &served, fault_removed.elapsed());
    }
}

/// Tests the part of the matrix that runs with every build: one row for each way in which a fault
/// appears.
#[test]
fn storage_fault_of_one_machine_at_a_time_loses_no_data() {
    let (cluster, known) = cluster(3, 2);
    // These rows need no strace.
    starting_master_row(&cluster, &known, Fault::JournalTail, Master::NameNode);
    starting_master_row(&cluster, &known, Fault::MissingSegment, Master::NameNode);
    restored_jobtracker_row(&cluster, &known);
    for (fault, number) in [(Fault::ReadError, 1), (Fault::WriteError, 2)] {
        node_row(&cluster, &known, fault, number);
    }
}

/// Tests every row on every machine.
#[test]
#[ignore = "minutes: scripts/long-tests the_whole_storage_matrix"]
fn the_whole_storage_matrix_loses_no_data() {
    let (cluster, known) = cluster(3, 2);
    for fault in NODE_FAULTS {
        for number in 1..=3 {
            node_row(&cluster, &known, fault, number);
        }
    }
    for master in [Master::NameNode, Master::JobTracker] {
        for fault in RUNNING_MASTER_FAULTS {
            running_master_row(&cluster, &known, fault, master);
        }
    }
    restored_namenode_row(&cluster, &known);
    restored_jobtracker_row(&cluster, &known);
    for master in [Master::NameNode, Master::JobTracker] {
        for fault in STARTING_MASTER_FAULTS {
            starting_master_row(&cluster, &known, fault, master);
        }
    }
}
