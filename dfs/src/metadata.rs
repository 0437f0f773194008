//! Constants that both sides of the gRPC services share.

/// The metadata key of the user name.
pub use security::USER_KEY;
