//! A task process on mrlib whose job prints its process ID and folder; with the setting `panic` it
//! panics.

use engine::task;
use std::{process::ExitCode, sync::Arc};

fn main() -> ExitCode {
    let Some(socket) = task::umbilical_path() else { return ExitCode::from(2) };
    let make: Arc<task::MakeJob> = Arc::new(|_, conf| {
        let here = std::env::current_dir().unwrap_or_default();
        // No line end: buffered output must not appear in the log of the next attempt.
        print!("{} {}", std::process::id(), here.display());
        eprintln!("process {}", std::process::id());
        assert!(conf.get("panic").is_none(), "panic requested");
        engine::registry::job("sort", conf)
    });
    task::serve(&socket, make)
}
