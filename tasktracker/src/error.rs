//! What ends a tracker.

use std::path::PathBuf;

/// Why a tracker cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrackerError {
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] daemon::config::ConfigError),
    /// What it has to show or to ask for cannot be used.
    #[error(transparent)]
    Security(#[from] security::SecurityError),
    /// An address cannot be served on.
    #[error(transparent)]
    Listen(#[from] daemon::listen::ListenError),
    /// A folder is in use, or cannot be.
    #[error(transparent)]
    Lock(#[from] daemon::lock::LockError),
    /// A folder cannot be used.
    #[error("cannot {what} {path}: {source}")]
    Folder {
        /// To do what.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The JobTracker's address is none.
    #[error("jobtracker address {0:?} is not host:port")]
    JobTracker(String),
    /// The JobTracker will not have this tracker.
    #[error("refused by the jobtracker at {jobtracker}: {text}")]
    Refused {
        /// Where it is.
        jobtracker: String,
        /// What it said.
        text: String,
    },
    /// There is no account that tasks may run as.
    #[error("{0}")]
    Account(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The program that runs tasks is not there.
    #[error("{0} is not there or not a file: build it, or name it with --mrtask")]
    Program(PathBuf),
    /// The ready file cannot be written.
    #[error("cannot write the ready file: {0}")]
    Ready(std::io::Error),
}

/// For `map_err`: names what was tried, and where.
pub(crate) fn folder<'a>(
    what: &'static str,
    path: &'a std::path::Path,
) -> impl FnOnce(std::io::Error) -> TrackerError + 'a {
    move |source| TrackerError::Folder { what, path: path.into(), source }
}
