//! Formats effects as lines of a scenario file. Some facts have no line: submissions, deadlines, and
//! the start of a commit, which is shown as an effect.

use super::Player;
use crate::{
    event::{Effect, Order, Reply},
    fact::Fact,
    ids::{JobId, TaskId, TrackerId},
    job::MapEvent,
    shadow::Difference,
    task::PreemptKind,
    why::Why,
};

/// Shortens `job_1.m0.0` to `j1.m0.0`.
fn short_id(id: impl std::fmt::Display) -> String {
    id.to_string().replace("job_", "j")
}

impl Player<'_> {
    /// Returns lines that show how the decisions of the shadow differ.
    pub(super) fn comparison_lines(&self) -> Vec<String> {
        let Some(shadow) = self.core.shadow() else { return vec!["no shadow".to_owned()] };
        let tally = shadow.tally();
        let slots = format!(
            "slots: same={} other={} left-free={} sooner={}",
            tally.same, tally.other, tally.left_free, tally.sooner
        );
        let preempted = format!(
            "preempted: both={} policy={} shadow={}",
            tally.both_preempted, tally.policy_preempted, tally.shadow_preempted
        );
        let choice = |choice: &Option<(TaskId, Why)>| match choice {
            Some((task, why)) => format!("{} ({why})", short_id(task)),
            None => "nothing".to_owned(),
        };
        let line = |difference: &Difference| match difference {
            Difference::Slot { on, policy, shadow, .. } => {
                format!("on {}: {} rather than {}", self.tracker_name(*on), choice(shadow), choice(policy))
            }
            Difference::Preempted { attempt, by_shadow, why } => {
                let who = if *by_shadow { "shadow" } else { "policy" };
                format!("only the {who} preempts {} ({why})", short_id(attempt))
            }
        };
        let differences = shadow.differences().map(|(_, difference)| line(difference));
        [slots, preempted].into_iter().chain(differences).collect()
    }

    pub(super) fn render(&self, effects: &[Effect]) -> Vec<String> {
        let mut lines = Vec::new();
        for effect in effects {
            match effect {
                Effect::Append(entry) => lines.extend(self.fact_line(&entry.fact)),
                Effect::Reply { reply, .. } => lines.extend(reply_line(reply)),
                Effect::SendOrders { tracker, orders, .. } => {
                    lines.extend(orders.iter().filter_map(|(_, order)| self.order_line(*tracker, order)));
                }
                Effect::RegisterAgain { tracker, .. } => {
                    lines.push(format!("register-again {}", self.tracker_name(*tracker)));
                }
                Effect::CommitJob { job } => lines.push(format!("commit {}", short_id(job))),
                Effect::Compute { problem, .. } => lines.push(format!("compute {}", problem.name)),
                Effect::DeleteLeftovers { job, leftovers } if leftovers.discard_output => {
                    lines.push(format!("discard {}", short_id(job)));
                }
                Effect::DeleteLeftovers { job, leftovers } if leftovers.work_folder.is_some() => {
                    lines.push(format!("delete-late-output {}", short_id(job)));
                }
                Effect::DeleteLeftovers { .. } => {}
            }
        }
        lines
    }

    /// Returns a line that shows what preemption has cost a job.
    pub(super) fn cost_line(&self, id: JobId) -> String {
        let Some(job) = self.core.cluster().job(id) else { return "no such job".into() };
        let cost = job.preemption;
        format!(
            "cost {}: splits={} pauses={} resumes={} migrations={} kills={} checkpoints-lost={}; saved {} bytes {}, lost {} bytes {}",
            short_id(id),
            cost.splits,
            cost.pauses,
            cost.resumes,
            cost.migrations,
            cost.kills,
            cost.checkpoints_lost,
            cost.bytes_saved,
            cost.time_saved,
            cost.bytes_lost,
            cost.time_lost
        )
    }

    /// Returns a line that shows the progress of a drain.
    pub(super) fn drain_line(&self, id: TrackerId) -> String {
        let status = self.core.drain_status(id);
        let state = match (&status.drain, status.is_empty()) {
            (None, _) => "in use",
            (Some(_), false) => "draining",
            (Some(_), true) => "drained",
        };
        let cost = status.drain.as_ref().map(|(_, _, cost)| *cost).unwrap_or_default();
        format!(
            "{} is {state}: maps={} reduces={} outputs={} checkpoints={}; splits={} pauses={} kills={} moved={}+{} redone={}",
            self.tracker_name(id),
            status.running.map,
            status.running.reduce,
            status.outputs.0,
            status.checkpoints.0,
            cost.splits,
            cost.pauses,
            cost.kills,
            cost.outputs,
            cost.checkpoints,
            cost.redone
        )
    }

    fn tracker_name(&self, id: TrackerId) -> String {
        self.core.cluster().tracker(id).map_or_else(|| id.to_string(), |tracker| tracker.name.clone())
    }

    fn fact_line(&self, fact: &Fact) -> Option<String> {
        Some(match fact {
            Fact::JobTrackerStarted { epoch, .. } => format!("started epoch={epoch}"),
            Fact::IdsSkipped { epoch, job } => format!("ids-skipped epoch={epoch} job={job}"),
            Fact::TrackerJoined { name, .. } => format!("joined {name}"),
            Fact::TrackerSuspected { tracker, why } => {
                format!("suspected {} ({why})", self.tracker_name(*tracker))
            }
            Fact::TrackerRecovered { tracker } => format!("recovered {}", self.tracker_name(*tracker)),
            Fact::TrackerLost { tracker, .. } => format!("lost {}", self.tracker_name(*tracker)),
            Fact::JobSubmitted { .. }
            | Fact::JobCommitting { .. }
            | Fact::PreemptionDeadlineSet { .. }
            | Fact::RequestAnswered { .. }
            | Fact::StartRecorded { .. } => return None,
            Fact::JobEnded { job, outcome } => short_id(format!("ended {job} {outcome}")),
            Fact::JobForgotten { job } => format!("forgot {}", short_id(job)),
            Fact::AttemptLaunched { attempt, tracker, speculative, resumed_from, why } => {
                let speculative = if *speculative { " speculative" } else { "" };
                let from =
                    resumed_from.map_or_else(String::new, |paused| format!(" from={}", short_id(paused)));
                let again =
                    if attempt.number > 0 { format!(" again={}", attempt.number) } else { String::new() };
                format!(
                    "assign {} on {}{again}{speculative}{from} why={why}",
                    short_id(attempt.task),
                    self.tracker_name(*tracker)
                )
            }
            Fact::PreemptionRequested { attempt, kind, why, hold, .. } => {
                let hold = if *hold { " hold" } else { "" };
                format!("preempt-requested {} to {kind}{hold} ({why})", short_id(attempt))
            }
            Fact::MapSplit { attempt, position, .. } => format!("split {} at={position}", short_id(attempt)),
            Fact::AttemptPaused { attempt, stage, bytes, .. } => {
                format!("paused {} stage={stage:?} bytes={bytes}", short_id(attempt))
            }
            Fact::TaskReleased { task } => format!("released {}", short_id(task)),
            Fact::CheckpointLost { attempt, why } => format!("checkpoint-lost {} ({why})", short_id(attempt)),
            Fact::AttemptSucceeded { attempt, .. } => format!("succeeded {}", short_id(attempt)),
            Fact::AttemptFailed { attempt, error } => format!("failed {} ({error})", short_id(attempt)),
            Fact::AttemptKilled { attempt, why, .. } => format!("killed {} ({why})", short_id(attempt)),
            Fact::MapOutputLost { attempt, why, .. } => short_id(format!("output-lost {attempt} ({why})")),
            Fact::MapOutputMoved { attempt } => format!("moved {}", short_id(attempt)),
            Fact::MapOutputCopied { attempt, tracker, .. }
            | Fact::CheckpointCopied { attempt, tracker, .. } => {
                format!("copied {} by {}", short_id(attempt), self.tracker_name(*tracker))
            }
            Fact::PreemptionRefused { attempt, why, .. } => {
                format!("preemption-refused {} ({why})", short_id(attempt))
            }
            Fact::TrackerDraining { tracker, .. } => format!("draining {}", self.tracker_name(*tracker)),
            Fact::DrainCancelled { tracker, .. } => {
                format!("drain-cancelled {}", self.tracker_name(*tracker))
            }
            Fact::TrackerForgotten { name, why, .. } => format!("forgotten {name} ({why})"),
            Fact::TrackerBlacklisted { job, tracker } => {
                format!("blacklisted {} for {}", self.tracker_name(*tracker), short_id(job))
            }
        })
    }

    /// Returns the line of an order. Launches have none, because they are shown as facts. Map
    /// events are shown only after `show map-events`.
    fn order_line(&self, tracker: TrackerId, order: &Order) -> Option<String> {
        match order {
            Order::Launch(_) => None,
            Order::MapEvents { job, first, maps, events } => self.shows_map_events.then(|| {
                let shown = events.iter().map(|event| match event {
                    MapEvent::Available(attempt, on) => {
                        format!(" {}@{}", short_id(attempt), self.tracker_name(*on))
                    }
                    MapEvent::Withdrawn(attempt) => format!(" -{}", short_id(attempt)),
                });
                let shown: String = shown.collect();
                format!(
                    "map-events {} to {} from={first} maps={maps}{shown}",
                    short_id(job),
                    self.tracker_name(tracker)
                )
            }),
            Order::Preempt { attempt, kind: PreemptKind::Kill, .. } => {
                Some(format!("stop {} on {}", short_id(attempt), self.tracker_name(tracker)))
            }
            Order::Preempt { attempt, kind, .. } => {
                Some(format!("{kind} {} on {}", short_id(attempt), self.tracker_name(tracker)))
            }
            Order::DropCheckpoint(attempt) => {
                Some(format!("drop {} on {}", short_id(attempt), self.tracker_name(tracker)))
            }
            Order::CopyFiles { attempt, from } => Some(format!(
                "copy {} from {} on {}",
                short_id(attempt),
                self.tracker_name(*from),
                self.tracker_name(tracker)
            )),
            Order::Clean(job) => Some(format!("clean {} on {}", short_id(job), self.tracker_name(tracker))),
        }
    }
}

fn reply_line(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Submitted(_) | Reply::Registered { .. } | Reply::Accepted => None,
        Reply::Refused(why) => Some(format!("refused: {}", short_id(why))),
        Reply::JobRefused(why) => Some(format!("refused: {}", short_id(why))),
    }
}
