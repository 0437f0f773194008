//! The log of a chaos run: the injected faults, when they were detected, and when the cluster had
//! recovered.

use anyhow::Result;
use serde::Serialize;
use std::time::Instant;
use view::output;

/// An entry of the timeline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TimelineEntry {
    pub(crate) at_s: f64,
    /// The kind of entry: `done`, `undone`, `seen` or `recovered`.
    pub(crate) what: &'static str,
    pub(crate) text: String,
}

/// An injected fault and its effect.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Impact {
    pub(crate) line: usize,
    pub(crate) verb: &'static str,
    /// The affected node.
    pub(crate) node: String,
    /// The time of the injection, in seconds since the start of the run.
    pub(crate) at_s: f64,
    /// Seconds from the injection until a master reported the fault; None if no master did.
    pub(crate) detected_s: Option<f64>,
    /// Seconds from the injection until the node was reported lost.
    pub(crate) lost_s: Option<f64>,
    /// The time when the fault was undone, in seconds since the start of the run.
    pub(crate) healed_s: Option<f64>,
    /// Seconds from the injection until the cluster had recovered.
    pub(crate) recovered_s: Option<f64>,
    /// Whether the fault shows only as damaged replicas, and not in the state of the node.
    #[serde(skip)]
    pub(crate) shows_only_as_damage: bool,
    /// Whether the run need not wait until a master reports this fault: it undoes another fault, or
    /// no master notices it.
    #[serde(skip)]
    pub(crate) needs_no_detection: bool,
}

/// The timeline of a run, and its faults.
#[derive(Debug, Serialize)]
pub(crate) struct FaultLog {
    #[serde(skip)]
    began: Instant,
    #[serde(skip)]
    quiet: bool,
    pub(crate) timeline: Vec<TimelineEntry>,
    pub(crate) steps: Vec<Impact>,
}

impl FaultLog {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { began: Instant::now(), quiet, timeline: Vec::new(), steps: Vec::new() }
    }

    /// Returns the seconds since the start of the run.
    pub(crate) fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    pub(crate) fn note(&mut self, what: &'static str, text: String) -> Result<()> {
        let at_s = self.now_s();
        if !self.quiet {
            let indent = if what == "seen" { "  " } else { "" };
            output::line(format!("{at_s:7.1} s  {indent}{text}"))?;
        }
        self.timeline.push(TimelineEntry { at_s, what, text });
        Ok(())
    }

    /// Records that a master has reported `text`, about this node if any.
    pub(crate) fn record_detection(&mut self, node: Option<&str>, text: &str) {
        let now = self.now_s();
        let lost = text.contains("tracker lost") || text.contains("datanode dead");
        let unhealthy = !text.contains("live") && !text.contains("again");
        for impact in self.steps.iter_mut().filter(|impact| impact.recovered_s.is_none()) {
            let own = node == Some(impact.node.as_str());
            let meant =
                if impact.shows_only_as_damage { own || text.contains("damaged") } else { own && unhealthy };
            if meant {
                impact.detected_s.get_or_insert(now - impact.at_s);
            }
            if own && lost {
                impact.lost_s.get_or_insert(now - impact.at_s);
            }
        }
    }

    /// Returns a fault that no master has reported yet, although the run must wait for that.
    pub(crate) fn undetected(&self) -> Option<&Impact> {
        let open = |impact: &&Impact| impact.detected_s.is_none() && impact.recovered_s.is_none();
        self.steps
            .iter()
            .find(|impact| open(impact) && impact.healed_s.is_none() && !impact.needs_no_detection)
    }

    /// Marks all faults as recovered that are not marked yet.
    pub(crate) fn mark_recovered(&mut self) -> Result<()> {
        let now = self.now_s();
        let mut any = false;
        for impact in self.steps.iter_mut().filter(|impact| impact.recovered_s.is_none()) {
            impact.recovered_s = Some(now - impact.at_s);
            any = true;
        }
        if any { self.note("recovered", "recovered".into()) } else { Ok(()) }
    }

    /// Prints one line per fault.
    pub(crate) fn print(&self) -> Result<()> {
        let mut table = output::table(
            &[
                "line",
                "fault",
                "node",
                "at s",
                "detected after s",
                "lost after s",
                "undone at s",
                "recovered after s",
            ],
            &[3, 4, 5, 6, 7],
        );
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        for impact in &self.steps {
            table.add_row(vec![
                impact.line.to_string(),
                impact.verb.to_owned(),
                impact.node.clone(),
                format!("{:.1}", impact.at_s),
                shown(impact.detected_s),
                shown(impact.lost_s),
                shown(impact.healed_s),
                shown(impact.recovered_s),
            ]);
        }
        output::line("")?;
        output::print_table(&table)
    }
}
