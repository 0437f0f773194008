//! Names and numbers that both ends of the gRPC services must agree on.

/// The metadata key that carries the user's name.
pub use security::USER_KEY;

/// The version of the talk between DataNodes and the NameNode.
pub const DATANODE_PROTOCOL: u32 = 2;
