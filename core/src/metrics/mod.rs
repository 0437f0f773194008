//! The papers' metrics, from facts and nothing else: the daemon, the simulator and a history file give the same
//! figures for the same facts.
//!
//! | figure | paper | here |
//! |---|---|---|
//! | makespan, waiting, execution | hSRTF | [`JobFigures::makespan`] = waiting (to the first map) + execution |
//! | slowdown | FCS | [`JobFigures::slowdown`]: makespan over that of the same job alone |
//! | wait of reduces | FCS | [`JobFigures::reduce_wait`]: for a slot, after the job's maps are done |
//! | preemptions, work lost | FCS, Chronos | [`JobFigures::taken`], [`JobFigures::lost`] |
//! | locality | all | [`JobFigures::near`] |
//! | wait and locality of recovery | Chronos | [`Recovery`], of each job and of all |
//! | dissatisfaction, fairness | COSHH | [`shares::Shares`] |
//!
//! | scheduling time | COSHH | `schedulers::timed`, by the clock of who asks: it is in no fact |

pub mod shares;
pub mod stats;
pub mod timeline;

use crate::{
    fact::Fact,
    ids::{AttemptId, JobId, TaskId, TrackerId},
    job::{JobOutcome, JobSpec},
    phase::{PerPhase, Phase},
    plan::Locality,
    task::Recall,
    time::{Span, Time},
};
use shares::Shares;
use std::{collections::BTreeMap, sync::Arc};
use timeline::Timeline;

/// The key of a job's settings that names what it is compared with.
pub const GROUP: &str = "group";

/// Slots taken back from a job, by what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Taken {
    pub splits: u32,
    pub pauses: u32,
    pub kills: u32,
    pub resumes: u32,
    pub migrations: u32,
}

impl Taken {
    /// How often a slot was taken back.
    pub fn preemptions(&self) -> u32 {
        self.splits + self.pauses + self.kills
    }
}

/// How the work of lost trackers was taken up again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Tasks that had to run again and did.
    pub tasks: u32,
    /// Maps among them.
    pub maps: u32,
    /// Maps that ran where their input is.
    pub local: u32,
    /// From the loss to the launch, over all.
    pub waited: Span,
    /// The same of maps.
    pub maps_waited: Span,
    /// The longest of these.
    pub longest: Span,
}

impl Recovery {
    fn launched(&mut self, waited: Span, near: Option<Locality>) {
        self.tasks += 1;
        self.maps += u32::from(near.is_some());
        self.local += u32::from(near == Some(Locality::NodeLocal));
        self.waited = self.waited + waited;
        if near.is_some() {
            self.maps_waited = self.maps_waited + waited;
        }
        self.longest = self.longest.max(waited);
    }

    /// How long a task waited, on average.
    pub fn mean_wait(&self) -> Span {
        Span(self.waited.0 / u64::from(self.tasks.max(1)))
    }

    /// How long a map waited, on average.
    pub fn mean_map_wait(&self) -> Span {
        Span(self.maps_waited.0 / u64::from(self.maps.max(1)))
    }
}

/// One job's figures.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFigures {
    /// Its name.
    pub name: String,
    /// Whose.
    pub user: String,
    /// What it is compared with; its name if its settings do not say.
    pub group: String,
    /// Tasks as submitted.
    pub tasks: PerPhase<u32>,
    /// When it came.
    pub submitted: Time,
    /// When its first map was launched.
    pub first_map: Option<Time>,
    /// When its last map was done.
    pub maps_done: Option<Time>,
    /// When it was over.
    pub ended: Option<Time>,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// Maps launched node-local, rack-local, elsewhere.
    pub near: [u32; 3],
    /// Slots taken back.
    pub taken: Taken,
    /// Duplicates launched.
    pub duplicates: u32,
    /// Slot time of attempts that came to nothing.
    pub lost: Span,
    /// Bytes read in vain.
    pub lost_bytes: u64,
    /// Slot time in all.
    pub held: PerPhase<Span>,
    /// Time that its reduces waited for slots after its maps were done, over all.
    pub reduce_waited: Span,
    /// How its work that was lost with a tracker was taken up again.
    pub recovery: Recovery,
}

impl JobFigures {
    /// From submission to end.
    pub fn makespan(&self) -> Option<Span> {
        self.ended.map(|ended| ended.since(self.submitted))
    }

    /// From submission to the first map.
    pub fn waiting(&self) -> Option<Span> {
        self.first_map.map(|first| first.since(self.submitted))
    }

    /// From the first map to the end.
    pub fn execution(&self) -> Option<Span> {
        Some(self.ended?.since(self.first_map.unwrap_or(self.submitted)))
    }

    /// How many times longer than alone.
    pub fn slowdown(&self, alone: Span) -> Option<f64> {
        self.makespan().map(|took| took.as_secs_f64() / alone.as_secs_f64().max(1e-6))
    }

    /// How long one of its reduces waited for slots after its maps were done, on average.
    pub fn reduce_wait(&self) -> Span {
        Span(self.reduce_waited.0 / u64::from(self.tasks.reduce.max(1)))
    }

    /// Part of its maps that ran where their input is.
    pub fn locality(&self) -> f64 {
        let all: u32 = self.near.iter().sum();
        f64::from(self.near[0]) / f64::from(all.max(1))
    }
}

/// What is kept of a job while it runs.
#[derive(Debug)]
struct Live {
    spec: Arc<JobSpec>,
    /// The split of each map; more after splits.
    roots: Vec<u32>,
    maps_done: u32,
    /// Since when each reduce waits.
    idle_since: Vec<Time>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    since: Time,
    on: TrackerId,
    recalled: Option<Recall>,
}

/// All figures.
#[derive(Debug, Default)]
pub struct Metrics {
    figures: BTreeMap<JobId, JobFigures>,
    live: BTreeMap<JobId, Live>,
    held: BTreeMap<AttemptId, Held>,
    places: BTreeMap<TrackerId, (String, String)>,
    racks: BTreeMap<String, String>,
    lost_trackers: BTreeMap<TrackerId, Time>,
    to_recover: BTreeMap<TaskId, Time>,
    /// How lost work was taken up again.
    pub recovery: Recovery,
    /// Slot use.
    pub timeline: Timeline,
    /// Who has what they were promised; counted if users are set.
    pub shares: Shares,
}

impl Metrics {
    /// For users with promises.
    pub fn with_users(users: impl IntoIterator<Item = (String, shares::Promise)>) -> Self {
        Self { shares: Shares::new(users), ..Self::default() }
    }

    /// Every job's figures, oldest first.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &JobFigures)> {
        self.figures.iter().map(|(id, figures)| (*id, figures))
    }

    /// One job's.
    pub fn job(&self, id: JobId) -> Option<&JobFigures> {
        self.figures.get(&id)
    }

    /// Takes one fact in.
    pub fn observe(&mut self, at: Time, fact: &Fact) {
        match fact {
            Fact::TrackerJoined { tracker, host, rack, .. } => {
                self.places.insert(*tracker, (host.clone(), rack.clone()));
                self.racks.insert(host.clone(), rack.clone());
                self.lost_trackers.remove(tracker);
            }
            Fact::TrackerLost { tracker, .. } => {
                self.lost_trackers.insert(*tracker, at);
            }
            Fact::JobSubmitted { job, spec, .. } => self.submitted(at, *job, spec),
            Fact::JobEnded { job, outcome } => self.ended(at, *job, outcome),
            Fact::AttemptLaunched { attempt, tracker, speculative, from, .. } => {
                self.launched(at, *attempt, *tracker, *speculative, *from);
            }
            Fact::AttemptRecalled { attempt, how, fault: false, .. } => {
                if let Some(held) = self.held.get_mut(attempt) {
                    held.recalled = Some(*how);
                }
            }
            Fact::AttemptSucceeded { attempt, .. } => {
                self.released(at, *attempt);
                self.held.remove(attempt);
                self.map_done(at, *attempt);
            }
            Fact::MapSplit { attempt, .. } => {
                self.released(at, *attempt);
                if let Some(figures) = self.figures.get_mut(&attempt.job()) {
                    figures.taken.splits += 1;
                }
                if let Some(live) = self.live.get_mut(&attempt.job()) {
                    let root = live.roots.get(attempt.task.index as usize).copied().unwrap_or(0);
                    live.roots.push(root);
                }
                self.map_done(at, *attempt);
            }
            Fact::AttemptPaused { attempt, .. } => {
                self.released(at, *attempt);
                if let Some(figures) = self.figures.get_mut(&attempt.job()) {
                    figures.taken.pauses += 1;
                }
                self.waits_again(at, *attempt);
            }
            Fact::AttemptFailed { attempt, .. } => self.wasted(at, *attempt, 0),
            Fact::AttemptKilled { attempt, bytes_in, .. } => self.wasted(at, *attempt, *bytes_in),
            Fact::MapOutputLost { attempt, .. } => self.output_lost(at, *attempt),
            _ => {}
        }
    }

    fn submitted(&mut self, at: Time, id: JobId, spec: &Arc<JobSpec>) {
        let tasks = PerPhase { map: spec.splits.len() as u32, reduce: spec.reduces };
        let figures = JobFigures {
            name: spec.name.clone(),
            user: spec.user.clone(),
            group: spec.conf.get(GROUP).unwrap_or(&spec.name).clone(),
            tasks,
            submitted: at,
            first_map: None,
            maps_done: None,
            ended: None,
            succeeded: false,
            near: [0; 3],
            taken: Taken::default(),
            duplicates: 0,
            lost: Span(0),
            lost_bytes: 0,
            held: PerPhase::default(),
            reduce_waited: Span(0),
            recovery: Recovery::default(),
        };
        self.figures.insert(id, figures);
        let roots = (0..tasks.map).collect();
        let idle_since = vec![at; tasks.reduce as usize];
        self.live.insert(id, Live { spec: spec.clone(), roots, maps_done: 0, idle_since });
        self.shares.demands(at, &spec.user, 1);
    }

    fn ended(&mut self, at: Time, id: JobId, outcome: &JobOutcome) {
        if let Some(figures) = self.figures.get_mut(&id) {
            figures.ended = Some(at);
            figures.succeeded = *outcome == JobOutcome::Succeeded;
        }
        if let Some(live) = self.live.remove(&id) {
            self.shares.demands(at, &live.spec.user, -1);
        }
        self.to_recover.retain(|task, _| task.job != id);
    }

    fn near(&self, task: TaskId, on: TrackerId) -> Option<Locality> {
        let live = self.live.get(&task.job)?;
        let split = live.spec.splits.get(*live.roots.get(task.index as usize)? as usize)?;
        let (host, rack) = self.places.get(&on)?;
        Some(if split.hosts.contains(host) {
            Locality::NodeLocal
        } else if split.hosts.iter().any(|host| self.racks.get(host) == Some(rack)) {
            Locality::RackLocal
        } else {
            Locality::OffRack
        })
    }

    fn launched(
        &mut self,
        at: Time,
        id: AttemptId,
        on: TrackerId,
        speculative: bool,
        from: Option<AttemptId>,
    ) {
        self.held.insert(id, Held { since: at, on, recalled: None });
        let near = (id.phase() == Phase::Map).then(|| self.near(id.task, on)).flatten();
        let lost = self.to_recover.remove(&id.task);
        let Some(figures) = self.figures.get_mut(&id.job()) else { return };
        if let Some(lost) = lost {
            figures.recovery.launched(at.since(lost), near);
            self.recovery.launched(at.since(lost), near);
        }
        figures.duplicates += u32::from(speculative);
        if let Some(near) = near {
            figures.first_map.get_or_insert(at);
            figures.near[near as usize] += 1;
        }
        if let Some(from) = from {
            figures.taken.resumes += 1;
            // A pause's own place is not in a fact: it is where the attempt was launched.
            let before = self.held.get(&from).map(|held| held.on);
            figures.taken.migrations += u32::from(before.is_some_and(|before| before != on));
            self.held.remove(&from);
        }
        let idle = self.live.get(&id.job()).and_then(|live| live.idle_since.get(id.task.index as usize));
        if let (Phase::Reduce, Some(done), Some(idle)) = (id.phase(), figures.maps_done, idle) {
            figures.reduce_waited = figures.reduce_waited + at.since(done.max(*idle));
        }
        let user = figures.user.clone();
        self.shares.holds(at, &user, 1);
    }

    /// Its slot is free. A paused attempt's place is remembered until it is taken up.
    fn released(&mut self, at: Time, id: AttemptId) -> Option<Held> {
        let held = *self.held.get(&id)?;
        if !(id.phase() == Phase::Reduce && held.recalled == Some(Recall::Pause)) {
            self.held.remove(&id);
        }
        let figures = self.figures.get_mut(&id.job())?;
        figures.held[id.phase()] = figures.held[id.phase()] + at.since(held.since);
        self.timeline.add(&figures.group, id.phase(), held.since, at);
        let user = figures.user.clone();
        self.shares.holds(at, &user, -1);
        Some(held)
    }

    /// An attempt has come to nothing.
    fn wasted(&mut self, at: Time, id: AttemptId, bytes: u64) {
        let Some(held) = self.released(at, id) else { return };
        self.held.remove(&id);
        let running = self.live.contains_key(&id.job());
        if let Some(figures) = self.figures.get_mut(&id.job()) {
            figures.lost = figures.lost + at.since(held.since);
            figures.lost_bytes += bytes;
            figures.taken.kills += u32::from(running && held.recalled == Some(Recall::Kill));
        }
        self.waits_again(at, id);
        if running && let Some(lost) = self.lost_trackers.get(&held.on) {
            self.to_recover.insert(id.task, *lost);
        }
    }

    fn waits_again(&mut self, at: Time, id: AttemptId) {
        let live = self.live.get_mut(&id.job()).filter(|_| id.phase() == Phase::Reduce);
        if let Some(idle) = live.and_then(|live| live.idle_since.get_mut(id.task.index as usize)) {
            *idle = at;
        }
    }

    fn map_done(&mut self, at: Time, id: AttemptId) {
        let Some(live) = self.live.get_mut(&id.job()).filter(|_| id.phase() == Phase::Map) else { return };
        live.maps_done += 1;
        if live.maps_done as usize == live.roots.len()
            && let Some(figures) = self.figures.get_mut(&id.job())
        {
            figures.maps_done = Some(at);
        }
    }

    fn output_lost(&mut self, at: Time, id: AttemptId) {
        let Some(live) = self.live.get_mut(&id.job()) else { return };
        live.maps_done = live.maps_done.saturating_sub(1);
        self.to_recover.insert(id.task, at);
        if let Some(figures) = self.figures.get_mut(&id.job()) {
            figures.maps_done = None;
        }
    }
}

#[cfg(test)]
mod tests;
