//! The durable half of the cluster state: exactly what follows from the facts (durable events) in
//! the journal.
//!
//! It changes only through [`Durable::apply`], both for new facts and in replay. Its fields are
//! private to this module and nothing returns a mutable reference, so the compiler enforces this. A
//! replay of the same facts therefore gives an equal durable half; the random tests compare the two
//! after every event.
//!
//! What only trackers report and no fact covers, such as progress and the time of the last
//! heartbeat, is in `volatile`.

mod answers;
mod apply;
mod check;
mod names;
mod outputs;
mod preempt;

pub use answers::Answers;
pub use apply::ApplyError;
pub use preempt::NotPreemptible;

use super::Locality;
use crate::{
    ids::{AttemptId, HostId, JobId, RackId, RequestId, TaskId, TrackerId},
    job::Job,
    phase::{PerPhase, Phase},
    task::{Attempt, Task},
    tracker::{Tracker, TrackerState},
};
use names::NameTable;
use std::collections::{BTreeMap, BTreeSet};

/// All trackers, jobs, tasks and attempts, according to the facts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Durable {
    trackers: BTreeMap<TrackerId, Tracker>,
    tracker_by_name: BTreeMap<String, TrackerId>,
    /// Jobs that have not ended. They are separate because every event needs some of them, and few
    /// need the many that have ended.
    open_jobs: BTreeMap<JobId, Job>,
    ended_jobs: BTreeMap<JobId, Job>,
    job_by_request: BTreeMap<RequestId, JobId>,
    hosts: NameTable,
    racks: NameTable,
    /// The rack of a host, as reported by its trackers.
    rack_of: BTreeMap<HostId, RackId>,
    hosts_in: BTreeMap<RackId, BTreeSet<HostId>>,
    trackers_on: BTreeMap<HostId, BTreeSet<TrackerId>>,
    /// Trackers with a slot that no known attempt holds.
    unassigned_trackers: PerPhase<BTreeSet<TrackerId>>,
    /// Number of slots on all trackers that are live or awaited (see `TrackerState`) and not being
    /// drained.
    slots: PerPhase<u32>,
    /// Trackers that are not lost but whose slots are not counted in `slots`: those that are
    /// suspect or being drained.
    excluded_trackers: BTreeSet<TrackerId>,
    /// Trackers that are suspect or awaited.
    unreachable_trackers: BTreeSet<TrackerId>,
    /// Trackers that are being drained.
    draining_trackers: BTreeSet<TrackerId>,
    /// The highest job ID that was assigned or skipped.
    newest_job: u32,
    /// The ID of the next tracker with a new name. IDs of forgotten trackers are not reused.
    next_tracker: u32,
    epoch: u64,
    answers: Answers,
}

impl Durable {
    /// Returns how often the JobTracker has started.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the highest job ID that was assigned or skipped.
    pub fn newest_job(&self) -> JobId {
        JobId(self.newest_job)
    }

    /// Returns the tracker with this ID.
    pub fn tracker(&self, id: TrackerId) -> Option<&Tracker> {
        self.trackers.get(&id)
    }

    /// Returns all known trackers, ordered by ID.
    pub fn trackers(&self) -> impl Iterator<Item = &Tracker> {
        self.trackers.values()
    }

    /// Returns the tracker with this name.
    pub fn tracker_named(&self, name: &str) -> Option<&Tracker> {
        self.tracker_by_name.get(name).and_then(|id| self.trackers.get(id))
    }

    /// Returns the trackers on a host.
    pub fn trackers_on(&self, host: HostId) -> impl Iterator<Item = TrackerId> + '_ {
        self.trackers_on.get(&host).into_iter().flatten().copied()
    }

    /// Returns the hosts in a rack, as reported by trackers.
    pub fn hosts_in(&self, rack: RackId) -> Option<&BTreeSet<HostId>> {
        self.hosts_in.get(&rack)
    }

    /// Returns the trackers with a slot that no known attempt holds. An unknown attempt may hold
    /// the slot: see [`super::Cluster::free_trackers`].
    pub(super) fn unassigned_trackers(&self, phase: Phase) -> &BTreeSet<TrackerId> {
        &self.unassigned_trackers[phase]
    }

    /// Returns the trackers that are suspect or awaited. Their files cannot be read now, but may be
    /// readable soon.
    pub(crate) fn unreachable_trackers(&self) -> &BTreeSet<TrackerId> {
        &self.unreachable_trackers
    }

    /// Returns the trackers that are being drained.
    pub(crate) fn draining_trackers(&self) -> &BTreeSet<TrackerId> {
        &self.draining_trackers
    }

    /// Returns the ID that the next tracker with a new name gets.
    pub(crate) fn next_tracker(&self) -> TrackerId {
        TrackerId(self.next_tracker)
    }

    /// Returns the number of slots that are divided among jobs: those of all trackers that are live
    /// or awaited and not being drained.
    pub fn slots(&self, phase: Phase) -> u32 {
        self.slots[phase]
    }

    /// Returns the number of slots that attempts still hold on trackers that are suspect or being
    /// drained. [`Durable::slots`] does not count these slots.
    pub fn slots_on_excluded_trackers(&self, phase: Phase) -> u32 {
        let excluded = self.excluded_trackers.iter().filter_map(|id| self.trackers.get(id));
        excluded.map(|tracker| tracker.running[phase].len() as u32).sum()
    }

    /// Returns the job with this ID, if it has not been forgotten.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.open_jobs.get(&id).or_else(|| self.ended_jobs.get(&id))
    }

    /// Returns all jobs that have not been forgotten, oldest first.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        let (mut open, mut ended) = (self.open_jobs().peekable(), self.ended_jobs().peekable());
        std::iter::from_fn(move || match (open.peek(), ended.peek()) {
            (Some(first), Some(other)) if other.id < first.id => ended.next(),
            (Some(_), _) => open.next(),
            (None, _) => ended.next(),
        })
    }

    /// Returns the jobs that have not ended, oldest first.
    pub fn open_jobs(&self) -> impl Iterator<Item = &Job> {
        self.open_jobs.values()
    }

    /// Returns the jobs that have ended and have not been forgotten, oldest first.
    pub(crate) fn ended_jobs(&self) -> impl Iterator<Item = &Job> {
        self.ended_jobs.values()
    }

    /// Returns the jobs whose tasks may be launched, oldest first.
    pub fn active_jobs(&self) -> impl Iterator<Item = &Job> {
        self.open_jobs().filter(|job| job.is_running())
    }

    /// Returns the ID of the job that a submission created, if the job has not been forgotten.
    pub fn job_of_request(&self, request: RequestId) -> Option<JobId> {
        self.job_by_request.get(&request).copied()
    }

    /// Returns the answers to requests of users.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Returns how near a task's input is to a tracker.
    pub fn locality(&self, task: &Task, tracker: &Tracker) -> Locality {
        if task.hosts.contains(&tracker.host) {
            Locality::NodeLocal
        } else if task.hosts.iter().any(|host| self.rack_of(*host) == Some(tracker.rack)) {
            Locality::RackLocal
        } else {
            Locality::OffRack
        }
    }

    /// Returns the task with this ID.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.job(id.job).and_then(|job| job.task(id))
    }

    /// Returns the attempt with this ID.
    pub fn attempt(&self, id: AttemptId) -> Option<&Attempt> {
        self.task(id.task).and_then(|task| task.attempts.get(id.number as usize))
    }

    /// Returns the name of a host.
    pub fn host_name(&self, host: HostId) -> &str {
        self.hosts.text(host.0)
    }

    /// Returns the name of a rack.
    pub fn rack_name(&self, rack: RackId) -> &str {
        self.racks.text(rack.0)
    }

    /// Returns the rack of a host, if there is a tracker on the host.
    pub fn rack_of(&self, host: HostId) -> Option<RackId> {
        self.rack_of.get(&host).copied()
    }

    fn attempt_mut(&mut self, id: AttemptId) -> Option<&mut Attempt> {
        let job = self.job_mut(id.job()).ok()?;
        job.tasks[id.phase()].get_mut(id.task.index as usize)?.attempts.get_mut(id.number as usize)
    }

    /// Changes a tracker, if it is known, and updates the number of slots and the list of trackers
    /// with unassigned slots.
    fn change_tracker<T>(&mut self, id: TrackerId, change: impl FnOnce(&mut Tracker) -> T) -> Option<T> {
        let tracker = self.trackers.get_mut(&id)?;
        let before = tracker.capacity();
        let changed = change(tracker);
        self.update_slots(id, before);
        self.update_unassigned_trackers(id);
        Some(changed)
    }

    /// Updates the number of slots, the excluded trackers and the unreachable trackers after a
    /// tracker has changed. `before` is the capacity of the tracker before the change.
    fn update_slots(&mut self, id: TrackerId, before: PerPhase<u32>) {
        let Some(tracker) = self.trackers.get(&id) else { return };
        let after = tracker.capacity();
        for phase in Phase::BOTH {
            self.slots[phase] = self.slots[phase] - before[phase] + after[phase];
        }
        if tracker.state != TrackerState::Lost && after != tracker.slots {
            self.excluded_trackers.insert(id);
        } else {
            self.excluded_trackers.remove(&id);
        }
        if matches!(tracker.state, TrackerState::Suspect | TrackerState::Awaited) {
            self.unreachable_trackers.insert(id);
        } else {
            self.unreachable_trackers.remove(&id);
        }
    }

    /// Updates the list of trackers with unassigned slots after a tracker has changed.
    fn update_unassigned_trackers(&mut self, id: TrackerId) {
        let Some(tracker) = self.trackers.get(&id) else { return };
        for phase in Phase::BOTH {
            if tracker.unassigned_slots(phase) > 0 {
                self.unassigned_trackers[phase].insert(id);
            } else {
                self.unassigned_trackers[phase].remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::Cluster,
        digest::digest,
        fact::Fact,
        ids::Incarnation,
        invariants,
        job::{InputPin, JobOutcome, JobSpec, Payload, Priority, Program, Secret, Split},
        time::Time,
    };
    use std::sync::Arc;

    fn apply(cluster: &mut Cluster, fact: Fact) {
        cluster.apply(Time(0), &fact).unwrap();
        invariants::check(cluster).unwrap();
    }

    fn join(cluster: &mut Cluster, tracker: u32, host: &str, rack: &str) {
        let fact = Fact::TrackerJoined {
            tracker: TrackerId(tracker),
            name: format!("t{tracker}"),
            incarnation: Incarnation(1),
            host: host.into(),
            rack: rack.into(),
            shuffle_addr: String::new(),
            logs_addr: String::new(),
            slots: PerPhase { map: 1, reduce: 1 },
        };
        apply(cluster, fact);
    }

    fn lose_and_forget(cluster: &mut Cluster, tracker: u32) {
        let (id, name) = (TrackerId(tracker), format!("t{tracker}"));
        apply(cluster, Fact::TrackerLost { tracker: id, why: String::new() });
        apply(cluster, Fact::TrackerForgotten { tracker: id, name, why: String::new() });
    }

    fn submit(cluster: &mut Cluster, job: u32, hosts: &[&str]) {
        submit_with_token(cluster, job, hosts, Vec::new());
    }

    fn submit_with_token(cluster: &mut Cluster, job: u32, hosts: &[&str], token: Vec<u8>) {
        let split = |start: u64| Split {
            source: "/in".into(),
            start,
            end: start + 10,
            divisible: true,
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            pin: InputPin::default(),
        };
        let spec = JobSpec {
            name: "job".into(),
            user: "ann".into(),
            queue: String::new(),
            priority: Priority::Normal,
            program: Program::Builtin(String::new()),
            splits: vec![split(0), split(10)],
            reduces: 0,
            output: String::new(),
            slow_start: 1.0,
            speculation: false,
            split_slow: true,
            attempts_max: 4,
            conf: BTreeMap::new(),
            payload: Payload { shuffle_token: Secret::new(token), ..Payload::default() },
        };
        let (job, request) = (JobId(job), RequestId(job.into()));
        apply(cluster, Fact::JobSubmitted { job, request, spec: Arc::new(spec) });
    }

    fn end_and_forget(cluster: &mut Cluster, job: u32) {
        apply(cluster, Fact::JobEnded { job: JobId(job), outcome: JobOutcome::Killed("test".into()) });
        apply(cluster, Fact::JobForgotten { job: JobId(job) });
    }

    #[test]
    fn digests_differ_if_the_shuffle_tokens_of_a_job_differ() {
        let digest_with = |token: &[u8]| {
            let mut cluster = Cluster::default();
            submit_with_token(&mut cluster, 1, &[], token.to_vec());
            digest(&cluster)
        };
        assert_eq!(digest_with(&[1, 2]), digest_with(&[1, 2]));
        assert_ne!(digest_with(&[1, 2]), digest_with(&[2, 1]));
        assert_ne!(digest_with(&[0]), digest_with(&[]));
    }

    #[test]
    fn names_of_removed_trackers_and_jobs_are_freed() {
        let mut cluster = Cluster::default();
        join(&mut cluster, 0, "stays", "rack");
        for number in 1..1000 {
            let (host, rack) = (format!("h{number}"), format!("r{number}"));
            join(&mut cluster, number, &host, &rack);
            // Two DataNodes can share a host, so a host can occur twice.
            submit(&mut cluster, number, &[&host, &host, &format!("data{number}")]);
            // The tracker registers again with the same name, on another host in another rack.
            join(&mut cluster, number, &format!("moved{number}"), &format!("new{number}"));
            lose_and_forget(&mut cluster, number);
            end_and_forget(&mut cluster, number);
        }
        assert_eq!(cluster.hosts.reference_counts(), BTreeMap::from([("stays", 1)]));
        assert_eq!(cluster.racks.reference_counts(), BTreeMap::from([("rack", 1)]));
        assert!(
            cluster.hosts.entry_count() <= 4,
            "the table has {} entries for hosts",
            cluster.hosts.entry_count()
        );
        assert!(
            cluster.racks.entry_count() <= 3,
            "the table has {} entries for racks",
            cluster.racks.entry_count()
        );
        assert_eq!((cluster.rack_of.len(), cluster.hosts_in.len(), cluster.trackers_on.len()), (1, 1, 1));
    }

    #[test]
    fn a_host_keeps_its_number_while_a_job_reads_from_it() {
        let mut cluster = Cluster::default();
        join(&mut cluster, 1, "h1", "r1");
        submit(&mut cluster, 1, &["h1"]);
        let host = cluster.tracker(TrackerId(1)).unwrap().host;
        lose_and_forget(&mut cluster, 1);
        join(&mut cluster, 2, "h2", "r2");
        assert_eq!((cluster.host_name(host), cluster.rack_of(host)), ("h1", None));
        join(&mut cluster, 3, "h1", "r1");
        let (job, tracker) = (cluster.job(JobId(1)).unwrap(), cluster.tracker(TrackerId(3)).unwrap());
        assert_eq!(cluster.locality(&job.tasks.map[0], tracker), Locality::NodeLocal);
    }

    #[test]
    fn host_gets_the_rack_of_a_remaining_tracker() {
        let mut cluster = Cluster::default();
        join(&mut cluster, 1, "h", "r1");
        join(&mut cluster, 2, "h", "r2");
        let host = cluster.tracker(TrackerId(1)).unwrap().host;
        let rack = |cluster: &Cluster| cluster.rack_of(host).map(|rack| cluster.rack_name(rack).to_owned());
        assert_eq!(rack(&cluster).as_deref(), Some("r2"));
        lose_and_forget(&mut cluster, 2);
        assert_eq!(rack(&cluster).as_deref(), Some("r1"));
        lose_and_forget(&mut cluster, 1);
        assert_eq!(rack(&cluster), None);
    }
}
