//! Conversion between the wire types and the types of the NameNode. Only this module uses both.

mod inbound;
mod outbound;

pub(crate) use inbound::*;
pub(crate) use outbound::*;
