//! Why a NameNode ends.

use super::storage::StorageError;
use daemon::{listen::ListenError, lock::LockError};
use journal::{DataFolderError, LogFailed};
use peers::leader::NoAddress;
use replication::{error::StoreError, member::StartError};
use security::SecurityError;
use std::{io, path::PathBuf};

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
    Folder(#[from] DataFolderError),
    /// The folder belongs to a member of a group.
    #[error(
        "folder {0} belongs to a member of a group of NameNodes: set namenode.member to the ID of that member"
    )]
    IsMember(PathBuf),
    /// Recovery was requested for a member of a group.
    #[error(
        "--recover is for one NameNode: a member that has lost part of its edit log must not vote; remove it from its \
         group, and start it with an empty folder and another namenode.member"
    )]
    RecoverMember,
    /// Other members cannot reach a member.
    #[error(transparent)]
    NoAddress(#[from] NoAddress),
    /// The edit log of a member cannot be used.
    #[error("edit log: {0}")]
    Store(#[from] StoreError),
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
