//! A task process on mrlib. Its job prints its process ID and working folder, and panics if the
//! setting `panic` is set.

use engine::task;
use std::{process::ExitCode, sync::Arc};

fn main() -> ExitCode {
    let Some(socket) = task::umbilical_path() else { return ExitCode::from(2) };
    let make: Arc<task::MakeJob> = Arc::new(|_, conf| {
        let here = std::env::current_dir().unwrap_or_default();
        // Print no newline, so that the output is buffered. It must not appear in the log of the
        // next attempt.
        print!("{} {}", std::process::id(), here.display());
        eprintln!("process {}", std::process::id());
        assert!(conf.get("panic").is_none(), "panic requested");
        engine::registry::job("sort", conf)
    });
    task::serve(&socket, make)
}
