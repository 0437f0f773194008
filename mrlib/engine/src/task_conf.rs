//! The settings that describe a task, from its specification, and the parts of the name of an
//! attempt.

use mrlib_api::{
    Conf, TaskError,
    task_settings::{
        JOB_ID, JOB_NAME, JOB_REDUCES, JOB_USER, MAP_INPUT_FILE, MAP_INPUT_LENGTH, MAP_INPUT_START,
        TASK_ATTEMPT, TASK_ID, TASK_INDEX, TASK_KIND, TASK_OUTPUT,
    },
};
use proto::mr::{TaskSpec, task_spec};

/// Returns the settings of the job, with those that describe the task.
pub(crate) fn conf_of(spec: &TaskSpec) -> Result<Conf, TaskError> {
    let mut conf: Conf = spec.conf.clone().into_iter().collect();
    let (task, job, index) = parse_attempt(&spec.attempt)?;
    conf.set(TASK_ATTEMPT, &spec.attempt);
    conf.set(TASK_ID, task);
    conf.set(TASK_INDEX, index);
    conf.set(TASK_OUTPUT, &spec.work_output);
    conf.set(JOB_ID, job);
    conf.set(JOB_NAME, &spec.job_name);
    conf.set(JOB_USER, &spec.user);
    conf.set(JOB_REDUCES, spec.reduces.to_string());
    match &spec.input {
        Some(task_spec::Input::Split(split)) => {
            conf.set(TASK_KIND, "map");
            conf.set(MAP_INPUT_FILE, &split.source);
            conf.set(MAP_INPUT_START, split.start.to_string());
            conf.set(MAP_INPUT_LENGTH, split.end.saturating_sub(split.start).to_string());
        }
        Some(task_spec::Input::Partition(_)) => conf.set(TASK_KIND, "reduce"),
        None => {
            return Err(TaskError::Program(format!(
                "{} has no input: this is a bug in the TaskTracker",
                spec.attempt
            )));
        }
    }
    Ok(conf)
}

/// Returns the task ID, the job ID and the task index of an attempt.
fn parse_attempt(attempt: &str) -> Result<(&str, &str, &str), TaskError> {
    let split = || {
        let (task, _) = attempt.rsplit_once('.')?;
        let (job, name) = task.rsplit_once('.')?;
        let index = name.strip_prefix(['m', 'r'])?;
        Some((task, job, index))
    };
    split().ok_or_else(|| {
        TaskError::Program(format!("{attempt:?} is not an attempt ID: it must look like job_7.m3.0"))
    })
}

/// Returns the name of the output of an attempt, as its user sees it: `part-r-00003` for
/// `job_7.r3.0`.
pub(crate) fn part_name_of(attempt: &str) -> Result<String, TaskError> {
    let (task, _, index) = parse_attempt(attempt)?;
    let phase = task.strip_suffix(index).and_then(|task| task.chars().last()).unwrap_or('m');
    Ok(format!("part-{phase}-{index:0>5}"))
}

/// Returns the index of the map that an attempt belongs to: 3 for `job_7.m3.0`.
pub(crate) fn map_index_of(attempt: &str) -> Option<u32> {
    let (task, _, index) = parse_attempt(attempt).ok()?;
    task.rsplit_once(".m").and_then(|_| index.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_ids_are_parsed_and_malformed_ids_are_refused() {
        assert_eq!(parse_attempt("job_7.m3.0").expect("a valid attempt ID"), ("job_7.m3", "job_7", "3"));
        assert_eq!(parse_attempt("job_7.r12.4").expect("a valid attempt ID"), ("job_7.r12", "job_7", "12"));
        assert_eq!(part_name_of("job_7.m3.0").expect("a valid attempt ID"), "part-m-00003");
        assert_eq!(part_name_of("job_7.r12.4").expect("a valid attempt ID"), "part-r-00012");
        for bad in ["", "job_7", "job_7.m3", "a.b.c"] {
            assert!(parse_attempt(bad).is_err() && part_name_of(bad).is_err(), "{bad}");
            assert_eq!(map_index_of(bad), None);
        }
        assert_eq!(
            (map_index_of("job_7.m3.0"), map_index_of("job_7.r3.0"), map_index_of("job_7.mx.0")),
            (Some(3), None, None)
        );
    }
}
