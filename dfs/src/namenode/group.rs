//! A NameNode as a member of a group (ADR 0040): its folder, and its driver as the state that all
//! members have.
//!
//! The folder of the first member is that of one NameNode, which has made a snapshot. Another member
//! begins with an empty folder: it asks the NameNodes that it knows, and the leader adds it and
//! sends it everything. `peers::folder` decides what a folder is, also of a member that has lost it.

use super::{
    driver::Driver,
    error::NameNodeError,
    namespace::Record,
    storage::{self, OWNER, Storage},
};
use daemon::config::{Config, NameNodeConfig};
use journal::{
    Recovery,
    bugs::{self, Bug},
    codec,
};
use peers::{
    folder::{FolderError, MemberFolder},
    group::Group,
    join::NewMember,
};
use replication::{
    error::StateError,
    machine::ReplicatedState,
    master::Journal,
    replay::Replay,
    types::{LogId, Proposal},
};
use security::{Credentials, Role};

/// Opens the folder of a member, which the others reach at `address`. Waits for the leader of the
/// group if the folder is empty, or its log is damaged.
pub(super) async fn open(
    config: &Config,
    recovery: Recovery,
    address: String,
) -> Result<Group, NameNodeError> {
    let settings = &config.namenode;
    let credentials = Credentials::of_daemon(config, Role::NameNode)?;
    Group::open(
        member_folder(config, recovery, address),
        credentials,
        |recovery| close_one_master(settings, recovery),
        |replay, writer| storage::write_snapshot(replay, writer, &settings.dir, settings.retry_cache),
    )
    .await
}

fn member_folder(config: &Config, recovery: Recovery, address: String) -> MemberFolder<'_> {
    let settings = &config.namenode;
    MemberFolder {
        owner: OWNER,
        dir: &settings.dir,
        member: NewMember { id: settings.member, address, role: Role::NameNode },
        join: &settings.join,
        masters: &config.cluster.namenode,
        recovery,
    }
}

/// Makes the folder of the only member of a group that of one NameNode; does nothing if it is not that
/// of a member. Blocks.
pub(super) fn leave_if_alone(config: &Config) -> Result<(), FolderError> {
    let settings = &config.namenode;
    member_folder(config, Recovery::Refuse, String::new()).leave_if_alone(|replay, writer| {
        storage::write_snapshot(replay, writer, &settings.dir, settings.retry_cache)
    })
}

/// Opens the folder of one NameNode, which is initialised if it is empty, makes a snapshot, and closes
/// it. Returns a description of the edits that were lost. Blocks.
fn close_one_master(settings: &NameNodeConfig, recovery: Recovery) -> Result<Option<String>, NameNodeError> {
    let Storage { log, namespace, lost } = Storage::open(&settings.dir, recovery, settings)?;
    let journal = Journal::Single(log);
    storage::snapshot(&journal, namespace.cluster_id(), settings.retry_cache)?;
    journal.close()?;
    Ok(lost)
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
