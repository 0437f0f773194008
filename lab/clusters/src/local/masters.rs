//! Asks the masters of a cluster what they do.

use super::state::ClusterState;
use anyhow::Result;
use daemon::MasterAddrs;
use dfs_client::group::GroupClient;
use security::{Credentials, Role};
use std::time::Duration;
use view::masters::MastersStatus;

/// Asks all masters of one kind at once. `state` names those of a local cluster.
pub async fn ask_masters(
    kind: Role,
    addrs: &MasterAddrs,
    credentials: Credentials,
    state: Option<&ClusterState>,
    limit: Duration,
) -> Result<MastersStatus> {
    let answers = GroupClient::new(kind, addrs, credentials)?.ask(limit).await;
    let local = state.into_iter().flat_map(|state| state.daemons.iter());
    let names = local.map(|daemon| (daemon.addr.clone(), daemon.name.clone()));
    Ok(MastersStatus::new(kind, answers, &names.collect()))
}
