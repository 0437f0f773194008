//! Asks the NameNodes of a cluster what they do.

use super::state::ClusterState;
use anyhow::Result;
use dfs_client::{ClientOptions, group};
use std::time::Duration;
use view::masters::MastersStatus;

/// Asks all NameNodes at once. `state` names those of a local cluster.
pub async fn ask_namenodes(
    options: &ClientOptions,
    state: Option<&ClusterState>,
    limit: Duration,
) -> Result<MastersStatus> {
    let answers = group::ask(options, limit).await?;
    let local = state.into_iter().flat_map(ClusterState::namenodes);
    let names = local.map(|daemon| (daemon.addr.clone(), daemon.name.clone()));
    Ok(MastersStatus::new(answers, &names.collect()))
}
