//! Changes of a group that an administrator requests: another leader, a new member, or one less.
//!
//! There is one change at a time. A new member asks to join (`Join`), and the leader admits it if its
//! address is one that clients are configured with, or one that an administrator has named. That is
//! not stored: a command repeats its request, also to a new leader, until the change is made.

use proto::master::{ChangeGroupReply, ChangeGroupRequest, change_group_request::Change};
use replication::member::{ChangeError, Member, Peer};
use security::Role;
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{sleep, timeout},
};
use tonic::Status;

/// How long a new member may take until it votes, before another change may be made.
const ADD_TIMEOUT: Duration = Duration::from_mins(1);
/// A member counts for a quorum if it has answered within this time.
const CONTACT: Duration = Duration::from_secs(2);

/// Changes the group of a member. Clones share it.
#[derive(Clone)]
pub struct Membership(Arc<Shared>);

struct Shared {
    role: Role,
    member: Member,
    /// Addresses that may join.
    admitted: Mutex<HashSet<String>>,
    /// Held during a change.
    changing: Arc<AsyncMutex<()>>,
}

impl Membership {
    /// Masters at the addresses in `configured`, which are those of clients, may join at any time.
    pub fn new(role: Role, member: Member, configured: impl IntoIterator<Item = String>) -> Self {
        let admitted = Mutex::new(configured.into_iter().collect());
        Self(Arc::new(Shared { role, member, admitted, changing: Arc::default() }))
    }

    pub(crate) fn role(&self) -> Role {
        self.0.role
    }

    fn admitted(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn may_join(&self, address: &str) -> bool {
        self.admitted().contains(address)
    }

    /// Adds a member that has asked to join, if no other change is being made. It takes the place of the
    /// members at the same address, which have lost their log. Returns at once.
    pub(crate) fn add_in_background(&self, id: u64, address: String) {
        let Ok(changing) = Arc::clone(&self.0.changing).try_lock_owned() else { return };
        let membership = self.clone();
        tokio::spawn(async move {
            let _changing = changing;
            let others = || {
                let peers = membership.peers().into_iter();
                peers.filter(|peer| peer.id != id && peer.address == address).collect::<Vec<_>>()
            };
            if !others().is_empty() {
                // A new leader does not know yet who answers.
                sleep(CONTACT).await;
            }
            let others = others();
            if let Some(peer) = others.iter().find(|peer| answers(peer)) {
                return tracing::warn!(
                    id,
                    address,
                    other = peer.id,
                    "the address is that of a member that answers"
                );
            }
            let others: Vec<u64> = others.iter().map(|peer| peer.id).collect();
            match timeout(ADD_TIMEOUT, membership.0.member.add_in_place_of(&others, id, &address)).await {
                Ok(Ok(())) if !others.is_empty() => {
                    tracing::warn!(id, address, ?others, "a member that has lost its log was exchanged");
                }
                Ok(Ok(())) => tracing::info!(id, address, "a member was added to the group"),
                // It asks again.
                Ok(Err(error)) => tracing::warn!(id, address, %error, "a member was not added to the group"),
                Err(_) => tracing::warn!(id, address, "a new member of the group has not caught up yet"),
            }
        });
    }

    /// Makes a change, or begins it. `pause` calls [`Member::pause`] under the lock of the master.
    pub async fn change(
        &self,
        request: ChangeGroupRequest,
        pause: impl FnOnce(),
    ) -> Result<ChangeGroupReply, Status> {
        let mut leader = String::new();
        let waits_for = match request.change {
            Some(Change::Transfer(to)) => {
                leader = self.transfer(Some(to).filter(|to| !to.is_empty()), pause).await?;
                None
            }
            Some(Change::Add(address)) => self.begin_adding(address)?,
            Some(Change::Remove(address)) => self.remove(&address, pause).await?,
            None => return Err(Status::invalid_argument("the request names no change")),
        };
        let done = waits_for.is_none();
        Ok(ChangeGroupReply { done, leader, waits_for: waits_for.unwrap_or_default() })
    }

    /// Lets the member at `to` lead, or any that answers. Returns the address of the new leader.
    pub async fn transfer(&self, to: Option<String>, pause: impl FnOnce()) -> Result<String, Status> {
        let _changing = self.begin()?;
        self.hand_over(to, pause).await
    }

    async fn hand_over(&self, to: Option<String>, pause: impl FnOnce()) -> Result<String, Status> {
        let to = to.map(|address| self.find(&address)).transpose()?;
        if to.as_ref().is_some_and(|to| to.id == self.0.member.id()) {
            return Ok(to.map(|to| to.address).unwrap_or_default());
        }
        pause();
        let leader = self.0.member.hand_over(to.map(|to| to.id)).await.map_err(status)?;
        let leader = self.peers().into_iter().find(|peer| peer.id == leader);
        Ok(leader.map(|peer| peer.address).unwrap_or_default())
    }

    /// Admits a new member. Returns what it lacks, or `None` if it votes.
    fn begin_adding(&self, address: String) -> Result<Option<String>, Status> {
        if address.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(Status::invalid_argument(format!("{address:?} is not host:port")));
        }
        let waits_for = match self.peers().into_iter().find(|peer| peer.address == address) {
            Some(peer) if peer.is_voter => return Ok(None),
            Some(_) => format!("{address} to catch up with the log"),
            None => {
                let (title, name) = (self.0.role.title(), self.0.role.name());
                format!(
                    "the {title} at {address} to ask: start it with an empty folder, a new {name}.member, and {name}.join"
                )
            }
        };
        self.admitted().insert(address);
        Ok(Some(waits_for))
    }

    /// Removes a member, if those that are left are a quorum. Does nothing if there is none at this
    /// address. If it is this one, another one leads from now on, which must be asked again.
    async fn remove(&self, address: &str, pause: impl FnOnce()) -> Result<Option<String>, Status> {
        let _changing = self.begin()?;
        self.admitted().remove(address);
        let peers = self.peers();
        let Some(peer) = peers.iter().find(|peer| peer.address == address) else { return Ok(None) };
        let (own, title) = (self.0.member.id(), self.0.role.title());
        let rest = || peers.iter().filter(|other| other.is_voter && other.id != peer.id);
        let is_up = |other: &&Peer| other.id == own || answers(other);
        let (up, left) = (rest().filter(is_up).count(), rest().count());
        if 2 * up <= left {
            return Err(Status::failed_precondition(format!(
                "without {address}, {up} of {left} {title}s would be up, which is no quorum: start the others first"
            )));
        }
        if peer.id == own {
            let leader = self.hand_over(None, pause).await?;
            return Ok(Some(format!("{leader} to lead, because {address} has led")));
        }
        self.0.member.remove(peer.id).await.map_err(status)?;
        tracing::info!(id = peer.id, address, "a member was removed from the group");
        Ok(None)
    }

    /// Begins a change.
    fn begin(&self) -> Result<impl Drop + use<>, Status> {
        let busy = "another change of the group is being made: try again when it has ended";
        Arc::clone(&self.0.changing).try_lock_owned().map_err(|_| Status::failed_precondition(busy))
    }

    fn peers(&self) -> Vec<Peer> {
        self.0.member.status().peers
    }

    fn find(&self, address: &str) -> Result<Peer, Status> {
        let peers = self.peers();
        let all = peers.iter().map(|peer| peer.address.as_str()).collect::<Vec<_>>().join(", ");
        let found = peers.into_iter().find(|peer| peer.address == address);
        let why = || Status::failed_precondition(format!("{address} is no member of the group ({all})"));
        found.ok_or_else(why)
    }
}

/// Returns whether a member has answered the leader just now.
pub(crate) fn answers(peer: &Peer) -> bool {
    peer.last_contact.is_some_and(|last_contact| last_contact < CONTACT)
}

fn status(error: ChangeError) -> Status {
    match error {
        ChangeError::NotLeader => {
            Status::unavailable("this master does not lead its group any more: try again")
        }
        ChangeError::Refused(why) => Status::failed_precondition(why),
        ChangeError::Failed(why) => Status::unavailable(why),
    }
}
