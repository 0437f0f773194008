//! A task process on mrlib, as a job author would write it. Its job fails with its resource limits
//! as the error, or allocates memory forever if the setting `eat` is set.

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
                // The memory is reserved but not used, so that the limit of the address space is
                // reached.
                eaten.push(Vec::<u8>::with_capacity(64 << 20));
                std::hint::black_box(&eaten);
            }
        }
        let [memory, files] = [Resource::As, Resource::Nofile].map(|resource| getrlimit(resource).current);
        Err(TaskError::Program(format!("limits {memory:?} {files:?}")))
    });
    task::serve(&socket, make)
}
