//! The built-in programs by name.

use crate::{
    programs::{self, Builtin},
    streaming,
};
use mrlib_api::{Conf, Job, TaskError};

/// The name of the program that runs arbitrary executables.
pub const STREAMING: &str = "streaming";

const STREAMING_PROGRAM: Builtin = Builtin {
    name: STREAMING,
    about: "any executable as mapper, combiner and reducer",
    settings: streaming::SETTINGS,
    make: streaming::job,
};

/// Returns all built-in programs.
pub fn builtins() -> impl Iterator<Item = &'static Builtin> {
    programs::ALL.iter().chain([&STREAMING_PROGRAM])
}

/// Returns the program with this name.
pub fn find(name: &str) -> Option<&'static Builtin> {
    builtins().find(|builtin| builtin.name == name)
}

/// Returns the setting that names the side file of a built-in program, and the name.
pub fn side_file<'a>(name: &str, conf: &'a Conf) -> Option<(&'static str, &'a str)> {
    (name == "kmeans").then(|| ("kmeans.centroids", programs::kmeans::side_file(conf)))
}

/// Creates the job of a built-in program.
pub fn job(name: &str, conf: &Conf) -> Result<Job, TaskError> {
    let Some(builtin) = find(name) else {
        let known: Vec<&str> = builtins().map(|builtin| builtin.name).collect();
        return Err(
            format!("there is no built-in program {name:?}: the programs are {}", known.join(", ")).into()
        );
    };
    let mut job = (builtin.make)(conf)?;
    job.settings.extend_from_slice(builtin.settings);
    Ok(job)
}
