//! Jobs and when they come, as plain data; readers and generators of such lists.
//!
//! All chance of a workload (sizes, arrivals, how task times scatter) is drawn here, from the workload's seed: every
//! policy then meets the very same jobs.

pub mod coshh;
pub mod history;
pub mod papers;
pub mod rumen;
pub mod swim;
pub mod synthetic;
pub mod trace;

use crate::{profile::Profile, rng::Rng};
use mrcore::{Span, job::Priority};

/// One map's input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MapPlan {
    /// Bytes it reads.
    pub bytes: u64,
    /// Seconds of computing on a machine of speed 1.
    pub work_s: f32,
}

/// One reduce.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReducePlan {
    /// Its part of all map output.
    pub share: f32,
    /// How its time differs from the others'.
    pub factor: f32,
    /// Seconds of computing beside those for its bytes.
    pub fixed_s: f32,
}

/// One job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPlan {
    /// When it is submitted.
    pub at: Span,
    /// Its name.
    pub name: String,
    /// What it is compared with: jobs of a size, of a user.
    pub group: String,
    /// Who submits it.
    pub user: String,
    /// Where it queues.
    pub queue: String,
    /// Its priority.
    pub priority: Priority,
    /// Its maps.
    pub maps: Vec<MapPlan>,
    /// Who has each map's input, where that is known: machine numbers. Empty to have blocks placed.
    pub hosts: Vec<Vec<u32>>,
    /// Its reduces.
    pub reduces: Vec<ReducePlan>,
    /// Map output for each byte of input.
    pub map_out: f64,
    /// Reduce input, bytes a second on a machine of speed 1.
    pub reduce_rate: f64,
    /// Merging, bytes a second.
    pub merge_rate: f64,
    /// Reduce output for each byte of its input.
    pub reduce_out: f64,
    /// From a task's launch to its first record.
    pub start: Span,
    /// Part of the maps that must be done before reduces may start.
    pub slow_start: f64,
    /// Whether stragglers may be duplicated.
    pub speculation: bool,
}

/// A job's outline, before its tasks are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline<'a> {
    /// When.
    pub at_s: f64,
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// Who.
    pub user: String,
    /// How many maps.
    pub maps: u32,
    /// Bytes of each map's input.
    pub block: u64,
    /// How many reduces.
    pub reduces: u32,
    /// What it runs.
    pub profile: &'a Profile,
}

/// A list of jobs, oldest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The jobs.
    pub jobs: Vec<JobPlan>,
}

impl Outline<'_> {
    /// Draws its tasks.
    pub fn plan(self, rng: &mut Rng) -> JobPlan {
        let Self { at_s, name, group, user, maps, block, reduces, profile } = self;
        let work_s = block as f64 / (profile.map_mbps * 1e6);
        let map =
            |rng: &mut Rng| MapPlan { bytes: block, work_s: (work_s * rng.spread(profile.spread)) as f32 };
        let share = 1.0 / f64::from(reduces.max(1));
        let reduce = |rng: &mut Rng| ReducePlan {
            share: share as f32,
            factor: rng.spread(profile.spread) as f32,
            fixed_s: 0.0,
        };
        JobPlan {
            at: seconds(at_s),
            name,
            group,
            user,
            queue: "default".into(),
            priority: Priority::Normal,
            maps: (0..maps).map(|_| map(rng)).collect(),
            hosts: Vec::new(),
            reduces: (0..reduces).map(|_| reduce(rng)).collect(),
            map_out: profile.map_out,
            reduce_rate: profile.reduce_mbps * 1e6,
            merge_rate: profile.merge_mbps * 1e6,
            reduce_out: profile.reduce_out,
            start: seconds(profile.start_s),
            slow_start: 0.05,
            speculation: false,
        }
    }
}

impl Workload {
    /// Puts the jobs in order of time, and those of one moment in the order of the list.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.jobs.sort_by_key(|job| job.at);
        self
    }

    /// Its groups as they come, or by their numbers if that is what they are called.
    pub fn groups(&self) -> Vec<String> {
        let mut groups: Vec<String> = Vec::new();
        for job in &self.jobs {
            if !groups.contains(&job.group) {
                groups.push(job.group.clone());
            }
        }
        if groups.iter().all(|group| group.parse::<u64>().is_ok()) {
            groups.sort_by_key(|group| group.parse::<u64>().unwrap_or(u64::MAX));
        }
        groups
    }

    /// Tasks of all jobs.
    pub fn tasks(&self) -> usize {
        self.jobs.iter().map(|job| job.maps.len() + job.reduces.len()).sum()
    }

    /// One of its jobs, alone and at once: what slowdown is measured against.
    #[must_use]
    pub fn alone(&self, index: usize) -> Self {
        let mut job = self.jobs[index].clone();
        job.at = Span(0);
        Self { name: format!("{} alone", job.name), jobs: vec![job] }
    }
}

/// As a span; nothing for what is not a time.
pub fn seconds(seconds: f64) -> Span {
    Span((seconds.max(0.0) * 1e6).round() as u64)
}
