//! Constants that both sides of the gRPC services share.

/// The metadata key of the user name.
pub use security::USER_KEY;

/// The version of the protocol between DataNodes and the NameNode.
pub const DATANODE_PROTOCOL: u32 = 3;
