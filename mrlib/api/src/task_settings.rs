//! Settings that describe the task: `task.attempt`, `map.input.file` and so on.
//!
//! Mappers and reducers read them like any setting; streaming programs find them in their
//! environment.

/// The attempt, such as `job_7.m3.0`.
pub const TASK_ATTEMPT: &str = "task.attempt";
/// The task, such as `job_7.m3`.
pub const TASK_ID: &str = "task.id";
/// The index of the task among the maps or reduces of the job.
pub const TASK_INDEX: &str = "task.index";
/// `map` or `reduce`.
pub const TASK_KIND: &str = "task.kind";
/// The folder in the file system for the output of this attempt.
pub const TASK_OUTPUT: &str = "task.output";
/// The job, such as `job_7`.
pub const JOB_ID: &str = "job.id";
/// The name of the job.
pub const JOB_NAME: &str = "job.name";
/// The user who submitted the job.
pub const JOB_USER: &str = "job.user";
/// The number of reduces.
pub const JOB_REDUCES: &str = "job.reduces";
/// The input file of a map.
pub const MAP_INPUT_FILE: &str = "map.input.file";
/// The offset in the input file at which the range of the map begins.
pub const MAP_INPUT_START: &str = "map.input.start";
/// The length of the range of the map in bytes.
pub const MAP_INPUT_LENGTH: &str = "map.input.length";
