//! What was done to a cluster, when that was noticed, and when all was well again: a timeline and its figures.

use crate::output;
use anyhow::Result;
use serde::Serialize;
use std::time::Instant;

/// A line of the timeline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    pub(crate) at_s: f64,
    /// done, undone, seen, whole
    pub(crate) what: &'static str,
    pub(crate) text: String,
}

/// Something that was done.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Impact {
    /// The line of the scenario.
    pub(crate) line: usize,
    pub(crate) verb: &'static str,
    /// Whom it was done to.
    pub(crate) node: String,
    /// When.
    pub(crate) at_s: f64,
    /// How long until a master said so; none: nobody noticed.
    pub(crate) detected_s: Option<f64>,
    /// How long until it was given up for lost.
    pub(crate) lost_s: Option<f64>,
    /// When it was undone.
    pub(crate) healed_s: Option<f64>,
    /// How long until all was well again.
    pub(crate) recovered_s: Option<f64>,
    /// It is looked for by the damage that is found, and not by the node's standing.
    #[serde(skip)]
    pub(crate) hidden: bool,
    /// It is done with when all is well, whether somebody noticed or not.
    #[serde(skip)]
    pub(crate) undoing: bool,
}

/// The timeline and the figures.
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

    /// Seconds since the beginning.
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

    /// A master has said something, of this node if of any.
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

    /// Whether anything is still to be noticed before its end can be.
    pub(crate) fn undetected(&self) -> Option<&Impact> {
        let open = |impact: &&Impact| impact.detected_s.is_none() && impact.recovered_s.is_none();
        self.steps.iter().find(|impact| open(impact) && impact.healed_s.is_none() && !impact.undoing)
    }

    /// All is well: everything that was done up to now is got over.
    pub(crate) fn recovered(&mut self) -> Result<()> {
        let now = self.now_s();
        let mut any = false;
        for impact in self.steps.iter_mut().filter(|impact| impact.recovered_s.is_none()) {
            impact.recovered_s = Some(now - impact.at_s);
            any = true;
        }
        if any { self.note("recovered", "recovered".into()) } else { Ok(()) }
    }

    /// A line for each thing that was done.
    pub(crate) fn print(&self) -> Result<()> {
        let mut table = output::table(
            &[
                "line",
                "what",
                "node",
                "at s",
                "noticed after s",
                "lost after s",
                "undone at s",
                "whole after s",
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
