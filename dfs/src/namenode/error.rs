//! Why a NameNode ends.

use super::storage::StorageError;
use daemon::{listen::ListenError, lock::LockError};
use journal::LogFailed;
use peers::{folder::FolderError, leader::NoAddress};
use replication::member::StartError;
use security::SecurityError;
use std::io;

/// Why a NameNode ended.
#[derive(Debug, thiserror::Error)]
pub enum NameNodeError {
    /// The folder is in use by another process.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The contents of the folder cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The folder of a member of a group cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Other members cannot reach a member.
    #[error(transparent)]
    NoAddress(#[from] NoAddress),
    /// The member cannot be started.
    #[error("{0}")]
    Start(#[from] StartError),
    /// A credential, key or certificate cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The edit log failed.
    #[error(transparent)]
    Log(#[from] LogFailed),
    /// The server failed.
    #[error("cannot serve: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// An operation of the operating system failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}
