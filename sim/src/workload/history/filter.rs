//! Selects the jobs that can be replayed. Reports every skipped job, and rejects histories of
//! different clusters.

use super::{Environment, History, Job, Workload};
use crate::workload::JobPlan;
use mrcore::ids::JobId;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// A job that cannot be replayed from its history, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkippedJob {
    /// The job was active when its history was read.
    Unfinished(JobId),
    /// The job failed or was killed, so the times of its tasks are unknown.
    Unsuccessful(JobId),
    /// The job succeeded, but so many of its tasks have no launch or no result in the history.
    Incomplete(JobId, usize),
    /// The job appears in more than one history.
    Twice(JobId),
}

impl fmt::Display for SkippedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfinished(job) => write!(f, "{job} has not ended"),
            Self::Unsuccessful(job) => write!(f, "{job} did not succeed"),
            Self::Incomplete(job, tasks) => {
                write!(f, "{job} lacks lines of {}", crate::count(*tasks, "task"))
            }
            Self::Twice(job) => write!(f, "{job} appears twice"),
        }
    }
}

/// Returns a message such as `skipped 2 jobs: job_1 has not ended, job_7 appears twice`; `None` if
/// no job was skipped.
pub fn skipped_jobs(jobs: &[SkippedJob]) -> Option<String> {
    const NAMED: usize = 8;
    let named: Vec<String> = jobs.iter().take(NAMED).map(SkippedJob::to_string).collect();
    let more = if jobs.len() > NAMED { format!(", and {} more", jobs.len() - NAMED) } else { String::new() };
    let all = crate::count(jobs.len(), "job");
    (!jobs.is_empty()).then(|| format!("skipped {all}: {}{more}", named.join(", ")))
}

/// A policy with its parameters, and the jobs that were submitted while it was in use. A history
/// has one for each policy that its jobs ran under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyUse {
    /// Name for `schedulers::make`.
    pub policy: String,
    pub params: BTreeMap<String, String>,
    /// The jobs, in the order of the files.
    pub jobs: Vec<JobId>,
}

/// State of the filter while histories are read.
#[derive(Default)]
pub(super) struct HistoryFilter {
    cluster: Option<String>,
    seen: BTreeSet<JobId>,
    pub(super) skipped_jobs: Vec<SkippedJob>,
    pub(super) policies: Vec<PolicyUse>,
}

impl HistoryFilter {
    /// Starts the history of a job. Returns false if a history of the job was read before. Returns
    /// an error if the job is of another cluster than earlier jobs, because nodes of different
    /// clusters have the same names and jobs the same IDs.
    pub(super) fn begin(&mut self, cluster: &str, job: JobId) -> Result<bool, String> {
        let first = self.cluster.get_or_insert_with(|| cluster.to_owned());
        if first != cluster {
            return Err(format!(
                "{job} is of cluster {cluster}, but earlier jobs are of cluster {first}: use histories of one cluster"
            ));
        }
        let is_new = self.seen.insert(job);
        if !is_new {
            self.skipped_jobs.push(SkippedJob::Twice(job));
        }
        Ok(is_new)
    }

    /// Records the outcome and the policy of a job whose history has been read.
    pub(super) fn end(&mut self, job: &Job, environment: Option<&Environment>) {
        match (job.ended, job.succeeded) {
            (None, _) => self.skipped_jobs.push(SkippedJob::Unfinished(job.id)),
            (Some(_), false) => self.skipped_jobs.push(SkippedJob::Unsuccessful(job.id)),
            (Some(_), true) => {
                let missing = job.tasks_without_lines();
                self.skipped_jobs.extend((missing > 0).then_some(SkippedJob::Incomplete(job.id, missing)));
            }
        }
        let Some(Environment { policy, params, .. }) = environment else { return };
        let same = |ran: &&mut PolicyUse| (&ran.policy, &ran.params) == (policy, params);
        if let Some(ran) = self.policies.iter_mut().find(same) {
            ran.jobs.push(job.id);
        } else {
            let jobs = vec![job.id];
            self.policies.push(PolicyUse { policy: policy.clone(), params: params.clone(), jobs });
        }
    }
}

impl History {
    /// Returns the jobs that succeeded and whose history is complete, with their names and real
    /// seconds. The task times of other jobs are unknown.
    pub fn succeeded(&self) -> (Workload, Vec<(String, f64)>) {
        let both = || self.workload.jobs.iter().zip(&self.real).filter(|(_, real)| real.succeeded);
        let jobs: Vec<JobPlan> = both().map(|(job, _)| job.clone()).collect();
        let real =
            both().map(|(_, real)| (format!("{} {}", real.id, real.name), real.makespan.as_secs_f64()));
        (Workload { name: self.workload.name.clone(), jobs }, real.collect())
    }

    /// Returns whether a job was skipped because it was still active. Such a job occupied slots for
    /// longer than its history shows.
    pub fn is_truncated(&self) -> bool {
        self.skipped_jobs.iter().any(|job| matches!(job, SkippedJob::Unfinished(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::history::{read, read_texts};

    /// A history with one map of 3 s that starts a second after submission.
    fn history(cluster: &str, job: u32, policy: &str, outcome: &str) -> String {
        let lines = [
            format!(
                r#"{{"format":3,"cluster":"{cluster}","job":"job_{job}","at_us":1000000,"spec":{{"name":"sort","user":"ann","queue":"q","priority":"high","program":"builtin:sort","reduces":0,"slow_start":0.05,"speculation":false,"splits":[{{"start":0,"end":100}}]}}}}"#
            ),
            format!(
                r#"{{"at_us":1000000,"fact":{{"submitted-to":{{"policy":"{policy}","params":{{}},"trackers":[]}}}}}}"#
            ),
            format!(
                r#"{{"at_us":2000000,"fact":{{"attempt-launched":{{"attempt":"job_{job}.m0.0","tracker":"node1"}}}}}}"#
            ),
            format!(
                r#"{{"at_us":5000000,"fact":{{"attempt-succeeded":{{"attempt":"job_{job}.m0.0","bytes_out":1}}}}}}"#
            ),
            format!(r#"{{"at_us":5000000,"fact":{{"job-ended":{{"outcome":"{outcome}"}}}}}}"#),
        ];
        let count = if outcome.is_empty() { 4 } else { 5 };
        lines[..count].join("\n")
    }

    fn texts(runs: &[String]) -> Vec<(String, String)> {
        runs.iter().map(|history| ("a file".to_owned(), history.clone())).collect()
    }

    #[test]
    fn skipped_jobs_are_reported() {
        let whole = history("c", 4, "fair", "succeeded");
        let without_launch: Vec<&str> = whole.lines().filter(|line| !line.contains("launched")).collect();
        let without_launch = without_launch.join("\n");
        let runs = [
            history("c", 1, "fair", ""),
            history("c", 2, "fair", "succeeded"),
            history("c", 2, "fair", "succeeded"),
            history("c", 3, "fair", "killed"),
            without_launch,
        ];
        let history = read_texts(&texts(&runs)).expect("they read");
        assert_eq!(
            skipped_jobs(&history.skipped_jobs).as_deref(),
            Some(
                "skipped 4 jobs: job_1 has not ended, job_2 appears twice, job_3 did not succeed, job_4 lacks lines of 1 task"
            )
        );
        assert!(history.is_truncated());
        let (workload, real) = history.succeeded();
        assert_eq!((workload.jobs.len(), real), (1, vec![("job_2 sort".to_owned(), 4.0)]));
        assert_eq!(history.metrics.jobs().count(), 4, "figures must include every job once");
        assert_eq!(skipped_jobs(&[]), None);
    }

    #[test]
    fn error_says_that_no_job_has_ended_if_all_are_active() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("job_1.jsonl"), history("c", 1, "fair", "")).expect("a file");
        let error = read(folder.path()).map(|_| ()).expect_err("nothing to run again").to_string();
        assert!(error.ends_with("no job in it has ended: skipped 1 job: job_1 has not ended"), "{error}");
    }

    #[test]
    fn histories_of_two_clusters_are_rejected_and_policies_are_distinguished() {
        let runs = [history("c", 1, "fair", "succeeded"), history("d", 2, "fair", "succeeded")];
        let error = read_texts(&texts(&runs)).map(|_| ()).expect_err("two clusters").to_string();
        assert!(error.contains("a file:1: job_2 is of cluster d"), "{error}");
        let runs = [
            history("c", 1, "fair", "succeeded"),
            history("c", 2, "fifo", "succeeded"),
            history("c", 3, "fair", "succeeded"),
        ];
        let history = read_texts(&texts(&runs)).expect("they read");
        let policies: Vec<(&str, usize)> =
            history.policies.iter().map(|ran| (ran.policy.as_str(), ran.jobs.len())).collect();
        assert_eq!(policies, [("fair", 2), ("fifo", 1)]);
    }
}
