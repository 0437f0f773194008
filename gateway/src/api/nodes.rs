//! Nodes and the scheduler.

use super::{Answer, error::ErrorReply, extract::Asked, page};
use crate::caller::Caller;
use axum::Json;
use client::{
    model::Tracker,
    scheduling::{Comparison, Schedulers},
};
use dfs_client::NodeReport;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// Which nodes to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct NodesQuery {
    /// Number of entries, 100 if missing, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The name to continue after: `next` of the page before.
    after: Option<String>,
}

/// A page of nodes, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NodesPage {
    nodes: Vec<Node>,
    /// The name to continue after; null at the end.
    next: Option<String>,
}

/// A machine with a TaskTracker, a DataNode, or both.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct Node {
    /// The name of the node.
    name: String,
    /// Its TaskTracker, as the JobTracker knows it.
    tasktracker: Option<Tracker>,
    /// Its DataNode, as the NameNode knows it.
    datanode: Option<DataNode>,
}

/// A DataNode.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DataNode {
    /// `live`, `suspect`, `dead`, `draining` or `drained`.
    state: serde_json::Value,
    rack: String,
    /// Address of the block protocol.
    data_addr: String,
    /// Bytes used by blocks plus free bytes.
    capacity: u64,
    used: u64,
    free: u64,
    /// Number of replicas.
    blocks: u64,
    volumes: u32,
    failed_volumes: u32,
    last_heartbeat_ms_ago: u64,
    version: String,
}

impl From<NodeReport> for DataNode {
    fn from(of: NodeReport) -> Self {
        Self {
            state: serde_json::to_value(of.state).unwrap_or_default(),
            rack: of.address.rack,
            data_addr: of.address.data_addr,
            capacity: of.capacity,
            used: of.used,
            free: of.free,
            blocks: of.blocks,
            volumes: of.volumes,
            failed_volumes: of.failed_volumes,
            last_heartbeat_ms_ago: of.last_heartbeat_ms_ago,
            version: of.version,
        }
    }
}

/// Lists the nodes.
#[utoipa::path(get, path = "/api/v1/nodes", params(NodesQuery), responses(
    (status = 200, body = NodesPage), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn list(caller: Caller, Asked(query): Asked<NodesQuery>) -> Answer<NodesPage> {
    let mut nodes = BTreeMap::<String, Node>::new();
    for tracker in caller.jobs().await?.trackers().await? {
        let node = entry(&mut nodes, tracker.name.clone());
        node.tasktracker = Some(tracker);
    }
    for report in caller.files.report().await?.nodes {
        let node = entry(&mut nodes, report.address.node.clone());
        node.datanode = Some(report.into());
    }
    let nodes = nodes.into_values().collect();
    let (nodes, next) = page(nodes, |node: &Node| &node.name, query.after.as_deref(), query.limit)?;
    Ok(Json(NodesPage { nodes, next }))
}

fn entry(nodes: &mut BTreeMap<String, Node>, name: String) -> &mut Node {
    nodes.entry(name.clone()).or_insert_with(|| Node { name, ..Node::default() })
}

/// Shows the policy in use, its parameters, and all other policies.
#[utoipa::path(get, path = "/api/v1/scheduler", responses(
    (status = 200, body = Schedulers), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn scheduler(caller: Caller) -> Answer<Schedulers> {
    Ok(Json(caller.jobs().await?.schedulers().await?))
}

/// Shows how the decisions of the shadow policy differ from those of the policy in use.
#[utoipa::path(get, path = "/api/v1/scheduler/shadow", responses(
    (status = 200, body = Comparison), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn shadow(caller: Caller) -> Answer<Comparison> {
    Ok(Json(caller.jobs().await?.shadow().await?))
}
