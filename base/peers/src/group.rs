//! A member of a group, as both masters use it: opens its folder, serves the other members, takes
//! part in the group, and joins it.
//!
//! What a folder is, also that of a member that has lost it, is decided in [`crate::folder`]. The
//! state of a master, and what its snapshots contain, are those of the master.

use crate::{
    GroupName,
    folder::{FolderError, MemberFolder, OpenFolder},
    join::NewMember,
    membership::Membership,
    service::{PeerService, PeersServer},
    transport::GrpcTransport,
};
use journal::{Recovery, SnapshotWriter};
use replication::{
    error::StateError,
    machine::ReplicatedState,
    member::{Member, StartError, Timing},
    replay::Replay,
};
use security::Credentials;
use std::sync::Arc;

/// A member whose folder is open.
pub struct Group {
    /// The member, which is not started yet.
    pub member: Member,
    /// The group that it belongs to.
    pub name: GroupName,
    /// Changes the group.
    pub membership: Membership,
    /// Description of records that were lost.
    pub lost: Option<String>,
    as_new: NewMember,
    /// Addresses of masters that may know the group.
    masters: Vec<String>,
    credentials: Credentials,
}

impl Group {
    /// Opens the folder of a member. Waits for the leader of the group if the folder is empty, or its
    /// log is damaged. [`MemberFolder::open`] has the meaning of `one_master` and `write`.
    pub async fn open<E: From<FolderError>>(
        folder: MemberFolder<'_>,
        credentials: Credentials,
        one_master: impl FnOnce(Recovery) -> Result<Option<String>, E>,
        write: impl FnOnce(Replay, &mut SnapshotWriter) -> Result<(), StateError>,
    ) -> Result<Self, E> {
        let OpenFolder { store, cluster_id, lost } = folder.open(&credentials, one_master, write).await?;
        let member = Member::new(store);
        let (role, masters) = (folder.member.role, folder.others());
        let membership = Membership::new(role, member.clone(), folder.masters.iter().cloned());
        let as_new = NewMember { id: member.id(), ..folder.member };
        let name = GroupName { cluster_id, role };
        Ok(Self { member, name, membership, lost, as_new, masters, credentials })
    }

    /// Returns the service for the other members.
    pub fn service(&self) -> PeersServer<PeerService> {
        PeerService::server(self.name.clone(), self.member.clone(), self.membership.clone())
    }

    /// Starts the member: restores the state from its folder, and takes part in the group.
    pub async fn start(&self, state: Arc<dyn ReplicatedState>) -> Result<(), StartError> {
        let transport = GrpcTransport::new(self.name.clone(), self.credentials.clone());
        let address = &self.as_new.address;
        self.member.start(&Timing::default(), state, address, Arc::new(transport)).await
    }

    /// Asks to be added to the group until this member votes.
    pub async fn join(self) {
        self.as_new.join(&self.member, &self.masters, &self.credentials).await;
    }
}
