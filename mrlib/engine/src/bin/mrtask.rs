//! The `mrtask` process: runs attempts of a built-in program for a tracker.

use fermata_engine::{process::shim, registry, task};
use proto::mr::program;
use std::{process::ExitCode, sync::Arc};

fn main() -> ExitCode {
    shim::enter();
    let Some(socket) = task::umbilical_path() else {
        eprintln!(
            "mrtask: only a tasktracker starts this program (it sets {}); to run a built-in program, \
             use `mrctl submit`",
            task::UMBILICAL_VAR
        );
        return ExitCode::from(2);
    };
    let make: Arc<task::MakeJob> = Arc::new(|program, conf| match &program.kind {
        Some(program::Kind::Builtin(name)) => registry::job(name, conf),
        other => {
            Err(format!("mrtask runs built-in programs, not {other:?}: this is a bug in the TaskTracker")
                .into())
        }
    });
    task::serve(&socket, make)
}
