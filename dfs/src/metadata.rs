//! Constants that clients and servers of the gRPC services share.

/// The gRPC metadata key of the user name.
pub use security::USER_KEY;
