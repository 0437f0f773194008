//! Errors that end a tracker.

use std::path::PathBuf;

/// Why a tracker cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] daemon::config::ConfigError),
    /// The credentials cannot be used.
    #[error(transparent)]
    Security(#[from] security::SecurityError),
    /// The tracker cannot listen on an address.
    #[error(transparent)]
    Listen(#[from] daemon::listen::ListenError),
    /// A folder is locked, or cannot be locked.
    #[error(transparent)]
    Lock(#[from] daemon::lock::LockError),
    /// A folder cannot be used.
    #[error("cannot {what} {path}: {source}")]
    Folder {
        /// The operation that failed, a verb such as "open".
        what: &'static str,
        /// Path of the folder.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The address of the JobTracker is invalid.
    #[error("jobtracker address {0:?} is not host:port")]
    JobTracker(String),
    /// The JobTracker has refused this tracker.
    #[error("refused by the jobtracker at {jobtracker}: {text}")]
    Refused {
        /// Address of the JobTracker.
        jobtracker: String,
        /// Reason.
        text: String,
    },
    /// There is no account for tasks.
    #[error("{0}")]
    Account(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The program that runs tasks does not exist.
    #[error("{0} does not exist or is not a file: build it, or give its path with --mrtask")]
    Program(PathBuf),
    /// The ready file cannot be written.
    #[error("cannot write the ready file: {0}")]
    Ready(std::io::Error),
}

/// Returns a function for `map_err` that adds the operation and the path to an error.
pub(crate) fn folder_error<'a>(
    what: &'static str,
    path: &'a std::path::Path,
) -> impl FnOnce(std::io::Error) -> TrackerError + 'a {
    move |source| TrackerError::Folder { what, path: path.into(), source }
}
