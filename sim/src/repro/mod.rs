//! The four papers' experiments, at their size or small enough for one machine: their figure, ours, and the difference.

mod chronos;
mod coshh;
mod fcs;
mod hsrtf;
pub mod laptop;

pub use chronos::recovery;

use crate::{
    experiment::{Comparison, ExperimentError},
    profile::Profiles,
    report::{self, Table, percent},
};
use std::fmt::Write as _;

/// A paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Paper {
    Hsrtf,
    Chronos,
    Fcs,
    Coshh,
}

impl Paper {
    /// All of them.
    pub const ALL: [Paper; 4] = [Paper::Hsrtf, Paper::Chronos, Paper::Fcs, Paper::Coshh];

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Paper::Hsrtf => "hsrtf",
            Paper::Chronos => "chronos",
            Paper::Fcs => "fcs",
            Paper::Coshh => "coshh",
        }
    }

    /// As in a title.
    fn title(self) -> &'static str {
        match self {
            Paper::Hsrtf => "hSRTF",
            Paper::Chronos => "Chronos",
            Paper::Fcs => "FCS",
            Paper::Coshh => "COSHH",
        }
    }

    /// Runs its experiments.
    pub fn reproduce(self, profiles: &Profiles, seeds: u64) -> Result<Reproduction, ExperimentError> {
        match self {
            Paper::Hsrtf => hsrtf::reproduce(profiles, seeds),
            Paper::Chronos => chronos::reproduce(profiles, seeds),
            Paper::Fcs => fcs::reproduce(profiles, seeds),
            Paper::Coshh => coshh::reproduce(seeds),
        }
    }
}

/// What came of a paper's experiments.
#[derive(Debug, Default)]
pub struct Reproduction {
    title: String,
    setting: String,
    claims: Vec<Claim>,
    parts: Vec<(String, Table, String)>,
}

/// A number that a paper gives, and ours.
#[derive(Debug, Clone, PartialEq)]
struct Claim {
    what: String,
    /// A change against another policy as a part of it, or a number with its unit.
    paper: Number,
    ours: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    /// -0.45: 45% less.
    Change(f64),
    /// A part of all.
    Part(f64),
    /// Seconds.
    Seconds(f64),
    /// Anything else.
    Plain(f64),
}

impl Number {
    fn value(self) -> f64 {
        match self {
            Number::Change(value) | Number::Part(value) | Number::Seconds(value) | Number::Plain(value) => {
                value
            }
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Number::Change(_) => format!("{:+.1}%", value * 100.0),
            Number::Part(_) => percent(value),
            Number::Seconds(_) => format!("{} s", report::svg::short(value)),
            Number::Plain(_) => report::svg::short(value),
        }
    }
}

impl Claim {
    /// Whether ours says the same: a change if it differs by no more than a third of the paper's, or three points; a part of all within 15
    /// points, other figures within a quarter.
    fn verdict(&self) -> &'static str {
        let Some(ours) = self.ours else { return "not comparable: jobs failed or did not end" };
        let paper = self.paper.value();
        match self.paper {
            Number::Change(_) if (ours - paper).abs() <= (paper.abs() / 3.0).max(0.03) => "agrees",
            Number::Part(_) if (ours - paper).abs() <= 0.15 => "agrees",
            Number::Change(_) if ours * paper > 0.0 && ours.abs() > paper.abs() => "same direction, larger",
            Number::Change(_) if ours * paper > 0.0 => "same direction, smaller",
            Number::Change(_) | Number::Part(_) => "differs",
            _ if (ours - paper).abs() <= 0.25 * paper.abs() => "agrees",
            _ => "differs in size",
        }
    }
}

impl Reproduction {
    fn new(title: &str, setting: &str) -> Self {
        Self { title: title.into(), setting: setting.into(), ..Self::default() }
    }

    fn claim(&mut self, what: impl Into<String>, paper: Number, ours: Option<f64>) {
        self.claims.push(Claim { what: what.into(), paper, ours });
    }

    fn part(&mut self, title: impl Into<String>, table: Table, charts: String) {
        self.parts.push((title.into(), table, charts));
    }

    /// The claims, as a table.
    pub fn claims(&self) -> Table {
        let mut table = Table::new(&["what", "paper", "ours", "verdict"]);
        for claim in &self.claims {
            let ours = claim.ours.map_or_else(|| "-".to_owned(), |ours| claim.paper.show(ours));
            let paper = claim.paper.show(claim.paper.value());
            table.row(vec![claim.what.clone(), paper, ours, claim.verdict().to_owned()]);
        }
        table
    }

    /// A page.
    pub fn html(&self) -> String {
        let mut body = format!("<p>{}</p>", report::svg::escape(&self.setting));
        let _ = write!(body, "<h2>The paper's figures and ours</h2>{}", self.claims().html());
        for (title, table, charts) in &self.parts {
            let _ = write!(body, "<h2>{}</h2>{}{charts}", report::svg::escape(title), table.html());
        }
        report::page(&self.title, &body)
    }

    /// The figures for a page of documentation, without charts.
    pub fn markdown(&self) -> String {
        let mut out = format!("{}\n\n{}\n", self.setting, self.claims().markdown());
        for (title, table, _) in &self.parts {
            let _ = write!(out, "\n### {title}\n{}", table.markdown());
        }
        out
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n{}\n\n{}", self.title, self.setting, self.claims().text());
        for (title, table, _) in &self.parts {
            let _ = write!(out, "\n{title}\n{}", table.text());
        }
        out
    }
}

/// The mean makespan of a group under one policy, relative to another: -0.2 is a fifth less. None if more of its jobs
/// failed or did not end under one than under the other: means of different jobs say nothing.
fn change(comparison: &Comparison, group: Option<&str>, one: &str, other: &str) -> Option<f64> {
    let (one, other) = (comparison.index(one)?, comparison.index(other)?);
    let mean = |at| comparison.mean_over(at, group, crate::experiment::makespan_s);
    let alike = comparison.undone(one, group) == comparison.undone(other, group);
    alike.then(|| -mean(one).less_than(mean(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let verdict = |paper, ours| Claim { what: String::new(), paper, ours: Some(ours) }.verdict();
        assert_eq!(verdict(Number::Change(-0.45), -0.40), "agrees");
        assert_eq!(verdict(Number::Change(-0.45), -0.80), "same direction, larger");
        assert_eq!(verdict(Number::Change(-0.45), -0.10), "same direction, smaller");
        assert_eq!(verdict(Number::Change(-0.45), 0.10), "differs");
        assert_eq!(verdict(Number::Change(-0.096), 0.005), "differs", "next to nothing is not a tenth");
        assert_eq!(verdict(Number::Change(0.002), -0.02), "agrees");
        assert_eq!(verdict(Number::Seconds(51.0), 60.0), "agrees");
        assert_eq!(verdict(Number::Seconds(51.0), 6.0), "differs in size");
    }
}
