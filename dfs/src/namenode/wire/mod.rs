//! The NameNode's door: the only place where its wire types and its own types meet.

mod inbound;
mod outbound;

pub(crate) use inbound::*;
pub(crate) use outbound::*;
