//! The state of the cluster as plain data. Policies read it.
//!
//! Durable facts change it only through [`Cluster::apply`], live or replayed from the journal.
//! Values that no fact covers (progress, the time of the last heartbeat) are set directly and are
//! lost with the process.

mod apply;
mod locality;
mod outputs;
mod preempt;

pub use apply::ApplyError;
pub use locality::Locality;
pub use preempt::NotPreemptible;

use crate::{
    ids::{AttemptId, HostId, JobId, RackId, RequestId, TaskId, TrackerId},
    job::Job,
    phase::{PerPhase, Phase},
    task::{Attempt, Task},
    tracker::{Tracker, TrackerState},
};
use std::collections::{BTreeMap, BTreeSet};

/// A table of reference-counted strings. Names of hosts and racks are few and compared often, so
/// the cluster stores numbers. A string keeps its number while it is in use; then the number is
/// reused, so the table grows only with the number of strings in use at the same time.
#[derive(Debug, Clone, Default)]
pub struct Names {
    numbers: BTreeMap<String, u32>,
    /// By number: the string and its reference count. Unused numbers have an empty string.
    texts: Vec<(String, u64)>,
    unused: Vec<u32>,
}

impl Names {
    /// Returns the number of a string and increments its reference count.
    fn acquire(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            self.texts[*number as usize].1 += 1;
            return *number;
        }
        let number = self.unused.pop().unwrap_or_else(|| {
            self.texts.push((String::new(), 0));
            self.texts.len() as u32 - 1
        });
        self.numbers.insert(text.to_owned(), number);
        self.texts[number as usize] = (text.to_owned(), 1);
        number
    }

    /// Decrements the reference count of a number.
    fn release(&mut self, number: u32) {
        let (text, uses) = &mut self.texts[number as usize];
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(&std::mem::take(text));
            self.unused.push(number);
        }
    }

    /// The string of a number that is in use.
    pub fn text(&self, number: u32) -> &str {
        &self.texts[number as usize].0
    }

    /// The reference count of every string.
    pub(crate) fn uses(&self) -> BTreeMap<&str, u64> {
        self.numbers.iter().map(|(text, number)| (text.as_str(), self.texts[*number as usize].1)).collect()
    }
}

/// All trackers, jobs, tasks and attempts.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    pub(crate) trackers: BTreeMap<TrackerId, Tracker>,
    pub(crate) by_name: BTreeMap<String, TrackerId>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// Jobs whose tasks may be launched.
    pub(crate) active: BTreeSet<JobId>,
    pub(crate) by_request: BTreeMap<RequestId, JobId>,
    pub(crate) hosts: Names,
    pub(crate) racks: Names,
    /// The rack of a host, as reported by its trackers.
    pub(crate) rack_of: BTreeMap<HostId, RackId>,
    pub(crate) hosts_in: BTreeMap<RackId, BTreeSet<HostId>>,
    pub(crate) trackers_on: BTreeMap<HostId, BTreeSet<TrackerId>>,
    /// Trackers with a free slot.
    pub(crate) free: PerPhase<BTreeSet<TrackerId>>,
    /// Slots of all trackers that are live or awaited and not being drained.
    pub(crate) slots: PerPhase<u32>,
    /// Trackers that are not lost and whose slots are not part of `slots`.
    pub(crate) excluded: BTreeSet<TrackerId>,
    /// Trackers that are suspect or awaited: their files cannot be read now, but perhaps soon.
    pub(crate) unreachable_trackers: BTreeSet<TrackerId>,
    /// Trackers that are being drained.
    pub(crate) draining: BTreeSet<TrackerId>,
    pub(crate) next_job: u32,
    /// The number of the next tracker with a new name. Numbers of forgotten trackers are not
    /// reused.
    pub(crate) next_tracker: u32,
    pub(crate) epoch: u64,
}

impl Cluster {
    /// The number of starts of the JobTracker.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The highest job number that was assigned or skipped.
    pub fn newest_job(&self) -> JobId {
        JobId(self.next_job)
    }

    /// The tracker with this number.
    pub fn tracker(&self, id: TrackerId) -> Option<&Tracker> {
        self.trackers.get(&id)
    }

    /// All known trackers, ordered by number.
    pub fn trackers(&self) -> impl Iterator<Item = &Tracker> {
        self.trackers.values()
    }

    /// The tracker with this name.
    pub fn tracker_named(&self, name: &str) -> Option<&Tracker> {
        self.by_name.get(name).and_then(|id| self.trackers.get(id))
    }

    /// The trackers on a host.
    pub fn trackers_on(&self, host: HostId) -> impl Iterator<Item = TrackerId> + '_ {
        self.trackers_on.get(&host).into_iter().flatten().copied()
    }

    /// The hosts in a rack, as reported by trackers.
    pub fn hosts_in(&self, rack: RackId) -> Option<&BTreeSet<HostId>> {
        self.hosts_in.get(&rack)
    }

    /// Trackers with a free slot, ordered by number.
    pub fn free_trackers(&self, phase: Phase) -> &BTreeSet<TrackerId> {
        &self.free[phase]
    }

    /// Slots that are divided among jobs: those of all trackers that are live or awaited and not
    /// being drained.
    pub fn slots(&self, phase: Phase) -> u32 {
        self.slots[phase]
    }

    /// Slots not counted in [`Cluster::slots`] that attempts still hold, on trackers that are
    /// suspect or being drained.
    pub fn held_elsewhere(&self, phase: Phase) -> u32 {
        let excluded = self.excluded.iter().filter_map(|id| self.trackers.get(id));
        excluded.map(|tracker| tracker.running[phase].len() as u32).sum()
    }

    /// The job with this number, if it has not been forgotten.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// All jobs that have not been forgotten, oldest first.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values()
    }

    /// Jobs whose tasks may be launched, oldest first.
    pub fn active_jobs(&self) -> impl Iterator<Item = &Job> {
        self.active.iter().filter_map(|id| self.jobs.get(id))
    }

    /// The job that a submission created, if it has not been forgotten.
    pub fn job_of_request(&self, request: RequestId) -> Option<JobId> {
        self.by_request.get(&request).copied()
    }

    /// How near a task's input is to a tracker.
    pub fn locality(&self, task: &Task, tracker: &Tracker) -> Locality {
        if task.hosts.contains(&tracker.host) {
            Locality::NodeLocal
        } else if task.hosts.iter().any(|host| self.rack_of(*host) == Some(tracker.rack)) {
            Locality::RackLocal
        } else {
            Locality::OffRack
        }
    }

    /// The task with this ID.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.jobs.get(&id.job).and_then(|job| job.task(id))
    }

    /// The attempt with this ID.
    pub fn attempt(&self, id: AttemptId) -> Option<&Attempt> {
        self.task(id.task).and_then(|task| task.attempts.get(id.number as usize))
    }

    /// The name of a host.
    pub fn host_name(&self, host: HostId) -> &str {
        self.hosts.text(host.0)
    }

    /// The name of a rack.
    pub fn rack_name(&self, rack: RackId) -> &str {
        self.racks.text(rack.0)
    }

    /// The rack of a host, if a tracker on it has reported one.
    pub fn rack_of(&self, host: HostId) -> Option<RackId> {
        self.rack_of.get(&host).copied()
    }

    pub(crate) fn attempt_mut(&mut self, id: AttemptId) -> Option<&mut Attempt> {
        let job = self.jobs.get_mut(&id.job())?;
        job.tasks[id.phase()].get_mut(id.task.index as usize)?.attempts.get_mut(id.number as usize)
    }

    /// Changes a tracker, if it is known, and updates the number of slots and the list of free
    /// trackers.
    pub(crate) fn change_tracker<T>(
        &mut self,
        id: TrackerId,
        change: impl FnOnce(&mut Tracker) -> T,
    ) -> Option<T> {
        let tracker = self.trackers.get_mut(&id)?;
        let before = tracker.capacity();
        let changed = change(tracker);
        self.count_slots(id, before);
        self.refresh_free(id);
        Some(changed)
    }

    /// Updates the number of slots after a tracker has changed. `before` is its capacity before the
    /// change.
    pub(crate) fn count_slots(&mut self, id: TrackerId, before: PerPhase<u32>) {
        let Some(tracker) = self.trackers.get(&id) else { return };
        let after = tracker.capacity();
        for phase in Phase::BOTH {
            self.slots[phase] = self.slots[phase] - before[phase] + after[phase];
        }
        if tracker.state != TrackerState::Lost && after != tracker.slots {
            self.excluded.insert(id);
        } else {
            self.excluded.remove(&id);
        }
        if matches!(tracker.state, TrackerState::Suspect | TrackerState::Awaited) {
            self.unreachable_trackers.insert(id);
        } else {
            self.unreachable_trackers.remove(&id);
        }
    }

    /// Updates the list of trackers with free slots after a tracker has changed.
    pub(crate) fn refresh_free(&mut self, id: TrackerId) {
        let Some(tracker) = self.trackers.get(&id) else { return };
        for phase in Phase::BOTH {
            if tracker.free(phase) > 0 {
                self.free[phase].insert(id);
            } else {
                self.free[phase].remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fact::Fact,
        ids::Incarnation,
        invariants,
        job::{InputPin, JobOutcome, JobSpec, Priority, Split},
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

    fn forget(cluster: &mut Cluster, tracker: u32) {
        let (id, name) = (TrackerId(tracker), format!("t{tracker}"));
        apply(cluster, Fact::TrackerLost { tracker: id, why: String::new() });
        apply(cluster, Fact::TrackerForgotten { tracker: id, name, why: String::new() });
    }

    fn submit(cluster: &mut Cluster, job: u32, hosts: &[&str]) {
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
            program: String::new(),
            splits: vec![split(0), split(10)],
            reduces: 0,
            output: String::new(),
            slow_start: 1.0,
            speculation: false,
            attempts_max: 4,
            conf: BTreeMap::new(),
        };
        let (job, request) = (JobId(job), RequestId(job.into()));
        apply(cluster, Fact::JobSubmitted { job, request, spec: Arc::new(spec) });
    }

    fn end(cluster: &mut Cluster, job: u32) {
        apply(cluster, Fact::JobEnded { job: JobId(job), outcome: JobOutcome::Killed("test".into()) });
        apply(cluster, Fact::JobForgotten { job: JobId(job) });
    }

    #[test]
    fn unused_names_are_freed() {
        let mut cluster = Cluster::default();
        join(&mut cluster, 0, "stays", "rack");
        for number in 1..1000 {
            let (host, rack) = (format!("h{number}"), format!("r{number}"));
            join(&mut cluster, number, &host, &rack);
            // Two DataNodes can share a host, so a host can occur twice.
            submit(&mut cluster, number, &[&host, &host, &format!("data{number}")]);
            // The tracker registers again with the same name, on another host in another rack.
            join(&mut cluster, number, &format!("moved{number}"), &format!("new{number}"));
            forget(&mut cluster, number);
            end(&mut cluster, number);
        }
        assert_eq!(cluster.hosts.uses(), BTreeMap::from([("stays", 1)]));
        assert_eq!(cluster.racks.uses(), BTreeMap::from([("rack", 1)]));
        assert!(cluster.hosts.texts.len() <= 4, "{} numbers of hosts", cluster.hosts.texts.len());
        assert!(cluster.racks.texts.len() <= 3, "{} numbers of racks", cluster.racks.texts.len());
        assert_eq!((cluster.rack_of.len(), cluster.hosts_in.len(), cluster.trackers_on.len()), (1, 1, 1));
    }

    #[test]
    fn a_host_keeps_its_number_while_a_job_reads_from_it() {
        let mut cluster = Cluster::default();
        join(&mut cluster, 1, "h1", "r1");
        submit(&mut cluster, 1, &["h1"]);
        let host = cluster.tracker(TrackerId(1)).unwrap().host;
        forget(&mut cluster, 1);
        join(&mut cluster, 2, "h2", "r2");
        assert_eq!((cluster.host_name(host), cluster.rack_of(host)), ("h1", None));
        join(&mut cluster, 3, "h1", "r1");
        let (job, tracker) = (cluster.job(JobId(1)).unwrap(), cluster.tracker(TrackerId(3)).unwrap());
        assert_eq!(cluster.locality(&job.tasks.map[0], tracker), Locality::NodeLocal);
    }

    #[test]
    fn a_host_has_the_rack_of_a_tracker_that_is_there() {
        let mut cluster = Cluster::default();
        join(&mut cluster, 1, "h", "r1");
        join(&mut cluster, 2, "h", "r2");
        let host = cluster.tracker(TrackerId(1)).unwrap().host;
        let rack = |cluster: &Cluster| cluster.rack_of(host).map(|rack| cluster.rack_name(rack).to_owned());
        assert_eq!(rack(&cluster).as_deref(), Some("r2"));
        forget(&mut cluster, 2);
        assert_eq!(rack(&cluster).as_deref(), Some("r1"));
        forget(&mut cluster, 1);
        assert_eq!(rack(&cluster), None);
    }
}
