//! The server of a member: passes messages of other members to it.

use crate::{
    FRAME_BYTES_MAX, GroupName, MESSAGE_BYTES_MAX, PROTOCOL,
    membership::{Membership, answers},
    wire,
};
pub use proto::raft::peers_server::PeersServer;
use proto::{
    Message as _,
    raft::{self as pb, peers_server::Peers},
};
use replication::member::{Member, Peer};
use security::Identity;
use tonic::{Request, Response, Status, Streaming};

/// Serves a member.
pub struct PeerService {
    group: GroupName,
    member: Member,
    membership: Membership,
}

impl PeerService {
    /// Returns the service of a member, to be added to the server of its daemon. `membership` knows
    /// who may join.
    pub fn server(group: GroupName, member: Member, membership: Membership) -> PeersServer<Self> {
        PeersServer::new(Self { group, member, membership }).max_decoding_message_size(2 * FRAME_BYTES_MAX)
    }

    /// Refuses a caller that is not a member of such a group.
    fn check_caller(&self, identity: &Identity) -> Result<(), Status> {
        let role = self.group.role;
        if identity.role.is_none_or(|caller| caller == role) {
            return Ok(());
        }
        Err(Status::permission_denied(format!("only a {} may send messages of its group", role.title())))
    }

    fn check_protocol(&self, protocol: u32) -> Result<(), Status> {
        if protocol == PROTOCOL {
            return Ok(());
        }
        let title = self.group.role.title();
        Err(Status::failed_precondition(format!(
            "the message has version {protocol}, and this {title} reads version {PROTOCOL}: use the same build on all masters"
        )))
    }

    /// Checks that this member leads, and that the caller can be a member. Returns what is to be done.
    /// In an open cluster any process can call this, so the settings of this member decide who may
    /// join.
    fn check_join(&self, request: &pb::JoinRequest) -> Result<Join, Status> {
        let pb::JoinRequest { protocol, member, address, has_entries } = request;
        self.check_protocol(*protocol)?;
        let (title, status) = (self.group.role.title(), self.member.status());
        if self.member.leading().is_none() {
            return Err(Status::unavailable(format!("this {title} does not lead its group")));
        }
        if *member == 0 || address.is_empty() {
            return Err(Status::invalid_argument("the ID or the address of the new member is missing"));
        }
        let refuse = |why: String| Err(Status::failed_precondition(why));
        let known = status.peers.iter().find(|peer| peer.id == *member);
        let at_address = || status.peers.iter().filter(|peer| peer.address == *address);
        if let Some(peer) = known.filter(|peer| peer.address != *address) {
            return refuse(format!("member {member} of the group is at {}: use another ID", peer.address));
        }
        // It has lost what it has acknowledged, so it could vote again in an old term.
        let has_acknowledged = |peer: &Peer| peer.is_voter || peer.entries.is_some_and(|entries| entries > 0);
        let is_lost = known.is_some_and(has_acknowledged) && !has_entries;
        let others: Vec<&Peer> = at_address().filter(|peer| is_lost || peer.id != *member).collect();
        if let Some(peer) = others.iter().find(|peer| answers(peer)) {
            return refuse(format!("{address} is the address of member {}, which answers", peer.id));
        }
        if is_lost {
            return Ok(Join::WithNewId);
        }
        if known.is_none() && others.is_empty() && !self.membership.may_join(address) {
            return refuse(format!(
                "{address} is not in cluster.{} of the {title} that leads, so it may not join: run \
                 `mrctl masters add {address}`",
                self.group.role.name()
            ));
        }
        let votes = known.is_some_and(|peer| peer.is_voter) && others.is_empty();
        Ok(if votes { Join::Done } else { Join::Add })
    }

    /// Refuses a message that is not for this member.
    fn check(&self, request: &pb::Request) -> Result<(), Status> {
        let pb::Request { protocol, cluster_id, to, .. } = request;
        let (title, id, own) = (self.group.role.title(), self.member.id(), &self.group.cluster_id);
        self.check_protocol(*protocol)?;
        if cluster_id != own || *to != id {
            return Err(Status::failed_precondition(format!(
                "the message is for member {to} of cluster {cluster_id}, and this {title} is member {id} of cluster {own}: \
                 check the addresses of the masters"
            )));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Peers for PeerService {
    async fn send(&self, frames: Request<Streaming<pb::Frame>>) -> Result<Response<pb::Reply>, Status> {
        self.check_caller(Identity::of(frames.extensions())?)?;
        let request = receive(frames.into_inner()).await?;
        self.check(&request)?;
        let message = request.message.and_then(wire::to_message);
        let message = message.ok_or_else(|| Status::invalid_argument("the message is incomplete"))?;
        let answer = self.member.handle(message).await.map_err(Status::unavailable)?;
        Ok(Response::new(pb::Reply { answer: Some(wire::from_answer(&answer)) }))
    }

    async fn join(&self, request: Request<pb::JoinRequest>) -> Result<Response<pb::JoinReply>, Status> {
        self.check_caller(Identity::of(request.extensions())?)?;
        let request = request.into_inner();
        let join = self.check_join(&request)?;
        if join == Join::Add {
            self.membership.add_in_background(request.member, request.address);
        }
        let (cluster_id, needs_new_id) = (self.group.cluster_id.clone(), join == Join::WithNewId);
        Ok(Response::new(pb::JoinReply { cluster_id, needs_new_id }))
    }
}

/// What is to be done about a caller that asks to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    /// Nothing: it votes.
    Done,
    /// It is added, in place of the other members at its address.
    Add,
    /// It must ask again with an ID that no member has had.
    WithNewId,
}

/// Receives all frames of a message.
async fn receive(mut frames: Streaming<pb::Frame>) -> Result<pb::Request, Status> {
    let mut bytes = Vec::new();
    while let Some(frame) = frames.message().await? {
        if bytes.len() + frame.bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Status::out_of_range(format!(
                "the message is longer than {MESSAGE_BYTES_MAX} bytes"
            )));
        }
        bytes.extend_from_slice(&frame.bytes);
    }
    pb::Request::decode(&bytes[..])
        .map_err(|error| Status::invalid_argument(format!("the message cannot be decoded: {error}")))
}
