//! A NameNode as a member of a group (ADR 0040): its folder, and its driver as the state that all
//! members have.
//!
//! The folder of the first member is that of one NameNode, which has made a snapshot. Another member
//! begins with an empty folder: it asks the NameNodes that it knows, and the leader adds it and
//! sends it everything.

use super::{
    driver::Driver,
    error::NameNodeError,
    namespace::Record,
    storage::{self, OWNER, Storage},
};
use daemon::config::{Config, NameNodeConfig};
use journal::{
    DataFolderError, Recovery,
    bugs::{self, Bug},
    codec,
    disk::{Disk, RealDisk},
    home,
};
use peers::{
    GroupName,
    join::NewMember,
    membership::Membership,
    service::{PeerService, PeersServer},
    transport::GrpcTransport,
};
use replication::{
    error::{StateError, StoreError},
    machine::ReplicatedState,
    master::Journal,
    member::{Member, Timing},
    raft_file::{self, RaftFile},
    replay::Replay,
    store::Store,
    types::{LogId, Proposal},
};
use security::{Credentials, Role};
use std::{io, path::Path, sync::Arc};

/// A member whose folder is open.
pub(super) struct Group {
    pub(super) member: Member,
    pub(super) cluster_id: String,
    as_new: NewMember,
    /// Addresses of masters that may know the group.
    masters: Vec<String>,
    pub(super) membership: Membership,
    credentials: Credentials,
}

impl Group {
    /// Opens the folder of a member, which the others reach at `address`. Waits for the leader of
    /// the group if the folder is empty.
    pub(super) async fn open(
        config: &Config,
        recovery: Recovery,
        address: String,
    ) -> Result<Self, NameNodeError> {
        let settings = &config.namenode;
        let credentials = Credentials::of_daemon(config, Role::NameNode)?;
        let as_new = NewMember { id: settings.member, address, role: Role::NameNode };
        let masters = settings.join.clone();
        let known = home::cluster_id(&settings.dir)?;
        if known.is_none() {
            // A member that asks to join makes its edit log first.
            home::check_new(OWNER, &settings.dir, &[OWNER.folder])?;
        }
        let folder = settings.dir.join(OWNER.folder);
        // This creates the folder, which the folder of one NameNode does not have before `VERSION`.
        let open_disk = || RealDisk::open(folder.clone()).map(|disk| Arc::new(disk) as Arc<dyn Disk>);
        let is_member =
            folder.exists() && RaftFile::open(&*open_disk()?).map_err(StoreError::from)?.is_some();
        if is_member && recovery != Recovery::Refuse {
            return Err(NameNodeError::RecoverMember);
        }
        let (store, cluster_id) = if known.is_none() && !masters.is_empty() {
            let cluster_id = as_new.ask_until_known(&masters, &credentials).await;
            let store = Store::open(&open_disk()?, settings.member)?;
            home::set_cluster_id(&settings.dir, &cluster_id)?;
            (store, cluster_id)
        } else {
            if !is_member {
                found(open_disk, settings, recovery)?;
            }
            let cluster_id = home::cluster_id(&settings.dir)?.ok_or_else(|| {
                DataFolderError::VersionMissing { folder: settings.dir.clone(), log: OWNER.log }
            })?;
            (Store::open(&open_disk()?, settings.member)?, cluster_id)
        };
        let member = Member::new(store);
        let configured = config.cluster.namenode.iter().cloned();
        let membership = Membership::new(Role::NameNode, member.clone(), configured);
        Ok(Self { member, cluster_id, as_new, masters, membership, credentials })
    }

    fn name(&self) -> GroupName {
        GroupName { cluster_id: self.cluster_id.clone(), role: Role::NameNode }
    }

    /// Returns the service for the other members.
    pub(super) fn service(&self) -> PeersServer<PeerService> {
        PeerService::server(self.name(), self.member.clone(), self.membership.clone())
    }

    /// Starts the member: restores the namespace from its folder, and takes part in the group.
    pub(super) async fn start(&self, driver: Arc<Driver>) -> Result<(), NameNodeError> {
        let transport = GrpcTransport::new(self.name(), self.credentials.clone());
        let address = &self.as_new.address;
        Ok(self.member.start(&Timing::default(), driver, address, Arc::new(transport)).await?)
    }

    /// Asks to be added to the group until this member votes.
    pub(super) async fn join(self) {
        self.as_new.join(&self.member, &self.masters, &self.credentials).await;
    }
}

/// Returns whether the folder of a NameNode belongs to a member of a group.
pub(super) fn is_member_folder(folder: &Path) -> bool {
    folder.join(OWNER.folder).join(raft_file::FILE_NAME).exists()
}

/// Makes the folder of one NameNode, which is initialised if it is empty, that of the first member
/// of a group. Blocks.
fn found(
    open_disk: impl FnOnce() -> io::Result<Arc<dyn Disk>>,
    settings: &NameNodeConfig,
    recovery: Recovery,
) -> Result<(), NameNodeError> {
    let Storage { log, namespace, .. } = Storage::open(&settings.dir, recovery, settings)?;
    let journal = Journal::Single(log);
    storage::snapshot(&journal, namespace.cluster_id(), settings.retry_cache)?;
    journal.close()?;
    drop(journal);
    Ok(Store::found(&open_disk()?, settings.member)?)
}

impl ReplicatedState for Driver {
    fn apply(&self, id: LogId, proposal: &Proposal) -> Result<(), StateError> {
        let mut state = self.state.write();
        for bytes in proposal.records() {
            let bytes = bytes.ok_or_else(|| format!("a record of entry {id} is cut"))?;
            let record: Record = codec::decode(bytes)?;
            state.apply(self.now(), &record).map_err(|error| format!("entry {id}: {error}"))?;
        }
        Ok(())
    }

    fn restore(&self, replay: Replay) -> Result<(), StateError> {
        let namespace = storage::load(replay, self.cluster_id(), self.retry_cache)?;
        let mut state = self.state.write();
        state.restore(self.now(), namespace);
        tracing::info!(epoch = state.namespace().epoch(), "the namespace of the group is restored");
        Ok(())
    }

    fn lead(&self, term: u64) {
        let mut state = self.state.write();
        let record = state.lead(self.now(), self.start_id());
        let epoch = state.namespace().epoch();
        if bugs::has(Bug::StartNotLogged) {
            return;
        }
        match self.append(&codec::encode(&record)) {
            Ok(_) => tracing::info!(term, epoch, "this NameNode leads its group"),
            // The journal has failed, so the process ends.
            Err(error) => tracing::error!(term, epoch, %error, "this NameNode cannot lead its group"),
        }
    }

    fn follow(&self) {
        let mut state = self.state.write();
        state.follow();
        // A home folder that this leader has created may not be committed.
        self.homes.write().clear();
        tracing::info!("this NameNode does not lead its group any more");
    }
}
