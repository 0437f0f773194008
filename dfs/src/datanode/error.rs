//! Why a DataNode cannot start or go on. What goes wrong in one transfer is not here: see `TransferError`.

use std::path::PathBuf;

/// Ends the DataNode.
#[derive(Debug, thiserror::Error)]
pub enum DataNodeError {
    /// A folder is in use, or cannot be made.
    #[error(transparent)]
    Lock(#[from] daemon::lock::LockError),
    /// The address cannot be served on.
    #[error(transparent)]
    Listen(#[from] daemon::listen::ListenError),
    /// A file or folder of a data folder cannot be used.
    #[error("cannot {what} {path}: {source}")]
    Folder {
        /// What was tried, e.g. `read`.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The ready file cannot be written.
    #[error("cannot write the ready file: {source}")]
    Ready {
        /// Why.
        source: std::io::Error,
    },
}
