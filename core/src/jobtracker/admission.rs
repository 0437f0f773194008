//! Decides whether a submitted job is accepted: limits of the cluster, of a user and of one job,
//! and the output folders of active jobs.
//!
//! [`JobTracker::check_load`] and [`JobTracker::check_output_unused`] are also called before the
//! input of a job is listed, so that this work is not done for a job that is refused.

use super::JobTracker;
use crate::{
    event::JobRefusal,
    ids::RequestId,
    job::{Job, JobSpec},
    quantity::count,
};

impl JobTracker {
    /// Checks a job that was submitted by this request.
    pub(super) fn check_job(&self, request: RequestId, spec: &JobSpec) -> Result<(), JobRefusal> {
        self.check_output_unused(request, &spec.output)?;
        self.check_load(request, &spec.user, task_count(spec))?;
        self.check_spec(spec).map_err(JobRefusal::Invalid)
    }

    /// Checks that a job of this user with `new_tasks` tasks exceeds no limit of the cluster or of
    /// the user. A request whose job exists is always accepted.
    pub fn check_load(&self, request: RequestId, user: &str, new_tasks: u64) -> Result<(), JobRefusal> {
        if self.cluster.job_of_request(request).is_some() {
            return Ok(());
        }
        let (mut all_jobs, mut user_jobs, mut user_tasks) = (0, 0, new_tasks);
        for job in self.cluster.open_jobs() {
            all_jobs += 1;
            if job.spec.user == user {
                user_jobs += 1;
                user_tasks += task_count(&job.spec);
            }
        }
        if all_jobs >= self.config.jobs_max {
            let jobs = count(all_jobs as u64, "job");
            let why = format!("the cluster has {jobs} active (jobtracker.jobs_max)");
            return Err(JobRefusal::Overloaded(why));
        }
        if user_jobs >= self.config.user_jobs_max {
            let jobs = count(user_jobs as u64, "job");
            let why = format!("user {user} has {jobs} active (jobtracker.user_jobs_max)");
            return Err(JobRefusal::Overloaded(why));
        }
        // This limit does not apply to the only job of a user. A single job has its own limits.
        if user_jobs > 0 && user_tasks > self.config.user_tasks_max {
            return Err(JobRefusal::Overloaded(format!(
                "user {user} would have {user_tasks} tasks in active jobs (jobtracker.user_tasks_max)"
            )));
        }
        Ok(())
    }

    /// Checks that no active job writes to this output folder, or to one that is inside or around
    /// it. A request whose job exists is always accepted.
    pub fn check_output_unused(&self, request: RequestId, output: &str) -> Result<(), JobRefusal> {
        if self.cluster.job_of_request(request).is_some() {
            return Ok(());
        }
        match self.cluster.open_jobs().find(|job| shares_output(job, output)) {
            Some(job) => Err(JobRefusal::OutputInUse { job: job.id, output: job.spec.output.clone() }),
            None => Ok(()),
        }
    }

    fn check_spec(&self, spec: &JobSpec) -> Result<(), String> {
        if spec.reduces > self.config.reduces_max {
            return Err(format!(
                "job asks for {} reduces: the limit is {} (jobtracker.reduces_max)",
                spec.reduces, self.config.reduces_max
            ));
        }
        if spec.splits.len() > self.config.maps_max as usize {
            return Err(format!(
                "job has {} maps: the limit is {} (jobtracker.maps_max); use larger splits",
                spec.splits.len(),
                self.config.maps_max
            ));
        }
        if !(0.0..=1.0).contains(&spec.slow_start) {
            return Err(format!("slow start {} is not between 0 and 1", spec.slow_start));
        }
        if spec.attempts_max == 0 {
            return Err("a task needs at least one attempt".into());
        }
        match spec.splits.iter().find(|split| split.end < split.start) {
            Some(split) => {
                Err(format!("a split of {} ends at byte {}, before it starts", split.source, split.end))
            }
            None => Ok(()),
        }
    }
}

fn task_count(spec: &JobSpec) -> u64 {
    spec.splits.len() as u64 + u64::from(spec.reduces)
}

/// Returns whether the job is active and its output folder is `output`, inside it or around it.
fn shares_output(job: &Job, output: &str) -> bool {
    let inside = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let other = job.spec.output.as_str();
    let both = !output.is_empty() && !other.is_empty();
    both && (inside(output, other) || inside(other, output))
}
