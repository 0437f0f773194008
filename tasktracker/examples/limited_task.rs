//! A task process on mrlib, as a job author's is, whose job does nothing but reach for its limits: it says what
//! they are, or takes memory without end if the job's setting `eat` is set.

use mrlib::{TaskError, task};
use rustix::process::{Resource, getrlimit};
use std::{process::ExitCode, sync::Arc};

fn main() -> ExitCode {
    let Some(socket) = task::umbilical_path() else { return ExitCode::from(2) };
    let make: Arc<task::MakeJob> = Arc::new(|_, conf| {
        if conf.get("eat").is_some() {
            let mut eaten = Vec::new();
            loop {
                // Reserved and not used, so that it is the address space that ends.
                eaten.push(Vec::<u8>::with_capacity(64 << 20));
                std::hint::black_box(&eaten);
            }
        }
        let [memory, files] = [Resource::As, Resource::Nofile].map(|resource| getrlimit(resource).current);
        Err(TaskError::Program(format!("limits {memory:?} {files:?}")))
    });
    task::serve(&socket, make)
}
