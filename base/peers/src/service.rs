//! The server of a member: passes messages of other members to it.

use crate::{FRAME_BYTES_MAX, GroupName, MESSAGE_BYTES_MAX, PROTOCOL, wire};
pub use proto::raft::peers_server::PeersServer;
use proto::{
    Message as _,
    raft::{self as pb, peers_server::Peers},
};
use replication::member::Member;
use security::Identity;
use tonic::{Request, Response, Status, Streaming};

/// Serves a member.
pub struct PeerService {
    group: GroupName,
    member: Member,
}

impl PeerService {
    /// Returns the service of a member, to be added to the server of its daemon.
    pub fn server(group: GroupName, member: Member) -> PeersServer<Self> {
        PeersServer::new(Self { group, member }).max_decoding_message_size(2 * FRAME_BYTES_MAX)
    }

    /// Refuses a caller that is not a member of such a group.
    fn check_caller(&self, identity: &Identity) -> Result<(), Status> {
        let role = self.group.role;
        if identity.role.is_none_or(|caller| caller == role) {
            return Ok(());
        }
        Err(Status::permission_denied(format!("only a {} may send messages of its group", role.title())))
    }

    /// Refuses a message that is not for this member.
    fn check(&self, request: &pb::Request) -> Result<(), Status> {
        let pb::Request { protocol, cluster_id, to, .. } = request;
        let (title, id, own) = (self.group.role.title(), self.member.id(), &self.group.cluster_id);
        if *protocol != PROTOCOL {
            return Err(Status::failed_precondition(format!(
                "the message has version {protocol}, and this {title} reads version {PROTOCOL}: use the same build on all masters"
            )));
        }
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
