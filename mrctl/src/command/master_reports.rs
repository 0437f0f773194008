//! Queries both masters for the state of each node, because a running process may still not work.

use crate::output;
use anyhow::Result;
use clusters::{
    locate::Target,
    remote::{DaemonStatus, Member},
};
use std::{collections::BTreeMap, time::Duration};
use view::masters::MasterStatus;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of each node, by name, as a master reports it; or the error if the master is
/// unreachable.
type NodeStates = Result<BTreeMap<String, String>, String>;

/// The answers of both masters.
pub(super) struct MasterReports {
    namenode: NodeStates,
    jobtracker: NodeStates,
    /// All masters.
    masters: Vec<MasterStatus>,
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
        let masters = target.all_masters(REQUEST_TIMEOUT);
        let (namenode, jobtracker, masters) = tokio::join!(
            Box::pin(query_with_timeout(files)),
            Box::pin(query_with_timeout(jobs)),
            Box::pin(masters)
        );
        // What cannot be asked, the others report.
        Self { namenode, jobtracker, masters: masters.map_or_else(|_| Vec::new(), |all| all.masters) }
    }

    /// Returns the masters that are unreachable, with the error.
    pub(super) fn unreachable(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let both = [("namenode", &self.namenode), ("jobtracker", &self.jobtracker)];
        both.into_iter().filter_map(|(name, nodes)| Some((name, nodes.as_ref().err()?)))
    }

    /// Adds the state that the masters report to the status of each running daemon of a machine.
    pub(super) fn merge_into(&self, node: &str, members: &[Member], statuses: &mut [DaemonStatus]) {
        let role = |daemon: &str| {
            let member = members.iter().find(|member| member.daemon == daemon)?;
            let is_it = |one: &&MasterStatus| one.daemon == daemon && one.address == member.address;
            let one = self.masters.iter().find(is_it)?;
            Some(
                one.error
                    .as_ref()
                    .map_or_else(|| one.role.to_owned(), |why| format!("does not answer: {why}")),
            )
        };
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
                "namenode" => Some(role("namenode").unwrap_or_else(|| of_master(&self.namenode))),
                "jobtracker" => Some(role("jobtracker").unwrap_or_else(|| of_master(&self.jobtracker))),
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
        let reports =
            MasterReports { namenode: reported("dead"), jobtracker: reported("live"), masters: vec![] };
        let mut both = [running("datanode"), running("tasktracker")];
        reports.merge_into("n1", &[], &mut both);
        assert_eq!(both.clone().map(|one| one.is_healthy()), [false, true]);
        reports.merge_into("n2", &[], &mut both);
        assert_eq!(both[1].reported.as_deref(), Some("the jobtracker does not know it"));
        assert!(!both[1].is_healthy());

        // If a master is unreachable, the state of its nodes is unknown and only the master is
        // unhealthy.
        let reports = MasterReports {
            namenode: Err("no answer after 5 s".into()),
            jobtracker: reported("live"),
            masters: vec![],
        };
        let mut all = [running("namenode"), running("jobtracker")];
        reports.merge_into("m", &[], &mut all);
        assert_eq!(all.clone().map(|one| one.is_healthy()), [false, true]);
        let mut node = [running("datanode")];
        reports.merge_into("n1", &[], &mut node);
        assert!(node[0].is_healthy() && node[0].reported.is_none());
        assert_eq!(reports.unreachable().map(|(name, _)| name).collect::<Vec<_>>(), ["namenode"]);

        let master = |address: &str, role, error: Option<&str>| MasterStatus {
            daemon: "namenode",
            name: None,
            id: None,
            address: address.into(),
            role,
            votes: None,
            term: None,
            epoch: None,
            applied: None,
            lag: None,
            last_contact_ms: None,
            waits_for: None,
            error: error.map(str::to_owned),
        };
        let masters = vec![master("a:1", "leader", None), master("b:1", "down", Some("silent for 2s"))];
        let reports = MasterReports { namenode: reported("live"), jobtracker: reported("live"), masters };
        for (address, role) in [("a:1", "leader"), ("b:1", "does not answer: silent for 2s")] {
            let member = Member {
                daemon: "namenode",
                id: 1,
                address: address.into(),
                others: Vec::new(),
                is_founder: false,
            };
            let mut one = [running("namenode")];
            reports.merge_into("m", &[member], &mut one);
            assert_eq!(one[0].reported.as_deref(), Some(role));
        }

        let mut frozen = [DaemonStatus { state: "frozen".into(), ..running("datanode") }];
        reports.merge_into("n1", &[], &mut frozen);
        assert!(!frozen[0].is_healthy());
    }
}
