//! Invariants of a cluster, which hold after every event. Tests and simulations call [`check`]. It
//! visits the whole cluster, so the daemons do not call it.
//!
//! The numbers in this module and in [`crate::trace_checker`] name the same invariants.

use crate::{
    cluster::Cluster,
    ids::{AttemptId, TrackerId},
    job::{Job, JobOutcome, JobState, MapEvent},
    pending::PendingTasks,
    phase::Phase,
    task::{AttemptState, INTERRUPTIONS_MAX, Task, Work},
    tracker::TrackerState,
};
use std::collections::{BTreeMap, BTreeSet};

/// Checks all invariants. The error describes the first violation.
pub fn check(cluster: &Cluster) -> Result<(), String> {
    cluster.jobs().try_for_each(|job| check_job(cluster, job))?;
    check_trackers(cluster)?;
    cluster.check_names()
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn check_job(cluster: &Cluster, job: &Job) -> Result<(), String> {
    let id = job.id;
    for phase in Phase::BOTH {
        let mut pending = PendingTasks::default();
        let mut running = BTreeSet::new();
        let mut done = 0;
        for task in &job.tasks[phase] {
            let live: Vec<_> = task.live_attempts().collect();
            running.extend(live.iter().map(|attempt| attempt.id));
            let waits = job.is_running() && task.is_pending(job.spec.attempts_max);
            if waits {
                pending.insert(task.id.index, &task.hosts);
            }
            if task.is_done() {
                done += 1;
                // 1: at most one attempt counts, and it has succeeded.
                let winner = task
                    .winning_attempt()
                    .ok_or_else(|| format!("{} is done, but it has no winning attempt", task.id))?;
                ensure(winner.state == AttemptState::Succeeded && winner.result.is_some(), || {
                    format!(
                        "{} is done, but its winning attempt {} is {:?} {} a result",
                        task.id,
                        winner.id,
                        winner.state,
                        if winner.result.is_some() { "with" } else { "without" }
                    )
                })?;
            }
            // 7: only failures count towards the maximum number of attempts.
            let failed = task.attempts.iter().filter(|attempt| attempt.state == AttemptState::Failed).count();
            ensure(failed == task.failures as usize, || {
                format!(
                    "{} has {failed} failed attempts, but {} failures are counted",
                    task.id, task.failures
                )
            })?;
            let within = job.has_ended() || task.is_done() || task.failures < job.spec.attempts_max;
            ensure(within, || {
                format!("{} continues after {} failures, the maximum of its job", task.id, task.failures)
            })?;
            ensure(job.has_ended() || task.interruptions < INTERRUPTIONS_MAX, || {
                format!("{} continues after {} interruptions", task.id, task.interruptions)
            })?;
            // The result of an attempt whose range differs from that of its task would not count.
            let outdated = task.viable_attempts().find(|attempt| attempt.end != task.end);
            ensure(outdated.is_none(), || {
                format!("{} has a viable attempt whose range was split since", task.id)
            })?;
            ensure(!task.on_hold || (phase == Phase::Reduce && job.is_running()), || {
                format!("{} is on hold, but is not a reduce of a running job", task.id)
            })?;
            let viable = task.viable_attempts().count();
            ensure(viable <= 2, || format!("{} has {viable} viable attempts, the maximum is 2", task.id))?;
        }
        ensure(pending == job.pending[phase], || {
            format!("{id}: the list of pending {phase}s does not match the tasks")
        })?;
        ensure(running == job.running[phase], || {
            format!("{id}: the list of running {phase}s does not match the attempts")
        })?;
        ensure(done == job.succeeded[phase], || {
            format!("{id}: {done} {phase}s are done, but {} are counted", job.succeeded[phase])
        })?;
    }
    // 2: a job is committed only when all its tasks are done, and they stay done.
    let complete = job.is_done(Phase::Map) && job.is_done(Phase::Reduce);
    let committed = matches!(job.state, JobState::Committing | JobState::Ended(JobOutcome::Succeeded));
    ensure(!committed || complete, || format!("{id} is {:?}, but not all its tasks are done", job.state))?;
    check_sums(job)?;
    check_work(job)?;
    check_ranges(job)?;
    check_checkpoints(cluster, job)?;
    let active = cluster.active_jobs().any(|active| active.id == id);
    ensure(active == job.is_running(), || {
        format!("{id}: the job is running but not in the list of active jobs, or the reverse")
    })?;
    check_map_events(job)
}

/// Checks that the ranges of the tasks of each split are disjoint and together cover the split.
fn check_ranges(job: &Job) -> Result<(), String> {
    let mut by_root: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for task in &job.tasks.map {
        by_root.entry(task.root).or_default().push((task.start, task.end));
    }
    for (root, mut ranges) in by_root {
        ranges.sort_unstable();
        let split =
            job.spec.splits.get(root as usize).ok_or_else(|| {
                format!("{}: a map has the root split {root}, which does not exist", job.id)
            })?;
        let (mut at, mut complete) = (split.start, true);
        for (start, end) in &ranges {
            complete &= *start == at;
            at = *end;
        }
        ensure(complete && at == split.end, || {
            format!("{}: the ranges {ranges:?} of the maps of split {root} do not cover it exactly", job.id)
        })?;
    }
    Ok(())
}

/// Checks that every checkpoint belongs to a paused attempt of a task that is not done, and that
/// the tracker that is recorded for the checkpoint has it.
fn check_checkpoints(cluster: &Cluster, job: &Job) -> Result<(), String> {
    for task in &job.tasks.reduce {
        let Some(checkpoint) = task.checkpoint else { continue };
        let id = checkpoint.attempt;
        let paused = cluster.attempt(id).is_some_and(|attempt| attempt.state == AttemptState::Paused);
        // While a task is on hold, its lost tracker may come back with the checkpoint.
        let present = cluster.tracker(checkpoint.tracker).is_some_and(|tracker| {
            (tracker.state != TrackerState::Lost || task.is_on_hold()) && tracker.checkpoints.contains(&id)
        });
        ensure(paused && (present || job.has_ended()) && !task.is_done(), || {
            format!("{id}: its checkpoint is not on the recorded tracker, or is no longer needed")
        })?;
    }
    Ok(())
}

/// Checks that saved and lost work together are the work of all preempted attempts, and that saved
/// work is the work in results and checkpoints.
fn check_work(job: &Job) -> Result<(), String> {
    let tasks = || Phase::BOTH.into_iter().flat_map(|phase| &job.tasks[phase]);
    let work_done = tasks().flat_map(|task| &task.attempts).filter_map(|attempt| attempt.work_done);
    let (work_done, saved_work) = (sum(work_done), sum(tasks().map(|task| task.saved_work)));
    let cost = &job.preemption;
    let counted_as_saved = Work { bytes: cost.bytes_saved, time: cost.time_saved };
    ensure(work_done == cost.total_work() && saved_work == counted_as_saved, || {
        format!(
            "{}: the preemption counts are {cost:?}, but preempted attempts have done {work_done:?}, of which {saved_work:?} is saved",
            job.id
        )
    })
}

fn sum(all: impl Iterator<Item = Work>) -> Work {
    all.fold(Work::default(), |sum, work| sum + work)
}

/// Checks that the counters of a job are the sums over the attempts whose results count.
fn check_sums(job: &Job) -> Result<(), String> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let winners =
        Phase::BOTH.into_iter().flat_map(|phase| &job.tasks[phase]).filter_map(Task::winning_attempt);
    for (name, value) in
        winners.filter_map(|winner| winner.result.as_ref()).flat_map(|result| &result.counters)
    {
        *sums.entry(name).or_default() += value;
    }
    let counted = job.counters.iter().filter(|(_, value)| **value > 0);
    let counted: BTreeMap<&str, u64> = counted.map(|(name, value)| (name.as_str(), *value)).collect();
    sums.retain(|_, value| *value > 0);
    ensure(sums == counted, || {
        format!("{}: the counters are {counted:?}, but the sums over the results are {sums:?}", job.id)
    })
}

/// Checks that the map events match the maps that are done.
fn check_map_events(job: &Job) -> Result<(), String> {
    if job.spec.reduces == 0 {
        return Ok(());
    }
    let mut available = BTreeSet::new();
    for event in &job.map_events {
        match event {
            MapEvent::Available(attempt, _) => available.insert(*attempt),
            MapEvent::Withdrawn(attempt) => available.remove(attempt),
        };
    }
    let done: BTreeSet<AttemptId> =
        job.tasks.map.iter().filter_map(|task| task.winning_attempt()).map(|attempt| attempt.id).collect();
    ensure(available == done, || format!("{}: map events do not match the finished maps", job.id))
}

fn check_trackers(cluster: &Cluster) -> Result<(), String> {
    for phase in Phase::BOTH {
        let mut slots = 0;
        let free: BTreeSet<TrackerId> = cluster.free_trackers(phase).collect();
        for tracker in cluster.trackers() {
            let (id, running) = (tracker.id, &tracker.running[phase]);
            // 4: no more slots are used than exist, and each used slot belongs to a running
            // attempt.
            ensure(running.len() <= tracker.slots[phase] as usize, || {
                format!("{id}: {} attempts run in {} {phase} slots", running.len(), tracker.slots[phase])
            })?;
            for attempt in running {
                let here = cluster
                    .attempt(*attempt)
                    .is_some_and(|attempt| attempt.tracker == id && attempt.state.holds_slot());
                ensure(here, || {
                    format!("{id}: {attempt} is listed as running, but does not hold a slot of this tracker")
                })?;
            }
            for attempt in &tracker.checkpoints {
                let task = cluster.task(attempt.task).and_then(|task| task.checkpoint);
                ensure(task.is_some_and(|checkpoint| checkpoint.attempt == *attempt), || {
                    format!("{id}: the tracker has the checkpoint of {attempt}, which no task needs")
                })?;
            }
            let lost = tracker.state == TrackerState::Lost;
            ensure(!lost || running.is_empty(), || {
                format!("{id}: the tracker is lost, but attempts run on it")
            })?;
            slots += tracker.capacity()[phase];
            ensure(free.contains(&id) == (cluster.free_slots(tracker, phase) > 0), || {
                format!("{id}: the list of trackers with free slots does not match its free slots")
            })?;
        }
        ensure(slots == cluster.slots(phase), || {
            format!("the trackers have {slots} {phase} slots, but {} are counted", cluster.slots(phase))
        })?;
    }
    for job in cluster.jobs() {
        for attempt in Phase::BOTH.into_iter().flat_map(|phase| &job.running[phase]) {
            let on = cluster.attempt(*attempt).and_then(|attempt| cluster.tracker(attempt.tracker));
            let running = on.is_some_and(|tracker| tracker.running[attempt.phase()].contains(attempt));
            ensure(running, || format!("{attempt} runs, but its tracker does not list it in a slot"))?;
        }
    }
    Ok(())
}
