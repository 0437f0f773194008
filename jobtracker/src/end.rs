//! Why a JobTracker ends.

use crate::storage::StorageError;
use daemon::{config::ConfigError, listen::ListenError, lock::LockError};
use journal::LogFailed;
use peers::{folder::FolderError, leader::NoAddress};
use replication::{error::StoreError, member::StartError};
use security::SecurityError;
use std::io;

/// Why a JobTracker ended.
#[derive(Debug, thiserror::Error)]
pub enum JobTrackerError {
    /// The policy does not exist, or a parameter is invalid.
    #[error(transparent)]
    Scheduler(#[from] ConfigError),
    /// Another process uses the folder.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder or the journal cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The folder of a member of a group cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Other members cannot reach a member.
    #[error(transparent)]
    NoAddress(#[from] NoAddress),
    /// The journal of a member cannot be used.
    #[error("journal: {0}")]
    Store(#[from] StoreError),
    /// The member cannot be started.
    #[error("{0}")]
    Start(#[from] StartError),
    /// The credentials or the access policy cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The address is not available.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The journal failed.
    #[error(transparent)]
    Log(#[from] LogFailed),
    /// Serving failed.
    #[error("cannot serve: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// The process cannot continue, for this reason.
    #[error("{0}")]
    Stopped(String),
    /// An error of the operating system.
    #[error("{0}")]
    Io(#[from] io::Error),
}
