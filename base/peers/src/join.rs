//! A member that joins its group: it asks the masters that it knows, one of which leads.
//!
//! A member whose log is lost asks with a new ID: the leader lets it take the place of the member at
//! the same address, if that does not answer any more.

use crate::PROTOCOL;
use proto::{
    master::{GroupRequest, group_reply, master_client::MasterClient},
    raft::{JoinReply, JoinRequest, peers_client::PeersClient},
};
use replication::member::{Member, Peer};
use security::{Credentials, Role};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Request;

/// How long a new member waits before it asks again to be added to its group.
pub(crate) const JOIN_RETRY: Duration = Duration::from_secs(1);

/// How long a connection and an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A member that joins.
#[derive(Debug, Clone)]
pub struct NewMember {
    /// Its ID, which no member of the group has ever had.
    pub id: u64,
    /// Where the other members reach it.
    pub address: String,
    /// What the members of the group are.
    pub role: Role,
}

impl NewMember {
    /// Asks all `masters` for the group. The leader adds this member then, so it must run soon. Returns
    /// the answer of the leader. The error says why each of them has refused.
    pub async fn ask(
        &self,
        masters: &[String],
        credentials: &Credentials,
        has_entries: bool,
    ) -> Result<JoinReply, String> {
        let mut refusals = Vec::new();
        for master in masters {
            match timeout(ANSWER_TIMEOUT, self.ask_one(master, credentials, has_entries)).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(why)) => refusals.push(format!("{master}: {why}")),
                Err(_) => refusals.push(format!("{master}: no answer")),
            }
        }
        Err(refusals.join("; "))
    }

    /// Asks to be added to the group until `member` votes, and no other one that it replaces. A member
    /// that was removed does not ask.
    pub async fn join(&self, member: &Member, masters: &[String], credentials: &Credentials) {
        let mut last = String::new();
        loop {
            // The leader may be adding it already.
            sleep(JOIN_RETRY).await;
            let status = member.status();
            let own = status.peers.iter().find(|peer| peer.id == member.id());
            let replaces = |peer: &Peer| peer.id != member.id() && peer.address == self.address;
            if !status.peers.is_empty()
                && own.is_none_or(|own| own.is_voter && !status.peers.iter().any(replaces))
            {
                return;
            }
            let others = status.peers.into_iter().map(|peer| peer.address);
            let masters: Vec<String> = others.chain(masters.iter().cloned()).collect();
            let asked = self.ask(&masters, credentials, status.entries > 0).await;
            let asked = asked.and_then(|reply| {
                let why = "its ID has voted: start it again";
                if reply.needs_new_id { Err(why.to_owned()) } else { Ok(()) }
            });
            if let Err(why) = asked
                && last != why
            {
                tracing::warn!("this {} is not added to its group: {why}", self.role.title());
                last = why;
            }
        }
    }

    async fn ask_one(
        &self,
        master: &str,
        credentials: &Credentials,
        has_entries: bool,
    ) -> Result<JoinReply, String> {
        let endpoint = credentials.endpoint(master, self.role);
        let endpoint = endpoint.ok_or_else(|| "it is not host:port".to_owned())?;
        let (member, address) = (self.id, self.address.clone());
        let mut request = Request::new(JoinRequest { protocol: PROTOCOL, member, address, has_entries });
        let user = self.role.name().parse().expect("the name of a role is plain text");
        credentials.sign(request.metadata_mut(), &user);
        let reply = PeersClient::new(endpoint.connect_lazy()).join(request).await;
        Ok(reply.map_err(|status| status.message().to_owned())?.into_inner())
    }

    /// Returns the first of `masters` that says that it leads its group.
    pub async fn find_leader(&self, masters: &[String], credentials: &Credentials) -> Option<String> {
        for master in masters {
            let endpoint = credentials.endpoint(master, self.role)?;
            let mut request = Request::new(GroupRequest {});
            let user = self.role.name().parse().expect("the name of a role is plain text");
            credentials.sign(request.metadata_mut(), &user);
            let asked = async { MasterClient::new(endpoint.connect_lazy()).group(request).await };
            if let Ok(Ok(reply)) = timeout(ANSWER_TIMEOUT, asked).await
                && reply.into_inner().role() == group_reply::Role::Leader
            {
                return Some(master.clone());
            }
        }
        None
    }
}
