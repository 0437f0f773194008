//! The folder of a member of a group: opens it, and decides whether the member is that of the folder,
//! the first of a new group, or one that joins.
//!
//! - The folder of one master becomes that of the first member.
//! - An empty folder joins the group if there are masters to ask, and is initialised otherwise.
//! - A member that has lost its log, or a part of it, never votes again with its ID: what is left is
//!   renamed, and it joins with a new ID, in place of the member at its address. Until a leader answers,
//!   it waits.
//! - With `--recover`, a member becomes the only one of a new group, with everything in its log: what
//!   an operator does when a majority has lost its folders.
//!
//! The decisions of ADR 0047. The daemon has locked the folder.

use crate::join::{JOIN_RETRY, NewMember};
use journal::{
    DataFolderError, Owner, Recovery, SnapshotWriter,
    disk::{Disk, RealDisk},
    home,
};
use replication::{
    error::{StateError, StoreError},
    raft_file::RaftFile,
    recovery::{self, new_id},
    replay::Replay,
    store::Store,
};
use security::{Credentials, Role};
use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::time::sleep;

/// The file in a folder that has left a group: a new group needs a first member with another ID,
/// because members of the old one may still send messages to the old ID.
const LEFT_FILE: &str = "LEFT-GROUP";

/// Why the folder of a member cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder cannot be read or written.
    #[error(transparent)]
    Folder(#[from] DataFolderError),
    /// The log cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The masters that this member knows belong to another cluster.
    #[error(
        "the folder belongs to cluster {own}, and the master that leads to cluster {other}: check the addresses"
    )]
    OtherCluster {
        /// The cluster of the folder.
        own: String,
        /// The cluster of the leader.
        other: String,
    },
    /// Recovery was requested although the group serves.
    #[error(
        "--recover makes a new group of this member alone, and {0} leads the present one: start this member without \
         --recover, or stop all others first"
    )]
    GroupServes(String),
    /// The folder is to be that of one master, and is that of a member with others.
    #[error(
        "folder {dir} belongs to a member of a group of {title}s: set {name}.member to the ID of that member, or first remove \
         the others from the group (`mrctl masters remove --daemon {name}`)", title = .role.title(), name = .role.name()
    )]
    IsMember {
        /// The folder.
        dir: PathBuf,
        /// What the members are.
        role: Role,
    },
    /// There is no other master that a member without a log could ask.
    #[error("{0}; and no other master is known that could have it: set the addresses of all masters")]
    Alone(StoreError),
}

/// The folder of a member, and what the member is configured with.
pub struct MemberFolder<'a> {
    /// The daemon, and the subfolder of its journal.
    pub owner: Owner,
    /// Path of the folder.
    pub dir: &'a Path,
    /// The member. Its ID is used unless it was exchanged.
    pub member: NewMember,
    /// Addresses of masters that know the group, if the folder is empty.
    pub join: &'a [String],
    /// Addresses of all masters of the group.
    pub masters: &'a [String],
    /// Whether an operator has requested recovery.
    pub recovery: Recovery,
}

/// The open folder of a member.
pub struct OpenFolder {
    /// The log.
    pub store: Store,
    /// ID of the cluster.
    pub cluster_id: String,
    /// Description of records that were lost, for operators.
    pub lost: Option<String>,
}

impl MemberFolder<'_> {
    /// Opens the folder. Waits for the leader of the group if the log is empty, lost or damaged.
    ///
    /// `one_master` opens the folder of one master, which it initialises if it is empty, makes a
    /// snapshot and closes it; it returns a description of records that were lost. `write` writes the
    /// records of the state of a master to a snapshot.
    pub async fn open<E: From<FolderError>>(
        &self,
        credentials: &Credentials,
        one_master: impl FnOnce(Recovery) -> Result<Option<String>, E>,
        write: impl FnOnce(Replay, &mut SnapshotWriter) -> Result<(), StateError>,
    ) -> Result<OpenFolder, E> {
        let known = self.prepare().map_err(E::from)?;
        let is_requested = self.is_recovery_requested().map_err(E::from)?;
        if known.is_none() && self.join.is_empty() && !self.dir.join(self.owner.folder).exists() {
            return self.found(one_master);
        }
        let disk = self.disk().map_err(E::from)?;
        if is_requested && self.is_member(&disk).map_err(E::from)? {
            if let Some(leader) = self.member.find_leader(&self.others(), credentials).await {
                return Err(FolderError::GroupServes(leader).into());
            }
            self.leave(Recovery::DropDamaged, write).map_err(E::from)?;
            return self.found(one_master);
        }
        let opened = recovery::open(&disk, self.member.id);
        let why = match opened {
            Ok(Some(store)) => {
                let id = store.raft_state().node_id;
                if let Some(cluster_id) = known {
                    return Ok(OpenFolder { store, cluster_id, lost: None });
                }
                // It has died while it joined.
                drop(store);
                return Ok(self.join(credentials, id, None).await?);
            }
            Ok(None) if known.is_none() && !self.join.is_empty() => {
                return Ok(self.join(credentials, self.member.id, None).await?);
            }
            Ok(None) if is_requested || self.is_of_one_master(&disk).map_err(E::from)? => {
                return self.found(one_master);
            }
            Ok(None) => StoreError::NothingLeft,
            Err(error) if error.is_loss() => error,
            Err(error) => return Err(FolderError::from(error).into()),
        };
        if self.others().is_empty() {
            return Err(FolderError::Alone(why).into());
        }
        let renamed = recovery::reset(&*disk).map_err(|error| E::from(StoreError::from(error).into()))?;
        tracing::error!(
            %why,
            ?renamed,
            "this member has lost what it has acknowledged: it never votes again with its ID, and waits for the leader of its \
             group, which adds it with a new one"
        );
        Ok(self.join(credentials, random_id(), known).await?)
    }

    /// Makes the folder of a member that of one master, if it is the only one of its group that votes.
    /// Does nothing if it is not the folder of a member. Blocks.
    pub fn leave_if_alone(
        &self,
        write: impl FnOnce(Replay, &mut SnapshotWriter) -> Result<(), StateError>,
    ) -> Result<(), FolderError> {
        home::finish_replacement(self.owner, self.dir)?;
        if !self.dir.join(self.owner.folder).exists() || !self.is_member(&self.disk()?)? {
            return Ok(());
        }
        self.leave(Recovery::Refuse, write).map_err(|error| match error {
            FolderError::Store(StoreError::OthersVote(_)) => {
                FolderError::IsMember { dir: self.dir.into(), role: self.member.role }
            }
            error => error,
        })
    }

    /// Checks the folder. Returns the ID of its cluster, if it has one.
    fn prepare(&self) -> Result<Option<String>, FolderError> {
        home::finish_replacement(self.owner, self.dir)?;
        let known = home::cluster_id(self.dir)?;
        if known.is_none() {
            // A member that asks to join makes its journal first.
            home::check_new(self.owner, self.dir, &[self.owner.folder])?;
        }
        Ok(known)
    }

    fn is_recovery_requested(&self) -> Result<bool, FolderError> {
        Ok(self.recovery == Recovery::DropDamaged || home::is_recovery_requested(self.dir)?)
    }

    /// Returns the disk of the journal. Creates the subfolder, which the folder of one master does not
    /// have before `VERSION`.
    fn disk(&self) -> Result<Arc<dyn Disk>, FolderError> {
        let folder = self.dir.join(self.owner.folder);
        let opened = RealDisk::open(&folder);
        Ok(Arc::new(opened.map_err(|source| DataFolderError::Io { path: folder, source })?))
    }

    /// Returns whether the journal is that of a member, damaged or not.
    fn is_member(&self, disk: &Arc<dyn Disk>) -> Result<bool, FolderError> {
        match RaftFile::read(&**disk) {
            Ok(None) => Ok(recovery::open(disk, self.member.id).is_err_and(|error| error.is_loss())),
            Err(error) if !error.is_damage() => Err(StoreError::from(error).into()),
            _ => Ok(true),
        }
    }

    /// Returns whether a folder without the log of a member is new, or that of one master.
    fn is_of_one_master(&self, disk: &Arc<dyn Disk>) -> Result<bool, FolderError> {
        Ok(home::is_new(self.dir)? || home::has_journal(&**disk).map_err(StoreError::from)?)
    }

    /// Makes the journal of a member that of one master.
    fn leave(
        &self,
        recovery: Recovery,
        write: impl FnOnce(Replay, &mut SnapshotWriter) -> Result<(), StateError>,
    ) -> Result<(), FolderError> {
        if recovery == Recovery::DropDamaged {
            // If this start ends early, the next one continues.
            home::request_recovery(self.dir)?;
        }
        let mut lost = None;
        let kept = home::replace_journal::<FolderError>(self.owner, self.dir, |member, one_master| {
            lost = recovery::leave(&member, one_master, recovery, write)?;
            Ok(home::write_durably(self.dir, LEFT_FILE, "")?)
        })?;
        let kept = kept.display();
        tracing::warn!(%kept, "this master has left its group; its old journal is kept");
        if let Some(why) = lost {
            tracing::error!(%why, "a damaged part of the journal was dropped, as --recover requested");
        }
        Ok(())
    }

    /// Makes the folder of one master, which is initialised if it is empty, that of the first member of
    /// a group. Blocks.
    fn found<E: From<FolderError>>(
        &self,
        one_master: impl FnOnce(Recovery) -> Result<Option<String>, E>,
    ) -> Result<OpenFolder, E> {
        let is_known = home::cluster_id(self.dir).map_err(|error| E::from(error.into()))?.is_some();
        let is_requested = is_known && self.is_recovery_requested().map_err(E::from)?;
        let has_left = is_requested || self.dir.join(LEFT_FILE).exists();
        let id = if has_left { random_id() } else { self.member.id };
        if has_left {
            // Also if this start ends after the recovery.
            home::write_durably(self.dir, LEFT_FILE, "").map_err(|error| E::from(error.into()))?;
        }
        let lost = one_master(self.recovery)?;
        let founded = || -> Result<_, FolderError> {
            let disk = self.disk()?;
            Store::found(&disk, id)?;
            let missing = || DataFolderError::VersionMissing { folder: self.dir.into(), log: self.owner.log };
            let cluster_id = home::cluster_id(self.dir)?.ok_or_else(missing)?;
            Ok(OpenFolder { store: Store::open(&disk, id)?, cluster_id, lost })
        };
        Ok(founded()?)
    }

    /// Asks for the group with this ID, or a new one, until a leader answers. Then makes an empty log.
    /// `known` is the cluster of the folder.
    async fn join(
        &self,
        credentials: &Credentials,
        id: u64,
        known: Option<String>,
    ) -> Result<OpenFolder, FolderError> {
        let mut member = NewMember { id, ..self.member.clone() };
        let mut last = String::new();
        let cluster_id = loop {
            match member.ask(&self.others(), credentials, false).await {
                Ok(reply) if reply.needs_new_id => {
                    member.id = random_id();
                    recovery::reset(&*self.disk()?).map_err(StoreError::from)?;
                    tracing::warn!(
                        old = id,
                        new = member.id,
                        "this {} has lost its folder: it joins its group with a new ID",
                        self.owner.name
                    );
                    continue;
                }
                Ok(reply) => break reply.cluster_id,
                Err(why) if last != why => {
                    tracing::warn!("this {} waits to join its group: {why}", self.owner.name);
                    last = why;
                }
                Err(_) => {}
            }
            sleep(JOIN_RETRY).await;
        };
        if let Some(own) = known.filter(|own| *own != cluster_id) {
            return Err(FolderError::OtherCluster { own, other: cluster_id });
        }
        let disk = self.disk()?;
        let store = Store::open(&disk, member.id)?;
        home::set_cluster_id(self.dir, &cluster_id)?;
        Ok(OpenFolder { store, cluster_id, lost: None })
    }

    /// Returns the addresses of other masters, which may know the group.
    pub fn others(&self) -> Vec<String> {
        let mut others = self.join.to_vec();
        for master in self.masters.iter().filter(|master| **master != self.member.address) {
            if !others.contains(master) {
                others.push(master.clone());
            }
        }
        others
    }
}

/// Returns an ID that no member has had.
fn random_id() -> u64 {
    new_id(RandomState::new().build_hasher().finish())
}
