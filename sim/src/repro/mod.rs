//! The experiments of the four papers, at their original size or scaled to one machine. A
//! reproduction contains the figures of the paper, ours, and the difference.

mod chronos;
mod coshh;
mod fcs;
mod hsrtf;
pub mod laptop;
mod verdict;

pub use chronos::recovery;

use crate::{
    experiment::{Comparison, Experiment, ExperimentError, Figure, Step},
    profile::Profiles,
    report::{self, Table},
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use verdict::{Claim, Number};

/// A paper about a scheduler, whose experiments can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paper {
    Hsrtf,
    Chronos,
    Fcs,
    Coshh,
}

impl Paper {
    /// All papers.
    pub const ALL: [Paper; 4] = [Paper::Hsrtf, Paper::Chronos, Paper::Fcs, Paper::Coshh];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Paper::Hsrtf => "hsrtf",
            Paper::Chronos => "chronos",
            Paper::Fcs => "fcs",
            Paper::Coshh => "coshh",
        }
    }

    /// Returns the name in titles.
    fn title(self) -> &'static str {
        match self {
            Paper::Hsrtf => "hSRTF",
            Paper::Chronos => "Chronos",
            Paper::Fcs => "FCS",
            Paper::Coshh => "COSHH",
        }
    }

    /// Runs the experiments of the paper in the simulator.
    pub fn reproduce(self, lab: &Lab<'_>) -> Result<Reproduction, ExperimentError> {
        match self {
            Paper::Hsrtf => hsrtf::reproduce(lab),
            Paper::Chronos => chronos::reproduce(lab),
            Paper::Fcs => fcs::reproduce(lab),
            Paper::Coshh => coshh::reproduce(lab),
        }
    }
}

/// Options of all experiments.
#[derive(Clone, Copy)]
pub struct Lab<'a> {
    /// Profiles of the programs.
    pub profiles: &'a Profiles,
    /// Number of seeds.
    pub seeds: u64,
    /// Called after every run with the title of its experiment.
    pub watch: &'a (dyn Fn(&str, Step<'_>) + Sync),
}

impl Lab<'_> {
    /// Runs an experiment, and reports its progress.
    fn run(&self, title: &str, experiment: &Experiment<'_>) -> Result<Comparison, ExperimentError> {
        experiment.run_watched(&|step| (self.watch)(title, step))
    }
}

/// Results of the experiments of a paper.
#[derive(Debug, Default)]
pub struct Reproduction {
    title: String,
    /// How the experiments were set up, in a few sentences.
    setup_description: String,
    claims: Vec<Claim>,
    /// Title, table and charts (SVG) of each section.
    parts: Vec<(String, Table, String)>,
}

impl Reproduction {
    fn new(title: &str, setup_description: &str) -> Self {
        Self { title: title.into(), setup_description: setup_description.into(), ..Self::default() }
    }

    fn claim(&mut self, what: impl Into<String>, paper: Number, ours: Option<Figure>) {
        self.claims.push(Claim { what: what.into(), paper, ours });
    }

    fn part(&mut self, title: impl Into<String>, table: Table, charts: String) {
        self.parts.push((title.into(), table, charts));
    }

    /// Returns a table that compares the claims of the paper with our results.
    pub fn claims(&self) -> Table {
        let mut table = Table::new(&["what", "paper", "ours", "relative difference", "verdict"]);
        for claim in &self.claims {
            let none = || "-".to_owned();
            let ours = claim.ours().map_or_else(none, |ours| claim.paper.show(ours));
            let paper = claim.paper.show(Figure::of(&[claim.paper.value()]));
            let off =
                claim.relative().map_or_else(none, |off| format!("{:+.0}%", (100.0 * off).round() + 0.0));
            let verdict = claim.verdict().into();
            table.row(vec![claim.what.as_str().into(), paper.into(), ours.into(), off.into(), verdict]);
        }
        table
    }

    /// Returns every claim and every table for `--json`.
    pub fn json(&self) -> Value {
        let table =
            |(title, table, _): &(String, Table, String)| json!({ "title": title, "rows": table.json() });
        json!({
            "title": self.title,
            "setting": self.setup_description,
            "claims": self.claims.iter().map(Claim::json).collect::<Vec<_>>(),
            "tables": self.parts.iter().map(table).collect::<Vec<_>>(),
        })
    }

    /// Returns an HTML page.
    pub fn html(&self) -> String {
        let mut body = format!("<p>{}</p>", report::html::escape(&self.setup_description));
        let _ = write!(body, "<h2>The paper's figures and ours</h2>{}", self.claims().html());
        for (title, table, charts) in &self.parts {
            let _ = write!(body, "<h2>{}</h2>{}{charts}", report::html::escape(title), table.html());
        }
        report::page(&self.title, &body)
    }

    /// Returns Markdown for a page of documentation, without charts.
    pub fn markdown(&self) -> String {
        let mut out = format!("{}\n\n{}\n", self.setup_description, self.claims().markdown());
        for (title, table, _) in &self.parts {
            let _ = write!(out, "\n### {title}\n{}", table.markdown());
        }
        out
    }

    /// Returns text for a terminal.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n{}\n\n{}", self.title, self.setup_description, self.claims().text());
        for (title, table, _) in &self.parts {
            let _ = write!(out, "\n{title}\n{}", table.text());
        }
        out
    }
}

/// Returns the relative change of the mean completion of a group from policy `other` to policy
/// `one`: -0.2 means a fifth less.
fn change(comparison: &Comparison, group: Option<&str>, one: &str, other: &str) -> Option<Figure> {
    let (one, other) = (comparison.index(one)?, comparison.index(other)?);
    // The claims of the papers are about all jobs.
    comparison.change(group, one, other).filter(|_| comparison.left_out(group, one, other) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_output_format_contains_the_relative_difference() {
        let mut out = Reproduction::new("A paper", "its setup");
        let ours = Figure { mean: -0.22, half_width: 0.03, is_lower_bound: false, seeds: 5 };
        out.claim("small jobs", Number::Change(-0.44), Some(ours));
        out.claim("no failure", Number::Change(0.0), Some(ours));
        out.claim("a wait", Number::Seconds(51.0), Some(Figure::of(&[])));
        let table = out.claims();
        let column: Vec<&str> = table.rows.iter().map(|row| row[3].text()).collect();
        assert_eq!((table.head[3].as_str(), column), ("relative difference", vec!["+50%", "-", "-"]));
        assert!(out.text().contains("+50%") && out.html().contains("<td>+50%</td>"));
        assert!(
            out.markdown().contains("| small jobs | -44.0% | -22.0% ±3.0 | +50% |"),
            "{}",
            out.markdown()
        );
        assert_eq!(out.json()["claims"][0]["relative"], 0.5);
    }
}
