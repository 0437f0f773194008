//! The log of a chaos run: the injected faults, when they were detected, and when the cluster had
//! recovered.

use anyhow::Result;
use serde::Serialize;
use std::time::Instant;
use view::output;

/// An entry of the timeline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    pub(crate) at_s: f64,
    /// `done`, `undone`, `seen` or `recovered`.
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
    /// The time of the injection.
    pub(crate) at_s: f64,
    /// How long until a master reported it; None if no master did.
    pub(crate) detected_s: Option<f64>,
    /// How long until the node was reported lost.
    pub(crate) lost_s: Option<f64>,
    /// The time when the fault was undone.
    pub(crate) healed_s: Option<f64>,
    /// How long until the cluster had recovered.
    pub(crate) recovered_s: Option<f64>,
    /// Whether the fault shows only as damaged replicas, and not in the state of the node.
    #[serde(skip)]
    pub(crate) hidden: bool,
    /// Whether the entry ends when the cluster has recovered, without waiting for a detection.
    #[serde(skip)]
    pub(crate) undoing: bool,
}

/// The timeline and the faults.
#[derive(Debug, Serialize)]
pub(crate) struct FaultLog {
    #[serde(skip)]
    began: Instant,
    #[serde(skip)]
    quiet: bool,
    pub(crate) timeline: Vec<Entry>,
    pub(crate) steps: Vec<Impact>,
}

impl FaultLog {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { began: Instant::now(), quiet, timeline: Vec::new(), steps: Vec::new() }
    }

    /// Seconds since the start.
    pub(crate) fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    pub(crate) fn note(&mut self, what: &'static str, text: String) -> Result<()> {
        let at_s = self.now_s();
        if !self.quiet {
            let indent = if what == "seen" { "  " } else { "" };
            output::line(format!("{at_s:7.1} s  {indent}{text}"))?;
        }
        self.timeline.push(Entry { at_s, what, text });
        Ok(())
    }

    /// Records a report of a master, about this node if any.
    pub(crate) fn detected(&mut self, node: Option<&str>, text: &str) {
        let now = self.now_s();
        let lost = text.contains("tracker lost") || text.contains("datanode dead");
        let unhealthy = !text.contains("live") && !text.contains("again");
        for impact in self.steps.iter_mut().filter(|impact| impact.recovered_s.is_none()) {
            let own = node == Some(impact.node.as_str());
            let meant = if impact.hidden { own || text.contains("damaged") } else { own && unhealthy };
            if meant {
                impact.detected_s.get_or_insert(now - impact.at_s);
            }
            if own && lost {
                impact.lost_s.get_or_insert(now - impact.at_s);
            }
        }
    }

    /// A fault that must be detected before the run can continue.
    pub(crate) fn undetected(&self) -> Option<&Impact> {
        let open = |impact: &&Impact| impact.detected_s.is_none() && impact.recovered_s.is_none();
        self.steps.iter().find(|impact| open(impact) && impact.healed_s.is_none() && !impact.undoing)
    }

    /// Marks all open faults as recovered.
    pub(crate) fn recovered(&mut self) -> Result<()> {
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
