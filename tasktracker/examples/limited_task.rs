//! A task process on mrlib, like that of a job author, whose job reports its resource limits, or
//! allocates memory without end if the setting `eat` is set.

use engine::task;
use mrlib_api::TaskError;
use rustix::process::{Resource, getrlimit};
use std::{process::ExitCode, sync::Arc};

fn main() -> ExitCode {
    let Some(socket) = task::umbilical_path() else { return ExitCode::from(2) };
    let make: Arc<task::MakeJob> = Arc::new(|_, conf| {
        if conf.get("eat").is_some() {
            let mut eaten = Vec::new();
            loop {
                // Reserved and not used, so that the limit of the address space is reached.
                eaten.push(Vec::<u8>::with_capacity(64 << 20));
                std::hint::black_box(&eaten);
            }
        }
        let [memory, files] = [Resource::As, Resource::Nofile].map(|resource| getrlimit(resource).current);
        Err(TaskError::Program(format!("limits {memory:?} {files:?}")))
    });
    task::serve(&socket, make)
}
