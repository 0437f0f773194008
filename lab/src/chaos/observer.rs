//! Queries both masters for the state of a cluster, and finds the changes since the last query.

use anyhow::{Result, bail};
use client::{
    JobTracker, credentials,
    model::{Job, Tracker},
};
use clusters::locate::Target;
use dfs_client::{Client, ClientOptions, Report};
use sim::scenario::Daemons;
use std::{collections::BTreeMap, time::Duration};
use view::nodes::state_name;
use view::output::count as count_of;

/// How long to wait for an answer. A master that does not answer in this time counts as down.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of the cluster at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterView {
    /// None if the NameNode is down.
    pub(crate) files: Option<Report>,
    /// None if the JobTracker is down.
    pub(crate) trackers: Option<Vec<Tracker>>,
    pub(crate) jobs: Vec<Job>,
}

/// The states of the two daemons of a node, as the masters report them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DaemonStatus {
    pub(crate) tracker: String,
    pub(crate) datanode: String,
}

impl ClusterView {
    /// Returns all nodes that either master knows. A state is `?` if the master is down.
    pub(crate) fn nodes(&self) -> BTreeMap<String, DaemonStatus> {
        let unknown = DaemonStatus { tracker: "?".into(), datanode: "?".into() };
        let mut all: BTreeMap<String, DaemonStatus> = BTreeMap::new();
        for tracker in self.trackers.iter().flatten() {
            all.entry(tracker.name.clone())
                .or_insert_with(|| unknown.clone())
                .tracker
                .clone_from(&tracker.state);
        }
        for node in self.files.iter().flat_map(|files| &files.nodes) {
            let status = all.entry(node.address.node.clone()).or_insert_with(|| unknown.clone());
            status.datanode = state_name(node.state).into();
        }
        all
    }

    /// Returns the number of map slots and of reduce slots of live trackers.
    pub(crate) fn slots(&self) -> (u32, u32) {
        let live = self.trackers.iter().flatten().filter(|tracker| tracker.state == "live");
        live.fold((0, 0), |(map, reduce), tracker| (map + tracker.map_slots, reduce + tracker.reduce_slots))
    }

    /// Returns the number of slots in use, according to the JobTracker.
    pub(crate) fn slots_in_use(&self) -> u32 {
        self.trackers.iter().flatten().map(|tracker| tracker.maps_running + tracker.reduces_running).sum()
    }

    /// Describes a problem with blocks. Returns None if there is none.
    pub(crate) fn block_problem(&self) -> Option<String> {
        let Some(files) = &self.files else { return Some("the NameNode is down".into()) };
        if files.safemode.on {
            return Some(format!("the NameNode is in safemode ({})", files.safemode.reason));
        }
        let counts = [
            (files.missing, "without a replica"),
            (files.under_replicated, "under-replicated"),
            (files.corrupt_replicas, "damaged"),
        ];
        let problems = counts.iter().filter(|(count, _)| *count > 0);
        let problems: Vec<String> =
            problems.map(|(count, what)| format!("{} {what}", count_of(*count, "block"))).collect();
        (!problems.is_empty()).then(|| problems.join(", "))
    }

    /// Describes a problem with the cluster. Returns None if there is none. `slots` are the
    /// expected slots. Daemons in `gone` are expected to be lost or dead.
    pub(crate) fn problem(&self, slots: (u32, u32), gone: &[(String, Daemons)]) -> Option<String> {
        let Some(trackers) = &self.trackers else { return Some("the JobTracker is down".into()) };
        if let Some(blocks) = self.block_problem() {
            return Some(blocks);
        }
        let is_gone = |name: &str, daemon: Daemons| {
            gone.iter().any(|(node, which)| node == name && (*which == daemon || *which == Daemons::Both))
        };
        for (name, status) in self.nodes() {
            let halves = [
                ("tracker", &status.tracker, "lost", is_gone(&name, Daemons::Tasktracker)),
                ("datanode", &status.datanode, "dead", is_gone(&name, Daemons::Datanode)),
            ];
            for (what, is, end, gone) in halves {
                if is != if gone { end } else { "live" } {
                    return Some(format!("the {what} of {name} is {is}"));
                }
            }
        }
        let lost = trackers.iter().filter(|tracker| is_gone(&tracker.name, Daemons::Tasktracker));
        let lost = lost.fold((0, 0), |(map, reduce), one| (map + one.map_slots, reduce + one.reduce_slots));
        let (have, want) = (self.slots(), (slots.0.saturating_sub(lost.0), slots.1.saturating_sub(lost.1)));
        (have != want).then(|| format!("{} + {} slots of {} + {}", have.0, have.1, want.0, want.1))
    }
}

/// Returns the differences between two views as texts, each with the node that it is about, if any.
/// `FaultLog::record_detection` depends on the words "live", "again", "damaged", "tracker lost" and
/// "datanode dead".
pub(crate) fn changes(before: &ClusterView, now: &ClusterView) -> Vec<(Option<String>, String)> {
    let mut texts = Vec::new();
    let masters = [
        ("namenode", before.files.is_some(), now.files.is_some()),
        ("jobtracker", before.trackers.is_some(), now.trackers.is_some()),
    ];
    for (name, was, is) in masters {
        match (was, is) {
            (true, false) => texts.push((Some(name.to_owned()), format!("the {name} is down"))),
            (false, true) => texts.push((Some(name.to_owned()), format!("the {name} is up again"))),
            _ => {}
        }
    }
    let were = before.nodes();
    for (name, is) in now.nodes() {
        let Some(was) = were.get(&name) else { continue };
        let halves = [("tracker", &was.tracker, &is.tracker), ("datanode", &was.datanode, &is.datanode)];
        let changed = halves.iter().filter(|(_, was, is)| was != is && *was != "?" && *is != "?");
        let text: Vec<String> = changed.map(|(daemon, _, is)| format!("{daemon} {is}")).collect();
        if !text.is_empty() {
            texts.push((Some(name.clone()), format!("{name}: {}", text.join(", "))));
        }
    }
    if let (Some(was), Some(is)) = (&before.files, &now.files) {
        if is.corrupt_found_total > was.corrupt_found_total {
            let found = is.corrupt_found_total - was.corrupt_found_total;
            texts.push((None, format!("{} found", count_of(found, "damaged replica"))));
        }
        let short = |report: &Report| report.under_replicated + report.missing > 0;
        match (short(was), short(is)) {
            (false, true) => {
                texts.push((
                    None,
                    format!("{} under-replicated", count_of(is.under_replicated + is.missing, "block")),
                ));
            }
            (true, false) => texts.push((None, "all blocks have their replicas".into())),
            _ => {}
        }
    }
    for job in &now.jobs {
        let was = before.jobs.iter().find(|was| was.job == job.job);
        match was {
            None if !job.has_ended() => texts.push((None, format!("{} ({}) submitted", job.job, job.name))),
            Some(was) if !was.has_ended() && job.has_ended() => {
                texts.push((None, format!("{} {} after {:.1} s", job.job, job.state, job.seconds())));
            }
            _ => {}
        }
    }
    texts
}

/// Queries the masters repeatedly and reuses its connections while they work.
pub(crate) struct Observer {
    target: Target,
    files: Option<Client>,
    jobs: Option<JobTracker>,
}

impl Observer {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, files: None, jobs: None }
    }

    /// Connects a client of the file system that prints no messages about retries.
    pub(crate) async fn client(&self) -> Result<Client> {
        let (addr, config, security) = self.target.namenode()?;
        Ok(Client::connect(ClientOptions::new(&addr, config).with(credentials(&security)?)).await?)
    }

    pub(crate) async fn jobtracker(&self) -> Result<JobTracker> {
        self.target.jobtracker().await
    }

    async fn query_files(&mut self) -> Result<Report> {
        let client = match self.files.take() {
            Some(client) => client,
            None => self.client().await?,
        };
        let report = client.report().await?;
        self.files = Some(client);
        Ok(report)
    }

    async fn query_jobs(&mut self) -> Result<(Vec<Tracker>, Vec<Job>)> {
        let tracker = match self.jobs.take() {
            Some(tracker) => tracker,
            None => self.jobtracker().await?,
        };
        let seen = (tracker.trackers().await?, tracker.jobs(true).await?);
        self.jobs = Some(tracker);
        Ok(seen)
    }

    /// Queries both masters. If the JobTracker is down, the jobs are those of the last view.
    pub(crate) async fn observe(&mut self, before: &ClusterView) -> ClusterView {
        let mut others = Self::new(self.target.clone());
        std::mem::swap(&mut others.jobs, &mut self.jobs);
        let (files, jobs) = tokio::join!(
            tokio::time::timeout(REQUEST_TIMEOUT, self.query_files()),
            tokio::time::timeout(REQUEST_TIMEOUT, others.query_jobs())
        );
        self.jobs = others.jobs;
        let (trackers, jobs) = match jobs {
            Ok(Ok((trackers, jobs))) => (Some(trackers), jobs),
            _ => (None, before.jobs.clone()),
        };
        ClusterView { files: files.ok().and_then(Result::ok), trackers, jobs }
    }

    /// Queries both masters for the first time. It is an error if one of them is down.
    pub(crate) async fn first_view(&mut self) -> Result<ClusterView> {
        let files = self.query_files().await?;
        let (trackers, jobs) = self.query_jobs().await?;
        if trackers.is_empty() {
            bail!("no TaskTracker has registered yet: wait until `mrctl nodes` shows them");
        }
        Ok(ClusterView { files: Some(files), trackers: Some(trackers), jobs })
    }
}
