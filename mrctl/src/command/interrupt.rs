//! What Ctrl-C, SIGTERM and the end of the terminal do to simulations and to runs on temporary clusters.
//!
//! They say at once what happens. What the process has not finished is removed: outputs, external
//! policies, and temporary clusters. Deliberately absent: SIGKILL, after which the next process that
//! writes the same output, or starts a cluster in the same folder, removes what is left.

use super::outputs;
use daemon::lifecycle::end_signal;

/// Exit code of a process that a signal has ended.
const EXIT_INTERRUPTED: i32 = 130;

/// Makes the first signal end the process.
pub(crate) fn end_at_first_signal() {
    tokio::spawn(async {
        end_signal().await;
        eprintln!("mrctl: interrupted: the run is not complete, so no result is written");
        end_now()
    });
}

/// Makes the first signal call a function, and the second one end the process. `what` says what the
/// function does.
pub(crate) fn end_at_second_signal(what: &'static str, stop: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        end_signal().await;
        eprintln!("mrctl: interrupted: {what}; a second Ctrl-C ends mrctl at once");
        stop();
        end_signal().await;
        eprintln!("mrctl: interrupted again: removing what is not finished");
        end_now()
    });
}

/// Removes what is not finished, and ends the process.
fn end_now() -> ! {
    clusters::local::remove_temporary_clusters();
    let _no_new_outputs = outputs::remove_unfinished();
    sim::kill_external_policies();
    std::process::exit(EXIT_INTERRUPTED)
}
