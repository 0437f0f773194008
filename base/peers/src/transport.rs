//! The client of a member: sends messages to other members.

use crate::{FRAME_BYTES_MAX, GroupName, wire};
use proto::{
    Message as _,
    raft::{Frame, peers_client::PeersClient},
};
use replication::network::{Answer, AnswerFuture, Message, Transport};
use security::Credentials;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tonic::{Request, transport::Channel};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval of the HTTP/2 pings that detect a broken connection, so that another one is made soon
/// after the network works again.
const PING_INTERVAL: Duration = Duration::from_millis(500);
/// How long a ping may take.
const PING_TIMEOUT: Duration = Duration::from_millis(1500);

/// Connections to the other members of a group.
pub struct GrpcTransport {
    group: GroupName,
    credentials: Credentials,
    clients: Mutex<HashMap<String, PeersClient<Channel>>>,
}

impl GrpcTransport {
    /// Creates a transport without connections: each is made at its first message.
    pub fn new(group: GroupName, credentials: Credentials) -> Self {
        Self { group, credentials, clients: Mutex::default() }
    }

    fn client(&self, address: &str) -> Result<PeersClient<Channel>, String> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(address) {
            return Ok(client.clone());
        }
        let endpoint = self.credentials.endpoint(address, self.group.role);
        let endpoint = endpoint.ok_or_else(|| format!("address {address:?} is not host:port"))?;
        let endpoint = endpoint.with(|endpoint| {
            endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .keep_alive_while_idle(true)
        });
        let client = PeersClient::new(endpoint.connect_lazy());
        clients.insert(address.to_owned(), client.clone());
        Ok(client)
    }

    async fn send(&self, to: u64, address: &str, message: &Message) -> Result<Answer, String> {
        let mut client = self.client(address)?;
        let bytes = self.group.request(to, message).encode_to_vec();
        let frames: Vec<Frame> =
            bytes.chunks(FRAME_BYTES_MAX).map(|bytes| Frame { bytes: bytes.to_vec() }).collect();
        let mut request = Request::new(tokio_stream::iter(frames));
        let user = self.group.role.name().parse().expect("the name of a role is plain text");
        self.credentials.sign(request.metadata_mut(), &user);
        let reply = client.send(request).await.map_err(|status| status.message().to_owned())?;
        let answer = reply.into_inner().answer.and_then(wire::to_answer);
        answer.ok_or_else(|| "the answer is incomplete".into())
    }
}

impl Transport for GrpcTransport {
    fn call<'a>(&'a self, to: u64, address: &'a str, message: Message, limit: Duration) -> AnswerFuture<'a> {
        Box::pin(async move {
            let answer = tokio::time::timeout(limit, self.send(to, address, &message)).await;
            answer.unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())))
        })
    }
}
