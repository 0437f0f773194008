//! What the masters of a cluster know about their group, for operators: asks them, and converts their
//! answers.

use super::{
    Client, ClientError, ClientOptions,
    error::{Error, Kind},
    masters::Masters,
};
use daemon::MasterAddrs;
use proto::master::{self as pb, ChangeGroupRequest, GroupReply, change_group_request, group_reply};
use security::{Credentials, Role};
use std::time::Duration;
pub use types::group::{Group, GroupMember, GroupView, Master, MemberRole, MemberStatus, NEW_ID_MIN};

/// How long connecting to a master may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks all NameNodes at once what they know about their group. Returns the address of each with its
/// answer, or why there is none within `limit`.
pub async fn ask(
    options: &ClientOptions,
    limit: Duration,
) -> Result<Vec<(String, Result<GroupView, String>)>, ClientError> {
    let (masters, _) = Client::masters(options)?;
    let answers = masters.groups(limit).await;
    let views = answers.into_iter().map(|answer| answer.map(from_reply));
    Ok(options.namenode.iter().cloned().zip(views).collect())
}

/// A change of a group, by addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupChange {
    /// Another member leads: the one at this address, or any that answers.
    Transfer(Option<String>),
    /// A new member is admitted, and votes when it has everything.
    Add(String),
    /// A member leaves the group.
    Remove(String),
}

/// What has become of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeResult {
    /// It is made. After a transfer, also the address of the new leader.
    Done(String),
    /// It waits for this. The request must be repeated.
    WaitsFor(String),
}

/// Asks the masters of one kind about their group, and changes it.
#[derive(Debug)]
pub struct GroupClient(Masters);

impl GroupClient {
    /// Connects to no master yet.
    pub fn new(role: Role, addrs: &MasterAddrs, credentials: Credentials) -> Result<Self, ClientError> {
        let invalid = |message: String| ClientError::Refused(Error::new(Kind::Invalid, message));
        let user = credentials.name().map_or_else(daemon::account::user, str::to_owned);
        let user = user.parse().map_err(|_| invalid(format!("user name {user:?} is not plain text")))?;
        let set = |endpoint: tonic::transport::Endpoint| endpoint.connect_timeout(CONNECT_TIMEOUT);
        let masters = Masters::new(role, addrs, credentials, user, set);
        Ok(Self(masters.map_err(|addr| invalid(format!("address {addr:?} is not host:port")))?))
    }

    /// Asks all masters at once what they know about their group. Returns the address of each with its
    /// answer, or why there is none within `limit`.
    pub async fn ask(&self, limit: Duration) -> Vec<(String, Result<GroupView, String>)> {
        let answers = self.0.groups(limit).await;
        let views = answers.into_iter().map(|answer| answer.map(from_reply));
        views.enumerate().map(|(at, view)| (self.0.addr(at).to_owned(), view)).collect()
    }

    /// Requests a change from the leader. The error says why it is refused, or why nobody answers.
    pub async fn change(&self, change: &GroupChange, limit: Duration) -> Result<ChangeResult, String> {
        use change_group_request::Change;
        let change = match change.clone() {
            GroupChange::Transfer(to) => Change::Transfer(to.unwrap_or_default()),
            GroupChange::Add(address) => Change::Add(address),
            GroupChange::Remove(address) => Change::Remove(address),
        };
        let reply = self.0.change_group(ChangeGroupRequest { change: Some(change) }, limit).await?;
        Ok(if reply.done {
            ChangeResult::Done(reply.leader)
        } else {
            ChangeResult::WaitsFor(reply.waits_for)
        })
    }
}

/// Converts the answer of a master to its message.
pub fn to_reply(view: GroupView) -> GroupReply {
    let GroupView { id, epoch, waits_for, status } = view;
    let role = match status.role {
        MemberRole::Leader => group_reply::Role::Leader,
        MemberRole::Follower => group_reply::Role::Follower,
        MemberRole::Candidate => group_reply::Role::Candidate,
        MemberRole::Learner => group_reply::Role::Learner,
        MemberRole::Down => group_reply::Role::Down,
    };
    let member = |member: GroupMember| pb::GroupMember {
        id: member.id,
        address: member.address,
        is_voter: member.is_voter,
        entries: member.entries,
        last_contact_ms: member.last_contact.map(|time| time.as_millis() as u64),
    };
    GroupReply {
        id: id.unwrap_or(0),
        role: role.into(),
        term: status.term,
        leader: status.leader.unwrap_or(0),
        epoch,
        entries: status.entries,
        applied: status.applied,
        members: status.peers.into_iter().map(member).collect(),
        waits_for,
    }
}

fn from_reply(reply: GroupReply) -> GroupView {
    let role = match reply.role() {
        group_reply::Role::Leader => MemberRole::Leader,
        group_reply::Role::Follower => MemberRole::Follower,
        group_reply::Role::Candidate => MemberRole::Candidate,
        group_reply::Role::Learner => MemberRole::Learner,
        group_reply::Role::Down => MemberRole::Down,
    };
    let is_known = |id: &u64| *id != 0;
    let member = |member: pb::GroupMember| GroupMember {
        id: member.id,
        address: member.address,
        is_voter: member.is_voter,
        entries: member.entries,
        last_contact: member.last_contact_ms.map(Duration::from_millis),
    };
    GroupView {
        id: Some(reply.id).filter(is_known),
        epoch: reply.epoch,
        waits_for: reply.waits_for,
        status: MemberStatus {
            role,
            term: reply.term,
            leader: Some(reply.leader).filter(is_known),
            entries: reply.entries,
            applied: reply.applied,
            peers: reply.members.into_iter().map(member).collect(),
        },
    }
}
