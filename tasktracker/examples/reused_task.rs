//! A task process on mrlib whose job says which process it is, where it is, and does nothing else; with the setting
//! `panic` it panics.

use mrlib::task;
use std::{process::ExitCode, sync::Arc};

fn main() -> ExitCode {
    let Some(socket) = task::umbilical_path() else { return ExitCode::from(2) };
    let make: Arc<task::MakeJob> = Arc::new(|_, conf| {
        let here = std::env::current_dir().unwrap_or_default();
        // No end of line: what is buffered must not become the next attempt's.
        print!("{} {}", std::process::id(), here.display());
        eprintln!("process {}", std::process::id());
        assert!(conf.get("panic").is_none(), "as it was told");
        mrlib::registry::job("sort", conf)
    });
    task::serve(&socket, make)
}
