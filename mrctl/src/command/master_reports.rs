//! Queries both masters for the state of each node, because a running process may still not work.

use crate::output;
use anyhow::Result;
use clusters::{locate::Target, remote::DaemonStatus};
use std::{collections::BTreeMap, time::Duration};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of each node, by name, as a master reports it; or the error if the master is
/// unreachable.
type NodeStates = Result<BTreeMap<String, String>, String>;

/// The answers of both masters.
pub(super) struct MasterReports {
    namenode: NodeStates,
    jobtracker: NodeStates,
}

async fn query_with_timeout(asking: impl Future<Output = Result<BTreeMap<String, String>>>) -> NodeStates {
    match tokio::time::timeout(REQUEST_TIMEOUT, asking).await {
        Ok(answer) => answer.map_err(|error| output::chain(&error)),
        Err(_) => Err(format!("no answer after {} s", REQUEST_TIMEOUT.as_secs())),
    }
}

impl MasterReports {
    pub(super) async fn query(target: &Target) -> Self {
        let files = async {
            let report = target.connect().await?.report().await?;
            let lower = |state| format!("{state:?}").to_lowercase();
            Ok(report.nodes.into_iter().map(|one| (one.address.node, lower(one.state))).collect())
        };
        let jobs = async {
            let trackers = target.jobtracker().await?.trackers().await?;
            Ok(trackers.into_iter().map(|one| (one.name, one.state)).collect())
        };
        let (namenode, jobtracker) =
            tokio::join!(Box::pin(query_with_timeout(files)), Box::pin(query_with_timeout(jobs)));
        Self { namenode, jobtracker }
    }

    /// Returns the masters that are unreachable, with the error.
    pub(super) fn unreachable(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let both = [("namenode", &self.namenode), ("jobtracker", &self.jobtracker)];
        both.into_iter().filter_map(|(name, nodes)| Some((name, nodes.as_ref().err()?)))
    }

    /// Adds the state that the masters report to the status of each running daemon of a machine.
    pub(super) fn merge_into(&self, node: &str, statuses: &mut [DaemonStatus]) {
        for one in statuses.iter_mut().filter(|one| one.state == "running") {
            let of_node = |nodes: &NodeStates, by: &str| {
                let nodes = nodes.as_ref().ok()?;
                let reported = nodes.get(node).cloned();
                Some(reported.unwrap_or_else(|| format!("the {by} does not know it")))
            };
            let of_master = |nodes: &NodeStates| match nodes {
                Ok(_) => "up".to_owned(),
                Err(why) => format!("does not answer: {why}"),
            };
            one.reported = match one.daemon.as_str() {
                "namenode" => Some(of_master(&self.namenode)),
                "jobtracker" => Some(of_master(&self.jobtracker)),
                "datanode" => of_node(&self.namenode, "namenode"),
                _ => of_node(&self.jobtracker, "jobtracker"),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(daemon: &str) -> DaemonStatus {
        DaemonStatus {
            daemon: daemon.into(),
            state: "running".into(),
            pid: Some(7),
            addr: None,
            outdated: false,
            reported: None,
        }
    }

    #[test]
    fn running_process_without_a_good_report_is_unhealthy() {
        let reported = |state: &str| Ok(BTreeMap::from([("n1".to_owned(), state.to_owned())]));
        let reports = MasterReports { namenode: reported("dead"), jobtracker: reported("live") };
        let mut both = [running("datanode"), running("tasktracker")];
        reports.merge_into("n1", &mut both);
        assert_eq!(both.clone().map(|one| one.is_healthy()), [false, true]);
        reports.merge_into("n2", &mut both);
        assert_eq!(both[1].reported.as_deref(), Some("the jobtracker does not know it"));
        assert!(!both[1].is_healthy());

        // If a master is unreachable, the state of its nodes is unknown and only the master is
        // unhealthy.
        let reports =
            MasterReports { namenode: Err("no answer after 5 s".into()), jobtracker: reported("live") };
        let mut all = [running("namenode"), running("jobtracker")];
        reports.merge_into("m", &mut all);
        assert_eq!(all.clone().map(|one| one.is_healthy()), [false, true]);
        let mut node = [running("datanode")];
        reports.merge_into("n1", &mut node);
        assert!(node[0].is_healthy() && node[0].reported.is_none());
        assert_eq!(reports.unreachable().map(|(name, _)| name).collect::<Vec<_>>(), ["namenode"]);

        let mut frozen = [DaemonStatus { state: "frozen".into(), ..running("datanode") }];
        reports.merge_into("n1", &mut frozen);
        assert!(!frozen[0].is_healthy());
    }
}
