//! HTTP for a cluster, in two servers.
//!
//! - [`Gateway`] serves read-only pages on loopback, as one user sees the cluster. `mrctl web` runs
//!   it.
//! - [`run`] is the daemon `gateway`: `WebHDFS` (`/webhdfs/v1`) and REST (`/api/v1`) for programs.
//!
//! Both are clients like all commands, with the same calls. The pages use the credentials of the
//! user who runs `mrctl web`. The daemon has no credentials: each request shows a token, which the
//! daemon passes on to the masters, and in an open cluster a name
//! ([ADR 0048](../../docs/internals/adr/0048-gateway.md)).

mod answer;
mod api;
mod caller;
mod chart;
mod guard;
mod page;
mod pages;
mod params;
mod refusals;
mod run;
mod serve;
mod service;
mod webhdfs;

pub use pages::{Addresses, Gateway};
pub use run::{GatewayError, run};
