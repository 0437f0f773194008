//! The durable half of a cluster as text. Two clusters with the same facts have the same digest.
//!
//! Hosts and racks are printed by name, because their IDs depend on the order of assignment.
//! Tests compare a cluster with one that was replayed from a snapshot of its journal.

use crate::{
    cluster::Durable,
    ids::HostId,
    job::Job,
    phase::Phase,
    task::{Attempt, Task},
};
use std::{
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

/// Returns the digest of the durable half of a cluster.
pub fn digest(cluster: &Durable) -> String {
    let mut out = format!("epoch {} newest job {}\n", cluster.epoch(), cluster.newest_job().0);
    for phase in Phase::BOTH {
        let _ = writeln!(out, "{phase} slots {}", cluster.slots(phase));
    }
    for tracker in cluster.trackers() {
        let _ = writeln!(
            out,
            "{} {} {:?} {} {} {} {} {:?} {:?} {:?} {:?} {:?}",
            tracker.id,
            tracker.name,
            tracker.incarnation,
            cluster.host_name(tracker.host),
            cluster.rack_name(tracker.rack),
            tracker.shuffle_addr,
            tracker.logs_addr,
            tracker.slots,
            tracker.state,
            tracker.running,
            tracker.checkpoints,
            tracker.drain
        );
    }
    for job in cluster.jobs() {
        describe_job(cluster, job, &mut out);
    }
    let _ = writeln!(out, "{:?}", cluster.answers());
    out
}

fn describe_job(cluster: &Durable, job: &Job, out: &mut String) {
    let by_request = cluster.job_of_request(job.request);
    let _ = writeln!(out, "{} {:?} {by_request:?} {:?}", job.id, job.state, job.spec);
    // The token is secret, so only its hash is printed.
    let mut token = DefaultHasher::new();
    job.spec.payload.shuffle_token.bytes().hash(&mut token);
    let _ = writeln!(out, " token {:x}", token.finish());
    let _ = writeln!(out, " {} {:?} {:?} {:?}", job.submitted, job.first_launch, job.maps_done, job.ended);
    let _ = writeln!(out, " {:?} {:?} {:?} {:?}", job.running, job.succeeded, job.task_time, job.failures);
    let _ = writeln!(out, " {:?}", job.reduce_times);
    let _ = writeln!(out, " {:?} {:?} {:?}", job.counters, job.blacklist, job.map_events);
    let _ = writeln!(out, " {:?}", job.preemption);
    for phase in Phase::BOTH {
        let _ = writeln!(out, " {phase}s wait: {:?}", job.pending[phase].iter().collect::<Vec<_>>());
        for task in &job.tasks[phase] {
            describe_task(cluster, job, task, out);
        }
    }
}

fn describe_task(cluster: &Durable, job: &Job, task: &Task, out: &mut String) {
    let pending = &job.pending[task.id.phase];
    let is_pending_on = |host: &&HostId| pending.on_host(**host).any(|at| at == task.id.index);
    let mut hosts: Vec<(&str, bool)> =
        task.hosts.iter().map(|host| (cluster.host_name(*host), is_pending_on(&host))).collect();
    hosts.sort_unstable();
    let Task {
        id,
        root,
        start,
        end,
        done_by,
        failures,
        unfetched,
        interruptions,
        checkpoint,
        saved_work,
        on_hold,
        avoided_trackers,
        ..
    } = task;
    let _ = writeln!(
        out,
        "  {id} of {root} {start}..{end} {hosts:?} {done_by:?} {failures} {unfetched} {interruptions} {checkpoint:?} {saved_work:?} {on_hold} {avoided_trackers:?}"
    );
    for attempt in &task.attempts {
        let Attempt {
            id,
            tracker,
            output_on,
            checkpoint_on,
            state,
            launched,
            last_order,
            ended,
            speculative,
            result,
            why,
            error,
            prior_work,
            hold_requested,
            preempt_deadline,
            refusals,
            work_done,
            preempt_request,
            ..
        } = attempt;
        let _ = writeln!(
            out,
            "   {id} {tracker} {output_on} {checkpoint_on:?} {state:?} {launched} {last_order} {ended:?} {speculative} {result:?} {why} {error:?} \
             {prior_work:?} {hold_requested} {preempt_deadline:?} {refusals} {work_done:?} {preempt_request:?}"
        );
    }
}
