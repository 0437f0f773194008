//! The output of a job: the folders that its attempts write to, and what an ended job leaves in the
//! file system. Paths are text: the file system itself belongs to the driver.

use crate::{
    ids::AttemptId,
    job::{Job, JobOutcome, JobState},
    phase::Phase,
    task::AttemptResult,
};

/// Folder in the output folder of a job to which attempts write.
pub const WORK_DIR: &str = "_temporary";

/// Returns the folder for the pieces (output files) of an attempt; empty if the attempt writes
/// none.
pub fn work_folder(job: &Job, attempt: AttemptId) -> String {
    let writes = attempt.phase() == Phase::Reduce || job.spec.reduces == 0;
    if job.spec.output.is_empty() || !writes {
        return String::new();
    }
    format!("{}/{attempt}", work_folder_of_job(job))
}

fn work_folder_of_job(job: &Job) -> String {
    format!("{}/{WORK_DIR}/{}", job.spec.output, job.id)
}

/// Returns the first piece (output file) in a result that is outside the folders that the attempt
/// may write to: its own folder, and those of the paused attempts that it resumes. The commit would
/// move this file. Pieces are normalised paths.
pub(crate) fn piece_outside_folders<'a>(
    job: &Job,
    attempt: AttemptId,
    result: &'a AttemptResult,
) -> Option<&'a str> {
    let chain = job.task(attempt.task)?.resume_chain(attempt.number);
    let folders = chain.map(|attempt| work_folder(job, attempt.id)).filter(|folder| !folder.is_empty());
    let folders: Vec<String> = folders.map(|folder| folder + "/").collect();
    let is_inside = |piece: &str| folders.iter().any(|folder| piece.starts_with(folder));
    result.pieces.iter().map(String::as_str).find(|piece| !is_inside(piece))
}

/// What to delete in the file system after a job has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftovers {
    /// The user with whose permissions everything is deleted.
    pub user: String,
    /// The staging folder, if the job has one.
    pub staging: Option<String>,
    /// The folder that the attempts of the job wrote to, if it may exist.
    pub work_folder: Option<String>,
    /// Whether to delete the output folder too if it is empty. True if the job did not succeed.
    pub discard_output: bool,
}

impl Leftovers {
    /// Returns the leftovers of a job. The commit of a successful job deletes its work folder, so
    /// the work folder of such a job is included only if an attempt may have written to it since
    /// then.
    pub fn of_job(job: &Job, written_since: bool) -> Self {
        let discard_output = job.state != JobState::Ended(JobOutcome::Succeeded);
        let may_exist = !job.spec.output.is_empty() && (discard_output || written_since);
        Self {
            user: job.spec.user.clone(),
            staging: job.spec.payload.staging.clone(),
            work_folder: may_exist.then(|| work_folder_of_job(job)),
            discard_output,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::Cluster,
        fact::Fact,
        ids::{JobId, RequestId},
        job::{JobSpec, Payload, Priority, Program},
        time::Time,
    };
    use std::{collections::BTreeMap, sync::Arc};

    fn job(output: &str, reduces: u32, outcome: Option<JobOutcome>) -> Job {
        let spec = JobSpec {
            name: "job".into(),
            user: "ann".into(),
            queue: String::new(),
            priority: Priority::Normal,
            program: Program::Builtin(String::new()),
            splits: Vec::new(),
            reduces,
            output: output.into(),
            slow_start: 1.0,
            speculation: false,
            split_slow: true,
            attempts_max: 4,
            conf: BTreeMap::new(),
            payload: Payload { staging: Some("/staged".into()), ..Payload::default() },
        };
        let (job, mut cluster) = (JobId(1), Cluster::default());
        let mut apply = |fact| cluster.apply(Time(0), &fact).unwrap();
        apply(Fact::JobSubmitted { job, request: RequestId(1), spec: Arc::new(spec) });
        if let Some(outcome) = outcome {
            apply(Fact::JobEnded { job, outcome });
        }
        cluster.job(job).unwrap().clone()
    }

    #[test]
    fn only_attempts_that_write_output_have_a_work_folder() {
        let (map, reduce): (AttemptId, AttemptId) =
            ("job_1.m0.0".parse().unwrap(), "job_1.r0.2".parse().unwrap());
        assert_eq!(work_folder(&job("/out", 1, None), reduce), "/out/_temporary/job_1/job_1.r0.2");
        assert_eq!(work_folder(&job("/out", 1, None), map), "");
        assert_eq!(work_folder(&job("/out", 0, None), map), "/out/_temporary/job_1/job_1.m0.0");
        assert_eq!(work_folder(&job("", 0, None), map), "");
    }

    #[test]
    fn leftovers_include_the_work_folder_if_it_may_exist_and_the_output_folder_without_success() {
        let leftovers = |output: &str, outcome: JobOutcome, written_since| {
            let leftovers = Leftovers::of_job(&job(output, 1, Some(outcome)), written_since);
            assert_eq!((leftovers.user.as_str(), leftovers.staging.as_deref()), ("ann", Some("/staged")));
            (leftovers.work_folder, leftovers.discard_output)
        };
        let work_folder = Some("/out/_temporary/job_1".to_owned());
        assert_eq!(leftovers("/out", JobOutcome::Succeeded, false), (None, false));
        assert_eq!(leftovers("/out", JobOutcome::Succeeded, true), (work_folder.clone(), false));
        for written_since in [false, true] {
            let outcome = JobOutcome::Killed("by ann".into());
            assert_eq!(leftovers("/out", outcome.clone(), written_since), (work_folder.clone(), true));
            assert_eq!(leftovers("", outcome, written_since), (None, true));
        }
    }
}
