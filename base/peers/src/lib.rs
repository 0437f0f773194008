//! gRPC between the members of a group of masters, which are all NameNode or all JobTracker.
//!
//! - [`transport`]: sends messages to other members;
//! - [`service`]: receives them;
//! - [`join`]: asks the leader of a group to add a member;
//! - [`folder`]: opens the folder of a member, which may be new, lost or damaged;
//! - [`group`]: a member, as both masters use it;
//! - [`leader`]: lets another member lead;
//! - [`membership`]: changes the group at the request of an administrator;
//! - [`requests`]: runs the requests of clients on threads that messages do not need;
//! - `wire`: converts them.

pub mod folder;
pub mod group;
pub mod join;
pub mod leader;
pub mod membership;
pub mod requests;
pub mod service;
pub mod transport;
mod wire;

use proto::raft::Request;
use replication::network::Message;

/// Version of the messages. Members with different versions refuse each other.
const PROTOCOL: u32 = 1;
/// Maximum length of a message: of the entries in it, and what surrounds them.
const MESSAGE_BYTES_MAX: usize = journal::log::BATCH_BYTES_MAX + (8 << 20);
/// Maximum length of a frame.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// The group that a member belongs to.
#[derive(Debug, Clone)]
pub struct GroupName {
    /// ID of the cluster.
    pub cluster_id: String,
    /// What its members are.
    pub role: security::Role,
}

impl GroupName {
    fn request(&self, to: u64, message: &Message) -> Request {
        Request {
            protocol: PROTOCOL,
            cluster_id: self.cluster_id.clone(),
            to,
            message: Some(wire::from_message(message)),
        }
    }
}
