//! Replays the histories of finished jobs under different policies. First simulates the policy that
//! really ran, to measure the error of the model.

use crate::{
    Recording, Setup,
    experiment::{Comparison, Experiment, ExperimentError, RunProgress, Step, Variant, job_times_alone},
    external,
    fault::{Fault, FaultKind},
    report::{percent, show},
    setup::Machine,
    trial::Fidelity,
    workload::{
        OfferedLoad, Workload,
        history::{History, PolicyUse},
    },
};
use mrcore::{PerPhase, Span, ids::JobId};
use schedulers::{
    Params,
    explain::{Explanation, Subject},
};
use std::{fmt::Write as _, time::Duration};

/// What to replay, and with which changes.
#[derive(Debug, Clone)]
pub struct ReplayRequest {
    /// The policy that really ran.
    pub ran: Variant,
    /// Policies to try instead.
    pub others: Vec<Variant>,
    /// Slots per node that the user requests. If the history does not record the slots of the real
    /// cluster, the real cluster is assumed to have had the requested slots.
    pub slots: PerPhase<Option<u32>>,
    /// Nodes to add (positive) or remove (negative).
    pub nodes: i32,
    /// Additional faults.
    pub faults: Vec<Fault>,
    /// Real time after which a run is stopped.
    pub time_limit: Duration,
}

/// Result of a replay.
#[derive(Debug)]
pub struct Replay {
    /// Error of the model under the policy that really ran.
    pub fidelity: Fidelity,
    /// Simulation of the policy that ran, on the cluster of the history.
    pub before: Comparison,
    /// Simulations of the policy that ran and of the others, on the changed cluster.
    pub comparison: Comparison,
    /// Offered load of the replayed jobs on the changed cluster; `None` if all jobs arrive at once.
    pub offered_load: Option<OfferedLoad>,
}

/// Why the policy that ran is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPolicy {
    #[error("the history is of an older version and does not record the policy: give it with --ran")]
    NotRecorded,
    #[error(
        "jobs ran under different policies ({0}): replay only histories of one policy, or give a policy with --ran"
    )]
    Several(String),
    #[error(
        "the jobs ran under an external policy, a program that `replay` does not start because a history names it: if you trust the program, name the policy with --ran"
    )]
    External,
    #[error("{named}: the jobs ran under {recorded}, as the history says: name that policy, or omit --ran")]
    Other { named: String, recorded: String },
}

/// Adds `as configured` to the label of the policy that ran, to distinguish it from variants with the
/// same name.
pub fn as_configured(variant: Variant) -> Variant {
    Variant { label: format!("{} as configured", variant.label), ..variant }
}

/// Returns the policy that the user names as the one of the history, unless the history says that it
/// was another one. A policy that this program does not know can be replaced by any.
pub fn named(history: &History, variant: Variant) -> Result<Variant, NoPolicy> {
    let recorded: Vec<&str> = history.policies.iter().map(|one| one.policy.as_str()).collect();
    let is_named = |policy: &&str| policy.replace(' ', "") == variant.scheduler.replace(' ', "");
    let is_known = |policy: &&str| schedulers::make(policy, &Params::new()).is_ok();
    if !recorded.is_empty() && recorded.iter().all(is_known) && !recorded.iter().any(is_named) {
        return Err(NoPolicy::Other { named: variant.label, recorded: recorded.join(", ") });
    }
    Ok(as_configured(variant))
}

/// Returns the policy of the history and its parameters, if all jobs ran under the same policy.
pub fn ran(history: &History) -> Result<Variant, NoPolicy> {
    match &history.policies[..] {
        [] => Err(NoPolicy::NotRecorded),
        [PolicyUse { policy, params, .. }]
            if policy == external::NAME || params.keys().any(|key| external::is_parameter(key)) =>
        {
            Err(NoPolicy::External)
        }
        [PolicyUse { policy, params, .. }] => Ok(as_configured(Variant {
            label: policy.clone(),
            scheduler: policy.clone(),
            params: params.clone().into_iter().collect(),
        })),
        several => {
            let one = |PolicyUse { policy, params, jobs }: &PolicyUse| {
                let tuned = if params.is_empty() { "" } else { ", tuned" };
                let last = jobs.last().filter(|_| jobs.len() > 1);
                let last = last.map_or_else(String::new, |job| format!(" to {job}"));
                format!(
                    "{policy}{tuned}: {}{last}",
                    jobs.first().map_or_else(String::new, ToString::to_string)
                )
            };
            Err(NoPolicy::Several(several.iter().map(one).collect::<Vec<_>>().join("; ")))
        }
    }
}

/// A fault on a node that the changed cluster does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} cannot die: the replayed cluster has only the first {nodes_after} of {nodes_before} nodes by name"
)]
pub struct UnknownNode {
    name: String,
    nodes_before: usize,
    nodes_after: usize,
}

impl ReplayRequest {
    /// Returns the number of nodes of the changed cluster.
    fn node_count(&self, history: &History) -> usize {
        (history.trackers.len() as u32).saturating_add_signed(self.nodes).max(1) as usize
    }

    /// Checks that the nodes of all faults exist.
    pub fn validate(&self, history: &History) -> Result<(), UnknownNode> {
        let (nodes_before, nodes_after) = (history.trackers.len(), self.node_count(history));
        let gone =
            |fault: &&Fault| matches!(fault.what, FaultKind::Node { node } if node as usize >= nodes_after);
        match self.faults.iter().find(gone).map(|fault| &fault.what) {
            Some(FaultKind::Node { node }) => {
                let name = history.trackers.get(*node as usize).cloned().unwrap_or_default();
                Err(UnknownNode { name, nodes_before, nodes_after })
            }
            _ => Ok(()),
        }
    }

    /// Returns the requested slots if the history does not record the real slots, else none.
    fn real_slots(&self, history: &History) -> PerPhase<Option<u32>> {
        if history.described_trackers().is_empty() { self.slots } else { PerPhase::default() }
    }

    /// Describes how the cluster differs from that of the history; `None` if it is the same.
    pub fn changes(&self, history: &History) -> Option<String> {
        let mut words = Vec::new();
        if self.nodes != 0 {
            let (nodes_before, nodes_after) = (history.trackers.len(), self.node_count(history));
            words.push(format!("{} instead of {nodes_before}", crate::count(nodes_after, "node")));
            let gone = |lost: &&(u32, Span, Option<Span>)| lost.0 as usize >= nodes_after;
            let gone = history.losses.iter().filter(gone).count();
            if gone > 0 {
                words.push(format!("without {gone} of {} losses of nodes", history.losses.len()));
            }
        }
        if self.slots != self.real_slots(history) {
            let of = |kind: &str, slots: Option<u32>| slots.map(|slots| format!("{slots} {kind}"));
            let kinds = [of("map", self.slots.map), of("reduce", self.slots.reduce)];
            let kinds: Vec<String> = kinds.into_iter().flatten().collect();
            words.push(format!("{} slots per node", kinds.join(" and ")));
        }
        for fault in &self.faults {
            let mut word = String::new();
            let node = match fault.what {
                FaultKind::Node { node } => history.trackers.get(node as usize),
                _ => None,
            };
            let _ = write!(word, "{} dies at {} s", node.map_or("a node", String::as_str), fault.at_s);
            words.push(word);
        }
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// Returns the real run as a comparison with one policy. Each job that succeeded is also simulated
/// alone from its own history, as the base of its slowdown. There are no slowdowns if these runs take
/// longer than `time_limit` together. Calls `progress` regularly during them.
pub fn as_it_was(
    mut history: History,
    scheduler: &str,
    time_limit: Duration,
    progress: &(dyn Fn(RunProgress<'_>) + Sync),
) -> Result<Comparison, ExperimentError> {
    let machines = machines(&history, PerPhase::default(), 0);
    let setup = replay_setup(&history, machines, Vec::new());
    let (workload, _) = history.succeeded();
    let ids: Vec<JobId> = history.real.iter().filter(|real| real.succeeded).map(|real| real.id).collect();
    let alone = vec![job_times_alone(&setup, &workload, &ids, &monitor(time_limit, progress))?];
    // Includes groups in which no job succeeded.
    let groups = history.workload.groups();
    let variants = vec![Variant::plain(scheduler)];
    let runs = vec![vec![history.outcome(scheduler)]];
    Ok(Comparison { variants, seeds: vec![1], runs, alone, groups, slots: setup.slots() })
}

/// Replays a history. Calls `watch` after every run, and `progress` regularly during it. `recording`
/// is of the runs on the changed cluster: policy 0 is the one that ran.
pub fn replay(
    history: &History,
    what: &ReplayRequest,
    watch: &(dyn Fn(Step<'_>) + Sync),
    progress: &(dyn Fn(RunProgress<'_>) + Sync),
    recording: Option<Recording<'_>>,
) -> Result<Replay, ExperimentError> {
    let (workload, real) = history.succeeded();
    let changed = changed_setup(history, what);
    let offered_load = workload.offered_load(&changed).map(OfferedLoad::from);
    let workload = |_| workload.clone();
    let as_it_was = machines(history, what.real_slots(history), 0);
    let monitor = monitor(what.time_limit, progress);
    let setup = replay_setup(history, as_it_was, tracker_loss_faults(history));
    let before = experiment(&workload, setup, vec![what.ran.clone()], &monitor).run_watched(watch)?;
    if before.runs[0][0].stopped {
        return Err(ExperimentError::ReplayStopped);
    }
    let simulated =
        before.runs[0][0].metrics.jobs().map(|(_, job)| job.makespan().map_or(0.0, Span::as_secs_f64));
    let both = real.into_iter().zip(simulated);
    let fidelity = Fidelity { jobs: both.map(|((name, real), simulated)| (name, real, simulated)).collect() };
    let variants = std::iter::once(&what.ran).chain(&what.others).cloned().collect();
    let experiment = experiment(&workload, changed, variants, &monitor);
    let comparison = experiment.run_recorded(watch, recording)?;
    Ok(Replay { fidelity, before, comparison, offered_load })
}

/// Returns a function that reports the progress of a run, and stops it after the time limit.
fn monitor(
    time_limit: Duration,
    progress: &(dyn Fn(RunProgress<'_>) + Sync),
) -> impl Fn(RunProgress<'_>) -> bool + Sync {
    move |run| {
        progress(run);
        run.elapsed < time_limit
    }
}

/// Explains why a job or a task waits on the changed cluster under the first of the other policies,
/// at a time after the first submission. Calls `progress` regularly during the run.
pub fn explain(
    history: &History,
    what: &ReplayRequest,
    subject: Subject,
    at: Span,
    progress: &(dyn Fn(RunProgress<'_>) + Sync),
) -> Result<Explanation, ExperimentError> {
    let (workload, _) = history.succeeded();
    let workload = |_| workload.clone();
    let monitor = monitor(what.time_limit, progress);
    experiment(&workload, changed_setup(history, what), what.others.clone(), &monitor).explain(subject, at)
}

/// Returns the changed cluster. Trackers that were lost in the history are lost again, if the
/// changed cluster has them.
fn changed_setup(history: &History, what: &ReplayRequest) -> Setup {
    let machines = machines(history, what.slots, what.nodes);
    let lost = tracker_loss_faults(history).into_iter().chain(what.faults.iter().cloned()).collect();
    replay_setup(history, machines, lost)
}

/// Returns the machines of a history, ordered by name. If `more` is positive, adds copies of the
/// last machine; if negative, removes the last machines. The slots are those in `slots`, else those
/// recorded in the history, else the largest number of slots that was in use at the same time.
pub(crate) fn machines(history: &History, slots: PerPhase<Option<u32>>, more: i32) -> Vec<Machine> {
    let usual = Setup::even(1, history.slots, "fifo").machines[0].clone();
    let places = history.described_trackers();
    let mut racks: Vec<&str> = places.iter().map(|place| place.rack.as_str()).collect();
    racks.sort_unstable();
    racks.dedup();
    let machine = |name: &String| {
        let place = places.iter().find(|place| place.name == *name);
        let rack = place.and_then(|place| racks.iter().position(|rack| *rack == place.rack)).unwrap_or(0);
        let recorded = place.map(|place| PerPhase { map: place.map_slots, reduce: place.reduce_slots });
        let recorded = recorded.unwrap_or(history.slots);
        let slots = PerPhase {
            map: slots.map.unwrap_or(recorded.map),
            reduce: slots.reduce.unwrap_or(recorded.reduce),
        };
        // Task times come from the history, so the rates of disk and network must not limit them.
        Machine { rack: rack as u32, slots, disk: 1e12, nic: 1e11, ..usual.clone() }
    };
    let mut machines: Vec<Machine> = history.trackers.iter().map(machine).collect();
    let count = (machines.len() as u32).saturating_add_signed(more).max(1) as usize;
    let last = machines.last().cloned().unwrap_or_else(|| machine(&String::new()));
    machines.resize(count, last);
    machines
}

/// Returns a fault for each tracker that was lost. It begins at the last heartbeat of the tracker.
fn tracker_loss_faults(history: &History) -> Vec<Fault> {
    let silent = mrcore::Config::default().lost_after.as_secs_f64();
    let fault = |(node, at, back): &(u32, Span, Option<Span>)| {
        let at_s = (at.as_secs_f64() - silent).max(0.0);
        let for_s = back.map(|back| (back.as_secs_f64() - at_s).max(0.0));
        Fault { at_s, for_s, what: FaultKind::Node { node: *node } }
    };
    history.losses.iter().map(fault).collect()
}

/// Returns a setup in which starting a task takes no time, because the task times in a history
/// include the start.
fn replay_setup(history: &History, machines: Vec<Machine>, faults: Vec<Fault>) -> Setup {
    let mut setup = Setup::even(machines.len() as u32, history.slots, "fifo");
    let added = (1..).map(|number| format!("added{number}")).filter(|name| !history.trackers.contains(name));
    setup.node_names = history.trackers.iter().cloned().chain(added).take(machines.len()).collect();
    (setup.machines, setup.faults) = (machines, faults);
    setup.costs.start = Span(0);
    setup
}

fn experiment<'a>(
    workload: &'a (dyn Fn(u64) -> Workload + Sync),
    setup: Setup,
    variants: Vec<Variant>,
    monitor: &'a (dyn Fn(RunProgress<'_>) -> bool + Sync),
) -> Experiment<'a> {
    Experiment {
        setup,
        faults: None,
        workload,
        users: Vec::new(),
        variants,
        seeds: 1..2,
        limit: None,
        alone: false,
        monitor: Some(monitor),
    }
}

impl Replay {
    /// Describes the mean completion time under the policy that ran, on the changed cluster and on
    /// the cluster of the history.
    pub fn against_before(&self) -> String {
        let mean =
            |comparison: &Comparison| show(comparison.mean_over(0, None, crate::experiment::makespan_s));
        let ran = &self.comparison.variants[0].label;
        format!(
            "under {ran} jobs take {} s on average, {} s on the cluster as it was (both simulated)",
            mean(&self.comparison),
            mean(&self.before)
        )
    }

    /// Describes the policy with the lowest mean completion time, its gain over the policy that
    /// ran, and which group of jobs would take longer.
    pub fn advice(&self, history: &History) -> String {
        let mean = |at: usize| self.comparison.mean_over(at, None, crate::experiment::makespan_s);
        // A policy under which more jobs fail or do not end is not considered.
        let unfinished = |at: usize| self.comparison.unfinished(at, None);
        let best = (0..self.comparison.variants.len())
            .filter(|at| unfinished(*at).0 <= unfinished(0).0 && unfinished(*at).1 <= unfinished(0).1)
            .min_by(|one, other| mean(*one).mean.total_cmp(&mean(*other).mean));
        let best = best.unwrap_or(0);
        let (ran, label) = (&self.comparison.variants[0].label, &self.comparison.variants[best].label);
        if best == 0 {
            return format!(
                "keep {ran}: no other policy has a lower mean completion time ({} s)",
                show(mean(0))
            );
        }
        let gain = mean(best).less_than(mean(0));
        let worst = self.comparison.groups.iter().map(|group| {
            let mean = |at: usize| self.comparison.mean_over(at, Some(group), crate::experiment::makespan_s);
            (-mean(best).less_than(mean(0)), group)
        });
        let worst = worst.max_by(|one, other| one.0.total_cmp(&other.0));
        let cost = match worst {
            Some((more, group)) if more > 0.0 => format!("; {group} jobs take {} longer", percent(more)),
            _ => "; no group of jobs takes longer".into(),
        };
        let off = self.fidelity.error();
        // A gain smaller than the error of the model is not certain.
        let advice = if gain > off { format!("use {label}") } else { format!("{label} may be better") };
        let note = if gain > off { "" } else { ", which is more than the gain" };
        format!(
            "{advice}: mean completion time {} s instead of {} s ({} less){cost}; the error of the model on {} was {}{note}",
            show(mean(best)),
            show(mean(0)),
            percent(gain),
            history.run_name(),
            percent(off)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::TimesAlone, workload::history::TrackerRow};
    use std::collections::BTreeMap;

    fn empty_request() -> ReplayRequest {
        ReplayRequest {
            ran: Variant::plain("fifo"),
            others: Vec::new(),
            slots: PerPhase::default(),
            nodes: 0,
            faults: Vec::new(),
            time_limit: Duration::MAX,
        }
    }

    #[test]
    fn policy_is_unknown_if_none_or_several_are_recorded() {
        let one = |policy: &str, jobs: &[u32]| PolicyUse {
            policy: policy.into(),
            params: BTreeMap::new(),
            jobs: jobs.iter().copied().map(JobId).collect(),
        };
        let of = |policies| History { policies, ..History::default() };
        assert_eq!(ran(&of(Vec::new())), Err(NoPolicy::NotRecorded));
        let error =
            ran(&of(vec![one("fair", &[1, 2]), one("fifo", &[3])])).expect_err("two policies").to_string();
        assert!(error.contains("(fair: job_1 to job_2; fifo: job_3)"), "{error}");
        // A history must not choose which program is started.
        let params = BTreeMap::from([("external.command".to_owned(), "touch file".to_owned())]);
        let external = PolicyUse { params, ..one("external", &[1]) };
        assert_eq!(ran(&of(vec![external.clone()])), Err(NoPolicy::External));
        assert_eq!(ran(&of(vec![one("external", &[1])])), Err(NoPolicy::External));
        // A policy that is named must be one of those in the history, if it has any that is known.
        let named = |policies, name| named(&of(policies), Variant::plain(name));
        let error = named(vec![one("fair", &[1])], "fifo").expect_err("another policy").to_string();
        assert!(error.starts_with("fifo: the jobs ran under fair, as the history says: "), "{error}");
        let both = || vec![one("fair", &[1]), one("chronos(fair)", &[2])];
        assert!(named(both(), "chronos(fair)").is_ok() && named(both(), "las").is_err());
        for policies in [Vec::new(), vec![external], vec![one("mine", &[1])]] {
            assert_eq!(named(policies, "fifo").map(|ran| ran.label), Ok("fifo as configured".into()));
        }
    }

    #[test]
    fn changes_of_the_cluster_are_described() {
        let mut history = History {
            trackers: vec!["a".into(), "b".into()],
            losses: vec![(0, Span(0), None), (1, Span(0), None)],
            ..History::default()
        };
        let mut what = empty_request();
        assert_eq!(what.changes(&history), None);
        what.nodes = 4;
        what.faults = vec![Fault { at_s: 30.0, for_s: None, what: FaultKind::Node { node: 1 } }];
        assert_eq!(what.changes(&history).as_deref(), Some("6 nodes instead of 2, b dies at 30 s"));
        assert_eq!(what.validate(&history), Ok(()));
        what.nodes = -1;
        let error = what.validate(&history).expect_err("node b does not exist").to_string();
        assert_eq!(error, "b cannot die: the replayed cluster has only the first 1 of 2 nodes by name");
        what.faults.clear();
        assert_eq!(
            what.changes(&history).as_deref(),
            Some("1 node instead of 2, without 1 of 2 losses of nodes")
        );
        what.nodes = 0;
        what.slots.map = Some(8);
        assert_eq!(
            what.changes(&history),
            None,
            "without recorded slots, the requested slots are the real ones"
        );
        let trackers = vec![TrackerRow { name: "a".into(), ..TrackerRow::default() }];
        let environment = crate::workload::history::Environment { trackers, ..Default::default() };
        history.environment = Some(environment);
        assert_eq!(what.changes(&history).as_deref(), Some("8 map slots per node"));
        what.slots.reduce = Some(2);
        assert_eq!(what.changes(&history).as_deref(), Some("8 map and 2 reduce slots per node"));
    }

    #[test]
    fn replayed_nodes_have_the_recorded_racks_slots_and_losses() {
        let place = |name: &str, rack: &str, map_slots| TrackerRow {
            name: name.into(),
            host: name.into(),
            rack: rack.into(),
            map_slots,
            reduce_slots: 1,
        };
        let tuned: BTreeMap<String, String> = [("fair.node_wait".to_owned(), "5s".to_owned())].into();
        let environment = crate::workload::history::Environment {
            policy: "fair".into(),
            params: tuned.clone(),
            trackers: vec![place("b", "/2", 3), place("a", "/1", 2)],
        };
        let history = History {
            environment: Some(environment),
            trackers: vec!["a".into(), "b".into()],
            slots: PerPhase { map: 1, reduce: 1 },
            policies: vec![PolicyUse { policy: "fair".into(), params: tuned.clone(), jobs: vec![JobId(1)] }],
            losses: vec![(1, Span::secs(100), Some(Span::secs(160)))],
            ..History::default()
        };
        let shown = |more| -> Vec<(u32, u32)> {
            let machines = machines(&history, PerPhase::default(), more);
            machines.iter().map(|machine| (machine.rack, machine.slots.map)).collect()
        };
        assert_eq!(shown(0), [(0, 2), (1, 3)], "slots are the recorded ones, not those in use");
        assert_eq!((shown(1), shown(-1)), (vec![(0, 2), (1, 3), (1, 3)], vec![(0, 2)]));
        let ran = ran(&history).expect("a recorded policy");
        assert_eq!((ran.scheduler.as_str(), ran.params["fair.node_wait"].as_str()), ("fair", "5s"));
        assert_eq!(ran.label, "fair as configured", "the label must differ from other fair variants");
        let silent = mrcore::Config::default().lost_after.as_secs_f64();
        let lost =
            Fault { at_s: 100.0 - silent, for_s: Some(60.0 + silent), what: FaultKind::Node { node: 1 } };
        assert_eq!(tracker_loss_faults(&history), [lost]);
        let asked = PerPhase { map: Some(4), reduce: None };
        let slots = |history: &History, asked| machines(history, asked, 0).pop().map(|machine| machine.slots);
        assert_eq!(slots(&History::default(), asked), Some(PerPhase { map: 4, reduce: 0 }));
        let maps = "only the map slots change";
        assert_eq!(slots(&history, asked), Some(PerPhase { map: 4, reduce: 1 }), "{maps}");
    }

    /// Returns the history of two maps of so many seconds on a node with one map slot.
    fn two_maps_on_one_slot(map_s: u64) -> History {
        let (first, second) = ((1 + map_s) * 1_000_000, (1 + 2 * map_s) * 1_000_000);
        let lines = [
            r#"{"format":3,"cluster":"c","job":"job_1","at_us":1000000,"spec":{"name":"sort","user":"ann","queue":"q","priority":"normal","program":"builtin:sort","reduces":0,"slow_start":0.05,"speculation":false,"splits":[{"start":0,"end":100},{"start":100,"end":200}]}}"#.to_owned(),
            r#"{"at_us":1000000,"fact":{"submitted-to":{"policy":"fifo","params":{},"trackers":[{"name":"node1","host":"node1","rack":"/r","map_slots":1,"reduce_slots":1}]}}}"#.to_owned(),
            r#"{"at_us":1000000,"fact":{"attempt-launched":{"attempt":"job_1.m0.0","tracker":"node1"}}}"#.to_owned(),
            format!(r#"{{"at_us":{first},"fact":{{"attempt-succeeded":{{"attempt":"job_1.m0.0","bytes_out":1}}}}}}"#),
            format!(r#"{{"at_us":{first},"fact":{{"attempt-launched":{{"attempt":"job_1.m1.0","tracker":"node1"}}}}}}"#),
            format!(r#"{{"at_us":{second},"fact":{{"attempt-succeeded":{{"attempt":"job_1.m1.0","bytes_out":1}}}}}}"#),
            format!(r#"{{"at_us":{second},"fact":{{"job-ended":{{"outcome":"succeeded"}}}}}}"#),
        ];
        let text = ("a file".to_owned(), lines.join("\n"));
        crate::workload::history::read_texts(&[text]).expect("it reads")
    }

    /// All jobs are submitted before the first heartbeat, and need few of the machines.
    #[test]
    fn jobs_submitted_at_time_0_are_replayed_on_the_whole_cluster() {
        use crate::{World, trial};
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut trial = trial::short();
        trial.workload.jobs.retain(|job| job.group == "small");
        trial.workload.jobs.iter_mut().for_each(|job| job.at = Span(0));
        let slots = PerPhase { map: 20, reduce: 10 };
        trial.setup.machines.iter_mut().for_each(|machine| machine.slots = slots);
        let count = trial.setup.machines.len();
        let recording = Recording { folder: folder.path(), made_by: "a test", variant: 0 };
        let world = World::new(trial.setup, trial.workload).expect("a policy").with_histories(recording);
        world.run(None).expect("no rule broken");
        let history = crate::workload::history::read(folder.path()).expect("histories");
        assert_eq!((history.trackers.len(), history.guessed_cluster()), (count, None));
        let machines = machines(&history, PerPhase::default(), 0);
        assert!(machines.len() == count && machines.iter().all(|machine| machine.slots == slots));
    }

    #[test]
    fn model_error_is_measured_with_the_recorded_slots() {
        let history = two_maps_on_one_slot(10);
        let what = ReplayRequest { slots: PerPhase { map: Some(2), reduce: None }, ..empty_request() };
        let replay = replay(&history, &what, &|_| {}, &|_| {}, None).expect("it runs");
        assert!(
            replay.fidelity.error() < 0.1,
            "the maps do not run one after the other: {:?}",
            replay.fidelity
        );
        let mean =
            |comparison: &Comparison| comparison.mean_over(0, None, crate::experiment::makespan_s).mean;
        let (before, after) = (mean(&replay.before), mean(&replay.comparison));
        assert!(
            before > 1.8 * after,
            "with two slots the maps should take half of {before} s, not {after} s"
        );
    }

    #[test]
    fn nodes_of_a_replay_have_the_names_of_the_history() {
        let history = two_maps_on_one_slot(10);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let what = ReplayRequest { nodes: 1, others: vec![Variant::plain("fair")], ..empty_request() };
        let recording = Recording { folder: folder.path(), made_by: "a test", variant: 1 };
        let replay = replay(&history, &what, &|_| {}, &|_| {}, Some(recording)).expect("it runs");
        let read = crate::workload::history::read(folder.path()).expect("a history");
        assert_eq!(read.trackers, ["added1", "node1"]);
        let explanation = explain(&history, &what, Subject::Job(JobId(1)), Span::secs(5), &|_| {});
        let events = explanation.expect("it runs").recent_events;
        let trackers: Vec<&str> = events.iter().map(|(_, event)| event.tracker.as_str()).collect();
        assert!(trackers.contains(&"node1") && trackers.contains(&"added1"), "{trackers:?}");
        assert!(events.iter().any(|(_, event)| event.text.contains(" started on node1")), "{events:?}");
        // The names change nothing else.
        let (workload, _) = history.succeeded();
        let numbered = Setup { node_names: Vec::new(), ..changed_setup(&history, &what) };
        let (jobs, others) = (|_| workload.clone(), what.others.clone());
        let numbered = experiment(&jobs, numbered, others, &|_| true);
        assert_eq!(numbered.run().expect("it runs").runs[0][0].hash, replay.comparison.runs[1][0].hash);
    }

    #[test]
    fn slowdowns_of_a_history_are_omitted_after_the_time_limit() {
        let alone = |time_limit| {
            let history = two_maps_on_one_slot(100_000);
            as_it_was(history, "fifo", time_limit, &|_| {}).expect("it runs").alone
        };
        assert!(matches!(&alone(Duration::MAX)[0], TimesAlone::Jobs(times) if times.len() == 1));
        assert_eq!(alone(Duration::ZERO), [TimesAlone::Stopped]);
    }

    #[test]
    fn replay_needs_the_run_of_the_policy_that_ran() {
        let history = two_maps_on_one_slot(100_000);
        let what = ReplayRequest { time_limit: Duration::ZERO, ..empty_request() };
        let error = replay(&history, &what, &|_| {}, &|_| {}, None).expect_err("no time").to_string();
        assert!(error.contains("--time-limit"), "{error}");
    }
}
