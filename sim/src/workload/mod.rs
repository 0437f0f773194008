//! Workloads: jobs and their submission times as plain data, with readers and generators.
//!
//! All random properties of a workload (sizes, arrivals, variation of task times) are drawn here,
//! from the seed of the workload, so that every policy gets the same jobs.

pub mod coshh;
pub mod history;
mod load;
pub mod papers;
pub mod rumen;
pub mod swim;
pub mod synthetic;
pub mod trace;

use crate::{UnsubmittedJob, profile::Profile, rng::Rng};
pub use load::OfferedLoad;
use mrcore::{PerPhase, Span, job::Priority};

/// Input and work of one map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MapPlan {
    /// Input bytes.
    pub bytes: u64,
    /// Seconds of computing on a machine of speed 1.
    pub work_s: f32,
    /// Whether the map can be split.
    pub divisible: bool,
}

/// Work of one reduce.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReducePlan {
    /// Its fraction of the map output.
    pub share: f32,
    /// Factor for the computing time of its bytes; 0 if only `fixed_s` counts.
    pub factor: f32,
    /// Seconds of computing in addition to those for its bytes.
    pub fixed_s: f32,
}

/// A job of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPlan {
    /// Submission time.
    pub at: Span,
    /// Name of the job.
    pub name: String,
    /// Group in reports, for example all jobs of a size or of a user.
    pub group: String,
    /// User of the job.
    pub user: String,
    /// Queue of the job.
    pub queue: String,
    /// Priority of the job.
    pub priority: Priority,
    /// Maps of the job.
    pub maps: Vec<MapPlan>,
    /// Machines with the input of each map, if known. Empty if the simulator places the blocks.
    pub hosts: Vec<Vec<u32>>,
    /// Reduces of the job.
    pub reduces: Vec<ReducePlan>,
    /// Bytes of map output per byte of input.
    pub map_out: f64,
    /// Input rate of a reduce, bytes per second on a machine of speed 1.
    pub reduce_rate: f64,
    /// Rate of merging, bytes per second.
    pub merge_rate: f64,
    /// Bytes of reduce output per byte of its input.
    pub reduce_out: f64,
    /// Time from the launch of a task to its first record.
    pub startup_time: Span,
    /// Fraction of the maps that must be done before reduces may start.
    pub slow_start: f64,
    /// Whether stragglers may get speculative attempts.
    pub speculation: bool,
    /// Whether slow maps may be split; if not, they get speculative attempts.
    pub split_slow: bool,
}

/// A job whose tasks are not generated yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline<'a> {
    /// Submission, in seconds.
    pub at_s: f64,
    /// Name of the job.
    pub name: String,
    /// Group in reports.
    pub group: String,
    /// User of the job.
    pub user: String,
    /// Number of maps.
    pub maps: u32,
    /// Input bytes of each map.
    pub block: u64,
    /// Number of reduces.
    pub reduces: u32,
    /// Profile of its program.
    pub profile: &'a Profile,
}

/// A list of jobs, oldest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// Name of the workload.
    pub name: String,
    pub jobs: Vec<JobPlan>,
}

impl Outline<'_> {
    /// Generates the tasks of the job.
    pub fn plan(self, rng: &mut Rng) -> JobPlan {
        let Self { at_s, name, group, user, maps, block, reduces, profile } = self;
        let work_s = block as f64 / (profile.map_mbps * 1e6);
        let map = |rng: &mut Rng| MapPlan {
            bytes: block,
            work_s: (work_s * rng.spread(profile.spread)) as f32,
            divisible: true,
        };
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
            startup_time: seconds(profile.start_s),
            slow_start: 0.05,
            speculation: true,
            split_slow: true,
        }
    }
}

impl JobPlan {
    /// Returns whether the job differs from another at most in its group, user and submission time. Its
    /// name is no such difference: the simulator draws the places of its blocks from it.
    pub(crate) fn is_repeated_by(&self, other: &Self) -> bool {
        let (group, user) = (other.group.clone(), other.user.clone());
        Self { at: other.at, group, user, ..self.clone() } == *other
    }

    /// Replaces the times and sizes of the tasks by those that follow from a profile. The splits and
    /// the number of reduces remain.
    pub fn predict(&mut self, profile: &Profile) {
        for map in &mut self.maps {
            map.work_s = (map.bytes as f64 / (profile.map_mbps * 1e6)) as f32;
        }
        let share = 1.0 / self.reduces.len().max(1) as f32;
        self.reduces.fill(ReducePlan { share, factor: 1.0, fixed_s: 0.0 });
        (self.map_out, self.reduce_out) = (profile.map_out, profile.reduce_out);
        (self.reduce_rate, self.merge_rate) = (profile.reduce_mbps * 1e6, profile.merge_mbps * 1e6);
        self.startup_time = seconds(profile.start_s);
    }
}

impl From<&JobPlan> for UnsubmittedJob {
    fn from(plan: &JobPlan) -> Self {
        Self {
            name: plan.name.clone(),
            group: plan.group.clone(),
            user: plan.user.clone(),
            tasks: PerPhase { map: plan.maps.len() as u32, reduce: plan.reduces.len() as u32 },
            input_bytes: plan.maps.iter().map(|map| map.bytes).sum(),
        }
    }
}

impl Workload {
    /// Returns when the last job is submitted, in seconds.
    pub fn last_submission_s(&self) -> f64 {
        self.jobs.last().map_or(0.0, |job| job.at.as_secs_f64())
    }

    /// Sorts the jobs by submission time. The sort is stable.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.jobs.sort_by_key(|job| job.at);
        self
    }

    /// Returns the groups in order of first appearance, or sorted if they are numbers.
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

    /// Returns the number of tasks of all jobs.
    pub fn tasks(&self) -> usize {
        self.jobs.iter().map(|job| job.maps.len() + job.reduces.len()).sum()
    }

    /// Returns a workload with only the job `index`, submitted at the start. Slowdowns are relative
    /// to the duration of such a run.
    #[must_use]
    pub fn only_job(&self, index: usize) -> Self {
        let mut job = self.jobs[index].clone();
        job.at = Span(0);
        Self { name: format!("{} alone", job.name), jobs: vec![job] }
    }
}

/// Converts seconds to a span. Negative numbers and NaN become 0.
pub fn seconds(seconds: f64) -> Span {
    Span((seconds.max(0.0) * 1e6).round() as u64)
}
