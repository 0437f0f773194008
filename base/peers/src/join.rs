//! A member that joins its group: it asks the masters that it knows, one of which leads.

use crate::PROTOCOL;
use proto::raft::{JoinRequest, peers_client::PeersClient};
use replication::member::Member;
use security::{Credentials, Role};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Request;

/// How long a new member waits before it asks again to be added to its group.
const JOIN_RETRY: Duration = Duration::from_secs(1);

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
    /// Asks all `masters` for the group. The leader adds this member then, so it must run soon.
    /// Returns the ID of the cluster. The error says why each of them has refused.
    pub async fn ask(
        &self,
        masters: &[String],
        credentials: &Credentials,
        has_entries: bool,
    ) -> Result<String, String> {
        let mut refusals = Vec::new();
        for master in masters {
            match timeout(ANSWER_TIMEOUT, self.ask_one(master, credentials, has_entries)).await {
                Ok(Ok(cluster_id)) => return Ok(cluster_id),
                Ok(Err(why)) => refusals.push(format!("{master}: {why}")),
                Err(_) => refusals.push(format!("{master}: no answer")),
            }
        }
        Err(refusals.join("; "))
    }

    /// Asks the masters for the group until one of them leads it. Returns the ID of the cluster.
    pub async fn ask_until_known(&self, masters: &[String], credentials: &Credentials) -> String {
        let mut last = String::new();
        loop {
            match self.ask(masters, credentials, false).await {
                Ok(cluster_id) => return cluster_id,
                Err(why) if last != why => {
                    tracing::warn!("this {} waits to join its group: {why}", self.role.title());
                    last = why;
                }
                Err(_) => {}
            }
            sleep(JOIN_RETRY).await;
        }
    }

    /// Asks to be added to the group until `member` votes. One that was removed does not ask.
    pub async fn join(&self, member: &Member, masters: &[String], credentials: &Credentials) {
        let mut last = String::new();
        loop {
            // The leader may be adding it already.
            sleep(JOIN_RETRY).await;
            let status = member.status();
            let own = status.peers.iter().find(|peer| peer.id == member.id());
            if !status.peers.is_empty() && own.is_none_or(|own| own.is_voter) {
                return;
            }
            let others = status.peers.into_iter().map(|peer| peer.address);
            let masters: Vec<String> = others.chain(masters.iter().cloned()).collect();
            let asked = self.ask(&masters, credentials, status.entries > 0).await;
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
    ) -> Result<String, String> {
        let endpoint = credentials.endpoint(master, self.role);
        let endpoint = endpoint.ok_or_else(|| "it is not host:port".to_owned())?;
        let (member, address) = (self.id, self.address.clone());
        let mut request = Request::new(JoinRequest { protocol: PROTOCOL, member, address, has_entries });
        let user = self.role.name().parse().expect("the name of a role is plain text");
        credentials.sign(request.metadata_mut(), &user);
        let reply = PeersClient::new(endpoint.connect_lazy()).join(request).await;
        Ok(reply.map_err(|status| status.message().to_owned())?.into_inner().cluster_id)
    }
}
