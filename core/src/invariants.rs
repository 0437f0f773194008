//! What must hold of a cluster after every event, as a function (numbers as in the list of invariants in the
//! reliability notes). Tests and simulations call it; it looks at everything, so daemons do not.

use crate::{
    cluster::{Cluster, PendingTasks},
    ids::AttemptId,
    job::{Job, JobOutcome, JobState, MapEvent},
    phase::Phase,
    task::{AttemptState, Task, Work},
    tracker::TrackerState,
};
use std::collections::{BTreeMap, BTreeSet};

/// The first thing that is wrong, in words.
pub fn check(cluster: &Cluster) -> Result<(), String> {
    cluster.jobs().try_for_each(|job| check_job(cluster, job))?;
    check_trackers(cluster)?;
    check_names(cluster)
}

fn ensure(hold_requested: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if hold_requested { Ok(()) } else { Err(what()) }
}

fn check_job(cluster: &Cluster, job: &Job) -> Result<(), String> {
    let id = job.id;
    for phase in Phase::BOTH {
        let mut pending = PendingTasks::default();
        let mut running = BTreeSet::new();
        let mut done = 0;
        for task in &job.tasks[phase] {
            let live: Vec<_> = task.live().collect();
            running.extend(live.iter().map(|attempt| attempt.id));
            let waits = job.is_running() && task.waits();
            if waits {
                pending.insert(task.id.index, &task.hosts);
            }
            if task.is_done() {
                done += 1;
                // 1: at most one attempt counts, and it is one that succeeded.
                let winner = task.winner().ok_or_else(|| format!("{}: done by nobody", task.id))?;
                ensure(winner.state == AttemptState::Succeeded && winner.result.is_some(), || {
                    format!("{}: done by {} which is {:?}", task.id, winner.id, winner.state)
                })?;
            }
            // 7: only failures use the budget.
            let failed = task.attempts.iter().filter(|attempt| attempt.state == AttemptState::Failed).count();
            ensure(failed == task.failures as usize, || {
                format!("{}: {failed} failed attempts, {} counted", task.id, task.failures)
            })?;
            let within = job.is_over() || task.is_done() || task.failures < job.spec.attempts_max;
            ensure(within, || format!("{}: continues after {} failures", task.id, task.failures))?;
            // An attempt of another range than its task's brings nothing.
            let strays = task.viable().find(|attempt| attempt.end != task.end);
            ensure(strays.is_none(), || format!("{}: tries at a range that was divided", task.id))?;
            ensure(!task.on_hold || (phase == Phase::Reduce && job.is_running()), || {
                format!("{}: on hold, and not a reduce of a running job", task.id)
            })?;
            let twins = task.viable().count();
            ensure(twins <= 2, || format!("{}: {twins} attempts at once", task.id))?;
        }
        ensure(pending == job.pending[phase], || format!("{id}: the list of waiting {phase}s is wrong"))?;
        ensure(running == job.running[phase], || format!("{id}: the list of running {phase}s is wrong"))?;
        ensure(done == job.succeeded[phase], || {
            format!("{id}: {done} {phase}s done, {} counted", job.succeeded[phase])
        })?;
    }
    // 2: a job is only ever moved into place with every task done, and stays whole forever.
    let whole = job.is_done(Phase::Map) && job.is_done(Phase::Reduce);
    let moved = matches!(job.state, JobState::Committing | JobState::Ended(JobOutcome::Succeeded));
    ensure(!moved || whole, || format!("{id}: {:?} with tasks undone", job.state))?;
    check_sums(job)?;
    check_work(job)?;
    check_ranges(job)?;
    check_checkpoints(cluster, job)?;
    let active = cluster.active_jobs().any(|active| active.id == id);
    ensure(active == job.is_running(), || format!("{id}: running, but not in the list, or the reverse"))?;
    check_map_events(job)
}

/// The ranges of a split's tasks are disjoint, and together they are the split.
fn check_ranges(job: &Job) -> Result<(), String> {
    let mut by_root: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for task in &job.tasks.map {
        by_root.entry(task.root).or_default().push((task.start, task.end));
    }
    for (root, mut ranges) in by_root {
        ranges.sort_unstable();
        let split =
            job.spec.splits.get(root as usize).ok_or_else(|| format!("{}: no split {root}", job.id))?;
        let (mut at, mut whole) = (split.start, true);
        for (start, end) in &ranges {
            whole &= *start == at;
            at = *end;
        }
        ensure(whole && at == split.end, || format!("{}: split {root} has ranges {ranges:?}", job.id))?;
    }
    Ok(())
}

/// A state checkpointed is of an attempt that was paused, lies where its tracker is thought to have it, and is of a
/// task that is not done.
fn check_checkpoints(cluster: &Cluster, job: &Job) -> Result<(), String> {
    for task in &job.tasks.reduce {
        let Some(checkpoint) = task.checkpoint else { continue };
        let id = checkpoint.attempt;
        let paused = cluster.attempt(id).is_some_and(|attempt| attempt.state == AttemptState::Paused);
        // Somebody holds it: its tracker may come back until they let it go.
        let saved_work = cluster.tracker(checkpoint.tracker).is_some_and(|tracker| {
            (tracker.state != TrackerState::Lost || task.is_on_hold()) && tracker.checkpoints.contains(&id)
        });
        ensure(paused && (saved_work || job.is_over()) && !task.is_done(), || {
            format!("{id}: its state is thought to be where it is not, or of no use")
        })?;
    }
    Ok(())
}

/// What was conserved and lost is what attempts whose slots were preempted have done, and what was conserved is what
/// results and checkpoints are made of.
fn check_work(job: &Job) -> Result<(), String> {
    let tasks = || Phase::BOTH.into_iter().flat_map(|phase| &job.tasks[phase]);
    let work_done = tasks().flat_map(|task| &task.attempts).filter_map(|attempt| attempt.work_done);
    let (work_done, saved_work) = (sum(work_done), sum(tasks().map(|task| task.saved_work)));
    let cost = &job.preemption;
    let conserved = Work { bytes: cost.bytes_saved, time: cost.time_saved };
    ensure(work_done == cost.all() && saved_work == conserved, || {
        format!("{}: {cost:?}, but attempts have done {work_done:?}, of which {saved_work:?} is kept", job.id)
    })
}

fn sum(all: impl Iterator<Item = Work>) -> Work {
    all.fold(Work::default(), |sum, work| sum + work)
}

/// Counters count each record once: the sums are those of the attempts whose results count.
fn check_sums(job: &Job) -> Result<(), String> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let winners = Phase::BOTH.into_iter().flat_map(|phase| &job.tasks[phase]).filter_map(Task::winner);
    for (name, value) in
        winners.filter_map(|winner| winner.result.as_ref()).flat_map(|result| &result.counters)
    {
        *sums.entry(name).or_default() += value;
    }
    let saved_work = job.counters.iter().filter(|(_, value)| **value > 0);
    let saved_work: BTreeMap<&str, u64> = saved_work.map(|(name, value)| (name.as_str(), *value)).collect();
    sums.retain(|_, value| *value > 0);
    ensure(sums == saved_work, || format!("{}: counters {saved_work:?}, the results say {sums:?}", job.id))
}

/// What reducers were told adds up to the maps that are done.
fn check_map_events(job: &Job) -> Result<(), String> {
    if job.spec.reduces == 0 {
        return Ok(());
    }
    let mut told = BTreeSet::new();
    for event in &job.map_events {
        match event {
            MapEvent::Available(attempt, _) => told.insert(*attempt),
            MapEvent::Withdrawn(attempt) => told.remove(attempt),
        };
    }
    let done: BTreeSet<AttemptId> =
        job.tasks.map.iter().filter_map(|task| task.winner()).map(|attempt| attempt.id).collect();
    ensure(told == done, || format!("{}: map events do not match the finished maps", job.id))
}

fn check_trackers(cluster: &Cluster) -> Result<(), String> {
    for phase in Phase::BOTH {
        let mut slots = 0;
        for tracker in cluster.trackers() {
            let (id, on_hold) = (tracker.id, &tracker.running[phase]);
            // 4: slots in use are never more than there are, and each is held by an attempt that says so.
            ensure(on_hold.len() <= tracker.slots[phase] as usize, || {
                format!("{id}: {} attempts in {} {phase} slots", on_hold.len(), tracker.slots[phase])
            })?;
            for attempt in on_hold {
                let here = cluster
                    .attempt(*attempt)
                    .is_some_and(|attempt| attempt.tracker == id && attempt.state.holds_slot());
                ensure(here, || format!("{id}: {attempt} holds a slot and should not"))?;
            }
            for attempt in &tracker.checkpoints {
                let task = cluster.task(attempt.task).and_then(|task| task.checkpoint);
                ensure(task.is_some_and(|checkpoint| checkpoint.attempt == *attempt), || {
                    format!("{id}: holds the checkpoint of {attempt}, which no task needs")
                })?;
            }
            let lost = tracker.state == TrackerState::Lost;
            ensure(!lost || on_hold.is_empty(), || format!("{id}: lost, and yet attempts run on it"))?;
            slots += tracker.capacity()[phase];
            let listed = cluster.free_trackers(phase).contains(&id);
            ensure(listed == (tracker.free(phase) > 0), || {
                format!("{id}: the list of free trackers is wrong")
            })?;
        }
        ensure(slots == cluster.slots(phase), || {
            format!("{slots} {phase} slots, {} counted", cluster.slots(phase))
        })?;
    }
    for job in cluster.jobs() {
        for attempt in Phase::BOTH.into_iter().flat_map(|phase| &job.running[phase]) {
            let on = cluster.attempt(*attempt).and_then(|attempt| cluster.tracker(attempt.tracker));
            let on_hold = on.is_some_and(|tracker| tracker.running[attempt.phase()].contains(attempt));
            ensure(on_hold, || format!("{attempt} runs without a slot"))?;
        }
    }
    Ok(())
}

/// Hosts and racks are known by name as long as a tracker or a job refers to them, and no longer.
fn check_names(cluster: &Cluster) -> Result<(), String> {
    let (mut hosts, mut racks): (BTreeMap<&str, u64>, BTreeMap<&str, u64>) = <_>::default();
    for tracker in cluster.trackers() {
        *hosts.entry(cluster.host_name(tracker.host)).or_default() += 1;
        *racks.entry(cluster.rack_name(tracker.rack)).or_default() += 1;
    }
    for job in cluster.jobs() {
        let cut = &job.tasks.map[..job.spec.splits.len()];
        for host in cut.iter().flat_map(|task| &task.hosts) {
            *hosts.entry(cluster.host_name(*host)).or_default() += 1;
        }
    }
    ensure(hosts == cluster.hosts.uses(), || {
        format!("hosts in use {hosts:?}, counted {:?}", cluster.hosts.uses())
    })?;
    ensure(racks == cluster.racks.uses(), || {
        format!("racks in use {racks:?}, counted {:?}", cluster.racks.uses())
    })?;
    for (host, rack) in &cluster.rack_of {
        let said = cluster.trackers_on(*host).filter_map(|id| cluster.tracker(id)).any(|at| at.rack == *rack);
        let listed = cluster.hosts_in(*rack).is_some_and(|hosts| hosts.contains(host));
        ensure(said && listed, || format!("{}: its rack is that of no tracker", cluster.host_name(*host)))?;
    }
    let listed: usize = cluster.hosts_in.values().map(BTreeSet::len).sum();
    ensure(listed == cluster.rack_of.len() && listed == cluster.trackers_on.len(), || {
        format!("{listed} hosts in racks, {} with one", cluster.rack_of.len())
    })
}
