//! The description of a job that a caller submits to the JobTracker.

use std::collections::BTreeMap;

/// A job to submit. The program is either `builtin` or `executable`.
#[derive(Debug, Clone, Default)]
pub struct Submission {
    /// The human-readable name of the job.
    pub name: String,
    /// The queue or pool; empty means `default`.
    pub queue: String,
    /// The priority, from `very-low` to `very-high`; empty means `normal`.
    pub priority: String,
    /// The name of a built-in program.
    pub builtin: Option<String>,
    /// The path of an executable in the file system ([`crate::StagingFolder::put`]).
    pub executable: Option<String>,
    /// The paths of side files in the file system.
    pub files: Vec<String>,
    /// The names of the settings that the executable declares.
    pub declared: Vec<String>,
    /// Files, folders and patterns to read.
    pub inputs: Vec<String>,
    /// A new folder for the output; empty to discard the output.
    pub output: String,
    /// The number of reduces.
    pub reduces: u32,
    /// The settings of the job, by name.
    pub conf: BTreeMap<String, String>,
    /// Whether the executable promises that its input may be divided at any record. The JobTracker
    /// knows this of a built-in program.
    pub divisible: bool,
    /// The staging folder of the job, which the JobTracker deletes when the job ends; empty for
    /// none ([`crate::StagingFolder::add_to`]).
    pub staging: String,
}
