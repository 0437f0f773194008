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
pub(crate) struct Wound {
    /// The line of the scenario.
    pub(crate) line: usize,
    pub(crate) verb: &'static str,
    /// Whom it was done to.
    pub(crate) node: String,
    /// When.
    pub(crate) at_s: f64,
    /// How long until a master said so; none: nobody noticed.
    pub(crate) noticed_s: Option<f64>,
    /// How long until it was given up for lost.
    pub(crate) given_up_s: Option<f64>,
    /// When it was undone.
    pub(crate) undone_s: Option<f64>,
    /// How long until all was well again.
    pub(crate) whole_s: Option<f64>,
    /// It is looked for by the damage that is found, and not by the node's standing.
    #[serde(skip)]
    pub(crate) hidden: bool,
    /// It is done with when all is well, whether somebody noticed or not.
    #[serde(skip)]
    pub(crate) undoing: bool,
}

/// The timeline and the figures.
#[derive(Debug, Serialize)]
pub(crate) struct Ledger {
    #[serde(skip)]
    began: Instant,
    #[serde(skip)]
    quiet: bool,
    pub(crate) timeline: Vec<Entry>,
    pub(crate) steps: Vec<Wound>,
}

impl Ledger {
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
    pub(crate) fn noticed(&mut self, node: Option<&str>, text: &str) {
        let now = self.now_s();
        let lost = text.contains("tracker lost") || text.contains("datanode dead");
        let ill = !text.contains("live") && !text.contains("again");
        for wound in self.steps.iter_mut().filter(|wound| wound.whole_s.is_none()) {
            let own = node == Some(wound.node.as_str());
            let meant = if wound.hidden { own || text.contains("damaged") } else { own && ill };
            if meant {
                wound.noticed_s.get_or_insert(now - wound.at_s);
            }
            if own && lost {
                wound.given_up_s.get_or_insert(now - wound.at_s);
            }
        }
    }

    /// Whether anything is still to be noticed before its end can be.
    pub(crate) fn unnoticed(&self) -> Option<&Wound> {
        let open = |wound: &&Wound| wound.noticed_s.is_none() && wound.whole_s.is_none();
        self.steps.iter().find(|wound| open(wound) && wound.undone_s.is_none() && !wound.undoing)
    }

    /// All is well: everything that was done up to now is got over.
    pub(crate) fn whole(&mut self) -> Result<()> {
        let now = self.now_s();
        let mut any = false;
        for wound in self.steps.iter_mut().filter(|wound| wound.whole_s.is_none()) {
            wound.whole_s = Some(now - wound.at_s);
            any = true;
        }
        if any { self.note("whole", "whole again".into()) } else { Ok(()) }
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
                "given up after s",
                "undone at s",
                "whole after s",
            ],
            &[3, 4, 5, 6, 7],
        );
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        for wound in &self.steps {
            table.add_row(vec![
                wound.line.to_string(),
                wound.verb.to_owned(),
                wound.node.clone(),
                format!("{:.1}", wound.at_s),
                shown(wound.noticed_s),
                shown(wound.given_up_s),
                shown(wound.undone_s),
                shown(wound.whole_s),
            ]);
        }
        output::line("")?;
        output::print_table(&table)
    }
}
