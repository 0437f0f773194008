//! Checks the map events that reduces get: each range of the input comes from exactly one attempt,
//! and the ranges add up to the whole input.

use mrcore::{
    Cluster, Phase,
    ids::{AttemptId, JobId},
    job::{Job, MapEvent},
    task::{Attempt, Task},
    tracker::TrackerState,
};
use std::collections::{BTreeMap, BTreeSet};

/// Index of the split, start and end of the range of a map output.
type Range = (u32, u64, u64);

/// The map events of all jobs, as trackers have received them.
#[derive(Debug, Default)]
pub(super) struct MapEvents {
    ranges: BTreeMap<AttemptId, Range>,
    lists: BTreeMap<JobId, MapEventList>,
}

/// The map events of a job. All its reduces receive a prefix of the same list.
#[derive(Debug, Default)]
struct MapEventList {
    events: Vec<MapEvent>,
    available: BTreeSet<AttemptId>,
}

impl MapEvents {
    /// Records the range of an attempt that has just succeeded.
    pub(super) fn note_success(&mut self, attempt: AttemptId, cluster: &Cluster) {
        if let Some(task) = cluster.task(attempt.task).filter(|task| task.id.phase == Phase::Map) {
            self.ranges.insert(attempt, (task.root, task.start, task.end));
        }
    }

    /// Checks map events that a tracker receives. The error describes the violation.
    pub(super) fn receive(
        &mut self,
        job: JobId,
        first: usize,
        maps: u32,
        events: &[MapEvent],
        cluster: &Cluster,
    ) -> Result<(), String> {
        let list = self.lists.entry(job).or_default();
        for (at, event) in (first..).zip(events) {
            match list.events.get(at) {
                Some(known) if known == event => continue,
                Some(known) => {
                    return Err(format!("map event {at} of {job} changed from {known:?} to {event:?}"));
                }
                None if at > list.events.len() => {
                    return Err(format!("map events of {job} start at {at}, which leaves a gap"));
                }
                None => list.events.push(*event),
            }
            match event {
                MapEvent::Available(attempt, on) => {
                    let awaited = cluster.tracker(*on).is_some_and(|on| on.state == TrackerState::Awaited);
                    let task = cluster.job(attempt.job()).and_then(|job| job.task(attempt.task));
                    let counts = |winner: &Attempt| winner.id == *attempt && winner.output_on == *on;
                    if awaited && task.and_then(Task::winning_attempt).is_some_and(counts) {
                        return Err(format!("{attempt} is announced on {on}, which has not registered"));
                    }
                    list.available.insert(*attempt)
                }
                MapEvent::Withdrawn(attempt) => list.available.remove(attempt),
            };
        }
        if first + events.len() < list.events.len() {
            return Ok(());
        }
        let mut consumed: Vec<Range> = Vec::new();
        for attempt in &list.available {
            consumed.push(*self.ranges.get(attempt).ok_or_else(|| format!("{attempt} has no output"))?);
        }
        consumed.sort_unstable();
        let twice = |pair: &&[Range]| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1;
        if let Some(pair) = consumed.windows(2).find(twice) {
            return Err(format!("a reduce would consume {pair:?}, which overlap"));
        }
        match cluster.job(job).filter(|_| consumed.len() == maps as usize) {
            Some(job) => check_complete(job, &consumed),
            None => Ok(()),
        }
    }
}

/// Checks that the outputs cover every split completely. A reduce that has as many outputs as there
/// are maps assumes that it has everything.
fn check_complete(job: &Job, consumed: &[Range]) -> Result<(), String> {
    for (root, split) in job.spec.splits.iter().enumerate() {
        let its = consumed.iter().filter(|(of, ..)| *of == root as u32);
        let bytes: u64 = its.map(|(_, start, end)| end - start).sum();
        if bytes != split.end - split.start {
            return Err(format!(
                "a reduce with all map outputs has {bytes} bytes of split {root}: {split:?}"
            ));
        }
    }
    Ok(())
}
