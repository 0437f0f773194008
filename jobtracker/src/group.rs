//! The folder of a JobTracker that is a member of a group (ADR 0046).
//!
//! The folder of the first member is that of one JobTracker, which has made a snapshot. Another member
//! begins with an empty folder: it asks the `JobTrackers` that it knows, and the leader adds it and
//! sends it everything.

use crate::{
    blueprint::{Blueprint, Replayed},
    clock::Clock,
    driver::Driver,
    end::JobTrackerError,
    opened::Opened,
    starts,
    storage::{self, OWNER},
};
use daemon::config::Config;
use dfs_client::ids::Start;
use journal::{
    AppendError, DataFolderError, Log, Recovery, codec,
    disk::{Disk, RealDisk},
    home,
};
use mrcore::{
    Fact,
    fact::{self, Entry},
};
use peers::{
    GroupName,
    join::NewMember,
    membership::Membership,
    service::{PeerService, PeersServer},
    transport::GrpcTransport,
};
use replication::{
    error::StoreError,
    master::Journal,
    member::{Member, Timing},
    raft_file::{self, RaftFile},
    store::Store,
};
use security::{Credentials, Role};
use std::{path::Path, sync::Arc};

/// A member whose folder is open.
pub(crate) struct Group {
    pub(crate) member: Member,
    pub(crate) cluster_id: String,
    as_new: NewMember,
    /// Addresses of masters that may know the group.
    masters: Vec<String>,
    pub(crate) membership: Membership,
    credentials: Credentials,
}

impl Group {
    /// Opens the folder of a member, which the others reach at `address`. Waits for the leader of
    /// the group if the folder is empty.
    pub(crate) async fn open(
        config: &Config,
        recovery: Recovery,
        address: String,
    ) -> Result<Self, JobTrackerError> {
        let settings = &config.jobtracker;
        let credentials = Credentials::of_daemon(config, Role::JobTracker)?;
        let as_new = NewMember { id: settings.member, address, role: Role::JobTracker };
        let masters = settings.join.clone();
        let known = home::cluster_id(&settings.dir)?;
        if known.is_none() {
            // A member that asks to join makes its journal first.
            home::check_new(OWNER, &settings.dir, &[OWNER.folder])?;
        }
        let folder = settings.dir.join(OWNER.folder);
        // This creates the folder, which the folder of one JobTracker does not have before `VERSION`.
        let open_disk = || RealDisk::open(folder.clone()).map(|disk| Arc::new(disk) as Arc<dyn Disk>);
        let is_member =
            folder.exists() && RaftFile::open(&*open_disk()?).map_err(StoreError::from)?.is_some();
        if is_member && recovery != Recovery::Refuse {
            return Err(JobTrackerError::RecoverMember);
        }
        let (store, cluster_id) = if known.is_none() && !masters.is_empty() {
            let cluster_id = as_new.ask_until_known(&masters, &credentials).await;
            let store = Store::open(&open_disk()?, settings.member)?;
            home::set_cluster_id(&settings.dir, &cluster_id)?;
            (store, cluster_id)
        } else {
            if !is_member {
                found(config, recovery)?;
                Store::found(&open_disk()?, settings.member)?;
            }
            let cluster_id = home::cluster_id(&settings.dir)?.ok_or_else(|| {
                DataFolderError::VersionMissing { folder: settings.dir.clone(), log: OWNER.log }
            })?;
            (Store::open(&open_disk()?, settings.member)?, cluster_id)
        };
        let member = Member::new(store);
        let configured = config.cluster.jobtracker.iter().cloned();
        let membership = Membership::new(Role::JobTracker, member.clone(), configured);
        Ok(Self { member, cluster_id, as_new, masters, membership, credentials })
    }

    fn name(&self) -> GroupName {
        GroupName { cluster_id: self.cluster_id.clone(), role: Role::JobTracker }
    }

    /// Returns the service for the other members.
    pub(crate) fn service(&self) -> PeersServer<PeerService> {
        PeerService::server(self.name(), self.member.clone(), self.membership.clone())
    }

    /// Starts the member: restores the state from its folder, and takes part in the group.
    pub(crate) async fn start(&self, driver: Arc<Driver>) -> Result<(), JobTrackerError> {
        let transport = GrpcTransport::new(self.name(), self.credentials.clone());
        let address = &self.as_new.address;
        Ok(self.member.start(&Timing::default(), driver, address, Arc::new(transport)).await?)
    }

    /// Asks to be added to the group until this member votes.
    pub(crate) async fn join(self) {
        self.as_new.join(&self.member, &self.masters, &self.credentials).await;
    }
}

/// Returns whether the folder of a JobTracker belongs to a member of a group.
pub(crate) fn is_member_folder(folder: &Path) -> bool {
    folder.join(OWNER.folder).join(raft_file::FILE_NAME).exists()
}

/// Makes the folder of one JobTracker, which is initialised if it is empty, ready to be that of the
/// first member of a group: with a snapshot that has all facts. Blocks.
fn found(config: &Config, recovery: Recovery) -> Result<(), JobTrackerError> {
    let folder = &config.jobtracker.dir;
    let Opened { log, blueprint, replayed, .. } = Opened::open(config, recovery)?;
    found_on(log, &replayed, &blueprint, &starts::read(folder)?)
}

/// Appends what the journal of a group contains and that of one JobTracker does not, makes a
/// snapshot, and closes the journal. `earlier` are the starts that the NameNode may have accepted.
pub(crate) fn found_on(
    log: Log,
    replayed: &Replayed,
    blueprint: &Blueprint,
    earlier: &[Start],
) -> Result<(), JobTrackerError> {
    // The founding counts as a start, so there is a fact for the snapshot.
    let epoch = replayed.core.cluster().epoch() + 1;
    let mut facts = vec![Fact::JobTrackerStarted { epoch, scheduler: blueprint.scheduler_name().into() }];
    facts.extend(earlier.iter().enumerate().map(|(at, start)| {
        let start = fact::Start { epoch: start.epoch, id: start.id.0 };
        // The oldest one replaces those that an interrupted founding has recorded.
        Fact::StartRecorded { start, accepted: at == 0 }
    }));
    let at = Clock::start(replayed.newest).now();
    let entries: Vec<_> = facts.into_iter().map(|fact| codec::encode(&Entry { at, fact })).collect();
    let appended = log.append_many(&entries).map_err(|error| match error {
        AppendError::Failed(failed) => failed,
        AppendError::TooLarge { .. } => unreachable!("the list of starts is short"),
    })?;
    log.sync(appended)?;
    let journal = Journal::Single(log);
    storage::snapshot(&journal)?;
    Ok(journal.close()?)
}
