//! Compares our result with a number of a paper.
//!
//! Our result is an interval. It agrees with the paper if the whole interval is within the
//! tolerance of the paper's number, and differs if no part of the interval is. Otherwise the seeds
//! do not suffice to decide, and the verdict is undecided. A change agrees only if it has the sign of
//! the paper's, or if its interval contains 0; for small changes the tolerance alone would not
//! require that. With one seed there is no interval; the verdict then contains `one seed`.
//!
//! Means and intervals of changes are those of the logarithms of the ratios of the seeds, as in
//! [`Change`]: an interval of relative changes would reach below -100%, which no change can.
//!
//! If the seeds are of several kinds, no verdict is about the mean, which describes none of them. The
//! claim has the median, the quartiles and the number of seeds; it agrees if both quartiles are within
//! the tolerance, and differs if no seed is.

use crate::{
    experiment::{Change, Figure},
    report::{Cell, show, show_change, svg::Bar},
};
use mrcore::metrics::stats::quantile;
use serde::Serialize;
use serde_json::{Value, json};

/// A number in a paper, and our result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Claim {
    /// The number in the paper: a relative change from another policy, or a number with its unit.
    pub(super) paper: Number,
    pub(super) ours: Option<Estimate>,
    /// Our value in each seed; `None` for a seed without one.
    pub(super) by_seed: Vec<Option<f64>>,
    /// Whether the seeds are of several kinds ([`Ours::mixed`]).
    pub(super) is_mixed: bool,
}

/// A mean over seeds and the ends of its 95% interval, which for a change is not symmetric.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) mean: f64,
    /// Equal to the mean for one seed, which has no interval.
    pub(super) low: f64,
    pub(super) high: f64,
    /// Whether some jobs had not ended. If so, the mean is a lower bound.
    pub(super) is_lower_bound: bool,
    /// Number of seeds. With none there is no value.
    pub(super) seeds: usize,
}

impl From<Figure> for Estimate {
    fn from(Figure { mean, half_width, is_lower_bound, seeds }: Figure) -> Self {
        let (half, seeds) = half_width.map_or((0.0, seeds.min(1)), |half_width| (half_width, seeds));
        Self { mean, low: mean - half, high: mean + half, is_lower_bound, seeds }
    }
}

impl Estimate {
    /// Computes the estimate of a relative change from the change in each seed. There is none if a
    /// change is to 0, which has no logarithm.
    fn of_changes(changes: &[f64]) -> Self {
        let logarithms: Vec<f64> = changes.iter().map(|change| change.ln_1p()).collect();
        let change =
            Change::of(&logarithms).filter(|_| logarithms.iter().all(|logarithm| logarithm.is_finite()));
        let none = Self::from(Figure::of(&[]));
        change.map_or(none, |change| {
            let (mean, seeds) = (change.mean, change.seeds);
            let [low, high] = change.interval().unwrap_or([mean; 2]);
            Self { mean, low, high, is_lower_bound: false, seeds }
        })
    }

    /// Returns the ends of the interval; `None` for one seed.
    pub(super) fn interval(self) -> Option<[f64; 2]> {
        (self.seeds > 1).then_some([self.low, self.high])
    }

    /// Returns whether the interval contains 0. False for one seed.
    fn is_insignificant(self) -> bool {
        self.seeds > 1 && self.low <= 0.0 && 0.0 <= self.high
    }

    /// Returns the estimate as a figure. Only for one whose interval is symmetric.
    fn figure(self) -> Figure {
        let Self { mean, high, is_lower_bound, seeds, .. } = self;
        Figure { mean, half_width: (seeds > 1).then_some(high - mean), is_lower_bound, seeds }
    }
}

/// Our result for a number of a paper: an estimate, and its value in each seed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ours {
    pub(super) estimate: Estimate,
    /// `None` for a seed without a value.
    pub(super) by_seed: Vec<Option<f64>>,
    /// Whether the seeds are of several kinds.
    pub(super) is_mixed: bool,
}

impl Ours {
    /// Computes the estimate from the values of the seeds.
    pub(super) fn of(by_seed: Vec<Option<f64>>) -> Self {
        let known: Vec<f64> = by_seed.iter().flatten().copied().collect();
        Self { estimate: Figure::of(&known).into(), by_seed, is_mixed: false }
    }

    /// Computes the estimate from the relative change in each seed.
    pub(super) fn of_changes(by_seed: Vec<Option<f64>>) -> Self {
        let known: Vec<f64> = by_seed.iter().flatten().copied().collect();
        Self { estimate: Estimate::of_changes(&known), by_seed, is_mixed: false }
    }

    /// Declares that the seeds are of several kinds, so that their mean describes none of them.
    pub(super) fn mixed(self) -> Self {
        Self { is_mixed: true, ..self }
    }

    /// Removes the estimate if a seed has no value: a mean over the other seeds would be of chosen
    /// seeds.
    pub(super) fn of_all_seeds(self) -> Self {
        let is_complete = self.by_seed.iter().all(Option::is_some);
        if is_complete { self } else { Self { estimate: Figure::of(&[]).into(), ..self } }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    /// A relative change: -0.45 is 45% less.
    Change(f64),
    /// A fraction.
    Part(f64),
    /// Seconds.
    Seconds(f64),
    /// A number without unit.
    Plain(f64),
    /// Seconds that are read from a chart, and how accurately they can be read.
    SecondsRead(f64, f64),
    /// A number without unit that is read from a chart, and how accurately it can be read.
    PlainRead(f64, f64),
    /// The least and the largest relative change that the paper gives, or a minimum effect.
    ChangeRange(f64, f64),
    /// The least and the largest fraction.
    PartRange(f64, f64),
    /// A statement without a number about a difference in seconds.
    Statement(Sign),
    /// A statement without a number about a difference of fractions.
    PartStatement(Sign),
    /// A statement without a number about a difference of numbers without unit.
    PlainStatement(Sign),
}

/// A statement of a paper about the difference between two policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    Less,
    More,
    NotLess,
}

impl Sign {
    /// Returns whether our difference has this sign; `None` if the seeds do not decide it.
    fn holds(self, ours: Estimate) -> Option<bool> {
        if ours.is_insignificant() && ours.mean != 0.0 {
            return None;
        }
        Some(match self {
            Sign::Less => ours.mean < 0.0,
            Sign::More => ours.mean > 0.0,
            Sign::NotLess => ours.mean >= 0.0,
        })
    }

    fn text(self) -> &'static str {
        match self {
            Sign::Less => "less",
            Sign::More => "more",
            Sign::NotLess => "not less",
        }
    }
}

impl Number {
    /// Returns the value; not a number for a statement or a range.
    pub(super) fn value(self) -> f64 {
        match self {
            Number::Change(value)
            | Number::Part(value)
            | Number::Seconds(value)
            | Number::Plain(value)
            | Number::SecondsRead(value, _)
            | Number::PlainRead(value, _) => value,
            _ => f64::NAN,
        }
    }

    fn sign(self) -> Option<Sign> {
        match self {
            Number::Statement(sign) | Number::PartStatement(sign) | Number::PlainStatement(sign) => {
                Some(sign)
            }
            _ => None,
        }
    }

    /// Returns the least and the largest value that the paper states, for a chart: they are equal for
    /// a single number.
    pub(super) fn range(self) -> (f64, f64) {
        match (self, self.sign()) {
            (_, Some(Sign::Less)) => (f64::NEG_INFINITY, 0.0),
            (_, Some(Sign::More | Sign::NotLess)) => (0.0, f64::INFINITY),
            (Number::ChangeRange(low, high) | Number::PartRange(low, high), _) => (low, high),
            _ => (self.value(), self.value()),
        }
    }

    /// Returns the smallest and the largest value that agrees; `None` for a statement. The tolerance
    /// is a third of a change, but at least 3 percentage points; 15 points for a fraction; a quarter
    /// for other numbers. A range has none. A quarter of 0 would be no tolerance: such a number needs
    /// the accuracy with which it was read.
    fn limits(self) -> Option<(f64, f64)> {
        let tolerance = match self {
            Number::Change(value) => (value.abs() / 3.0).max(0.03),
            Number::Part(_) => 0.15,
            Number::Seconds(value) | Number::Plain(value) => {
                debug_assert!(value != 0.0, "0 has no tolerance");
                0.25 * value.abs()
            }
            Number::SecondsRead(_, accuracy) | Number::PlainRead(_, accuracy) => accuracy,
            Number::ChangeRange(low, high) | Number::PartRange(low, high) => return Some((low, high)),
            Number::Statement(_) | Number::PartStatement(_) | Number::PlainStatement(_) => return None,
        };
        Some((self.value() - tolerance, self.value() + tolerance))
    }

    /// Returns the text of what the paper states.
    pub(super) fn published(self) -> String {
        let show = |value: f64| self.show(value);
        match self {
            Number::Statement(sign) | Number::PartStatement(sign) | Number::PlainStatement(sign) => {
                sign.text().into()
            }
            Number::ChangeRange(low, high) | Number::PartRange(low, high) => {
                if low.is_infinite() {
                    format!("{} or less", show(high))
                } else if high.is_infinite() {
                    format!("{} or more", show(low))
                } else {
                    format!("{} to {}", show(low), show(high))
                }
            }
            Number::SecondsRead(value, accuracy) | Number::PlainRead(value, accuracy) => {
                format!("{} (read within {})", show(value), show(accuracy))
            }
            number => show(number.value()),
        }
    }

    /// Returns what the paper states for `--json`: a number, two for a range, or a word.
    pub(super) fn json(self) -> Value {
        match self {
            Number::Statement(sign) | Number::PartStatement(sign) | Number::PlainStatement(sign) => {
                json!(sign.text())
            }
            // JSON has no infinity: null.
            Number::ChangeRange(low, high) | Number::PartRange(low, high) => json!([low, high]),
            number => json!(number.value()),
        }
    }

    pub(super) fn kind(self) -> &'static str {
        match self {
            Number::Change(_) => "change",
            Number::Part(_) => "part",
            Number::Seconds(_) => "seconds",
            Number::Plain(_) => "plain",
            Number::SecondsRead(..) => "seconds-read",
            Number::PlainRead(..) => "plain-read",
            Number::ChangeRange(..) => "change-range",
            Number::PartRange(..) => "part-range",
            Number::Statement(_) => "statement",
            Number::PartStatement(_) => "part-statement",
            Number::PlainStatement(_) => "plain-statement",
        }
    }

    /// Returns the unit for the axis of a chart.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Number::Change(_) | Number::ChangeRange(..) => "relative change",
            Number::Part(_) | Number::PartRange(..) => "fraction",
            Number::Seconds(_) | Number::SecondsRead(..) => "seconds",
            Number::Plain(_) | Number::PlainRead(..) => "value",
            Number::Statement(_) => "difference, seconds",
            Number::PartStatement(_) => "difference of fractions",
            Number::PlainStatement(_) => "difference",
        }
    }

    /// Returns our estimate as a cell.
    fn cell(self, ours: Estimate) -> Cell {
        if let Number::Change(_) | Number::ChangeRange(..) = self {
            return Cell::change(ours.mean, ours.interval());
        }
        let figure = ours.figure();
        let text = match self {
            Number::Part(_) | Number::PartRange(..) => show_change(figure).trim_start_matches('+').to_owned(),
            Number::Seconds(_) | Number::SecondsRead(..) => format!("{} s", show(figure)),
            Number::Plain(_) | Number::PlainRead(..) => show(figure),
            Number::Statement(_) => format!("{}{} s", plus(ours.mean), show(figure)),
            Number::PlainStatement(_) => format!("{}{}", plus(ours.mean), show(figure)),
            Number::Change(_) | Number::ChangeRange(..) | Number::PartStatement(_) => show_change(figure),
        };
        Cell::Figure(figure, text)
    }

    /// Returns the text of a value without an interval.
    fn show(self, value: f64) -> String {
        self.cell(Figure::of(&[value]).into()).text().to_owned()
    }
}

/// Returns the sign that is shown before a difference.
fn plus(mean: f64) -> &'static str {
    if mean > 0.0 { "+" } else { "" }
}

impl Claim {
    pub(super) fn new(paper: Number, ours: Option<Ours>) -> Self {
        let is_mixed = ours.as_ref().is_some_and(|ours| ours.is_mixed);
        let (ours, by_seed) = ours.map_or_else(Default::default, |ours| (Some(ours.estimate), ours.by_seed));
        Self { paper, ours, by_seed, is_mixed }
    }

    /// Returns our result as a cell.
    pub(super) fn cell(&self) -> Cell {
        if let Some([low, median, high]) = self.quartiles() {
            let show = |value: f64| self.paper.show(value);
            let seeds = crate::count(self.known().count(), "seed");
            let text = format!("{} ({} to {}; {seeds})", show(median), show(low), show(high));
            return Cell::Number(Some(median), text);
        }
        self.ours().map_or_else(|| "-".into(), |ours| self.paper.cell(ours))
    }

    /// Returns whether our whole interval is within the tolerance.
    pub(super) fn agrees(&self) -> bool {
        self.verdict().starts_with("agrees")
    }

    /// Returns the values of the seeds that have one.
    fn known(&self) -> impl Iterator<Item = f64> {
        self.by_seed.iter().flatten().copied()
    }

    /// Returns the quartiles and the median over seeds if these are of several kinds.
    fn quartiles(&self) -> Option<[f64; 3]> {
        let known: Vec<f64> = self.known().collect();
        let is_shown = self.is_mixed && !known.is_empty();
        is_shown.then(|| [0.25, 0.5, 0.75].map(|part| quantile(&known, part)))
    }

    /// Returns our value for a chart, and its interval. It is the median, without an interval, if the
    /// seeds are of several kinds.
    pub(super) fn point(&self) -> Option<Bar> {
        let median = self.quartiles().map(|[_, median, _]| (median, 0.0).into());
        let estimate = |ours: Estimate| Bar { value: ours.mean, low: ours.low, high: ours.high };
        median.or_else(|| self.ours().map(estimate))
    }

    /// Returns our estimate if it has a value.
    pub(super) fn ours(&self) -> Option<Estimate> {
        self.ours.filter(|ours| ours.seeds > 0)
    }

    /// Returns our value minus that of the paper, in its unit; `None` if our seeds are of several kinds.
    fn difference(&self) -> Option<f64> {
        self.ours()
            .filter(|_| !self.is_mixed)
            .map(|ours| ours.mean - self.paper.value())
            .filter(|difference| difference.is_finite())
    }

    /// Returns the difference relative to the number of the paper; `None` if that is 0.
    pub(super) fn relative(&self) -> Option<f64> {
        let paper = self.paper.value();
        self.difference().filter(|_| paper != 0.0).map(|difference| difference / paper.abs())
    }

    /// Returns our result and its verdict for `--json`.
    pub(super) fn json(&self) -> Value {
        json!({
            "estimate": self.ours(),
            "quartiles": self.quartiles(),
            "by_seed": self.by_seed.iter().map(|value| value.map(short_number)).collect::<Vec<_>>(),
            "difference": self.difference(),
            "relative": self.relative(),
            "verdict": self.verdict(),
        })
    }

    /// Returns the verdict as text.
    pub(super) fn verdict(&self) -> String {
        let Some(ours) = self.ours else { return "not comparable: jobs failed or did not end".into() };
        if ours.is_lower_bound {
            return "not comparable: a run was stopped before all jobs had ended".into();
        }
        let Some(ours) = self.ours() else { return self.verdict_without_figure() };
        if let (Some(quartiles), Some(limits)) = (self.quartiles(), self.paper.limits()) {
            return self.verdict_of_seeds(quartiles, limits);
        }
        let word = match (self.paper, self.paper.limits()) {
            (Number::Statement(sign) | Number::PartStatement(sign) | Number::PlainStatement(sign), _) => {
                match sign.holds(ours) {
                    None => "undecided: no difference beyond the noise",
                    Some(true) => "agrees",
                    Some(false) if ours.mean == 0.0 => "differs: no difference",
                    Some(false) => "differs: opposite",
                }
            }
            (_, Some((low, high))) => {
                let (from, to) = (ours.low, ours.high);
                if low <= from && to <= high && self.has_sign(ours) {
                    "agrees"
                } else if from <= high && low <= to && self.has_sign(ours) {
                    self.undecided(ours)
                } else {
                    self.differs(ours)
                }
            }
            (_, None) => "nothing to compare",
        };
        if ours.seeds < 2 { format!("{word} (one seed)") } else { word.to_owned() }
    }

    /// Returns the verdict if there is no figure although all jobs ended.
    fn verdict_without_figure(&self) -> String {
        let (known, all) = (self.known().count(), self.by_seed.len());
        if known == 0 {
            return "nothing to compare: no run has this value".into();
        }
        let zeros = all - self.known().filter(|change| *change > -1.0).count();
        format!("not comparable: a change from or to 0 in {zeros} of {}", crate::count(all, "seed"))
    }

    /// Returns the verdict if the seeds are of several kinds.
    fn verdict_of_seeds(&self, [low, _, high]: [f64; 3], (from, to): (f64, f64)) -> String {
        let is_near = |value: f64| (from..=to).contains(&value);
        let (near, all) = (self.known().filter(|value| is_near(*value)).count(), self.known().count());
        let of = crate::count(all, "seed");
        if is_near(low) && is_near(high) {
            format!("agrees: {near} of {of} within the tolerance")
        } else if near == 0 {
            format!("differs: none of {of} within the tolerance")
        } else {
            format!("no verdict: {near} of {of} within the tolerance")
        }
    }

    /// Returns whether our change may have the sign of the paper's: it has it, or our interval
    /// contains 0. True for a change of 0 and for other numbers.
    fn has_sign(&self, ours: Estimate) -> bool {
        match self.paper {
            Number::Change(paper) if paper != 0.0 => ours.mean * paper > 0.0 || ours.is_insignificant(),
            _ => true,
        }
    }

    /// Returns the sign of the paper's change: that of the limit that is nearer to 0; 0 for other
    /// numbers.
    fn paper_change(&self) -> f64 {
        match self.paper {
            Number::Change(paper) => paper,
            Number::ChangeRange(low, high) if low.abs() < high.abs() => low,
            Number::ChangeRange(_, high) => high,
            _ => 0.0,
        }
    }

    /// Returns the verdict if only a part of the interval is within the tolerance.
    fn undecided(&self, ours: Estimate) -> &'static str {
        match self.paper {
            Number::Change(0.0) if ours.is_insignificant() => {
                "undecided: no change beyond the noise, but the noise is larger than the tolerance"
            }
            Number::Change(0.0) => "undecided: a change, but the interval includes negligible ones",
            Number::Change(_) | Number::ChangeRange(..) if ours.is_insignificant() => {
                "undecided: consistent with the paper's change and with no change"
            }
            _ if ours.mean * self.paper_change() > 0.0 => "same direction; size undecided",
            _ => "undecided: within the noise",
        }
    }

    /// Returns the verdict if the whole interval is outside the tolerance.
    fn differs(&self, ours: Estimate) -> &'static str {
        let paper = self.paper_change();
        match self.paper {
            Number::Change(_) | Number::ChangeRange(..) if ours.is_insignificant() => {
                "differs: no change beyond the noise"
            }
            _ if ours.mean * paper > 0.0 && ours.mean.abs() > paper.abs() => "same direction, larger",
            _ if ours.mean * paper > 0.0 => "same direction, smaller",
            Number::Seconds(_) | Number::Plain(_) | Number::SecondsRead(..) | Number::PlainRead(..) => {
                "differs in size"
            }
            _ => "differs",
        }
    }
}

/// Rounds a value to five significant digits, which suffice to compute a figure again.
fn short_number(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(mean: f64, half_width: f64, is_lower_bound: bool, seeds: usize) -> Estimate {
        Figure { mean, half_width: (seeds > 1).then_some(half_width), is_lower_bound, seeds }.into()
    }

    fn verdict(paper: Number, mean: f64, half_width: f64, seeds: usize) -> String {
        let ours = Some(estimate(mean, half_width, false, seeds));
        Claim { paper, ours, by_seed: Vec::new(), is_mixed: false }.verdict()
    }

    #[test]
    fn significant_differences_are_reported() {
        let sure = |paper, ours| verdict(paper, ours, 0.001, 5);
        assert_eq!(sure(Number::Change(-0.45), -0.40), "agrees");
        assert_eq!(sure(Number::Change(-0.45), -0.80), "same direction, larger");
        assert_eq!(sure(Number::Change(-0.45), -0.10), "same direction, smaller");
        assert_eq!(sure(Number::Change(-0.45), 0.10), "differs");
        assert_eq!(
            sure(Number::Change(-0.096), 0.005),
            "differs",
            "a change of half a percent is not one of a tenth"
        );
        assert_eq!(sure(Number::Change(0.002), 0.02), "agrees");
        assert_eq!(sure(Number::Change(0.002), -0.02), "differs", "a change of the other sign");
        assert_eq!(verdict(Number::Change(-0.02), 0.004, 0.005, 5), "agrees", "or none");
        assert_eq!(sure(Number::Change(0.0), -0.02), "agrees");
        assert_eq!(sure(Number::Seconds(51.0), 60.0), "agrees");
        assert_eq!(sure(Number::Seconds(51.0), 6.0), "differs in size");
        assert_eq!(sure(Number::Part(0.05), 0.9), "differs");
    }

    #[test]
    fn statements_hold_if_the_interval_is_on_their_side_of_zero() {
        let of = |sign, mean| verdict(Number::Statement(sign), mean, 1.0, 5);
        assert_eq!(
            (of(Sign::Less, -2.0), of(Sign::Less, 2.0)),
            ("agrees".into(), "differs: opposite".into())
        );
        assert_eq!(
            (of(Sign::More, 2.0), of(Sign::More, -2.0)),
            ("agrees".into(), "differs: opposite".into())
        );
        assert_eq!(of(Sign::Less, -0.5), "undecided: no difference beyond the noise");
        assert_eq!(verdict(Number::Statement(Sign::Less), 0.0, 0.0, 5), "differs: no difference");
        assert_eq!(
            (of(Sign::NotLess, 2.0), of(Sign::NotLess, -2.0)),
            ("agrees".into(), "differs: opposite".into())
        );
        assert_eq!(of(Sign::NotLess, -0.5), "undecided: no difference beyond the noise");
        assert_eq!(verdict(Number::Statement(Sign::NotLess), 0.0, 0.0, 5), "agrees");
        let ours = Some(estimate(12.0, 1.0, false, 5));
        let claim =
            Claim { paper: Number::Statement(Sign::Less), ours, by_seed: Vec::new(), is_mixed: false };
        assert_eq!((claim.cell().text(), claim.paper.published()), ("+12.0 ±1.00 s", "less".into()));
        assert_eq!((claim.relative(), claim.paper.json()), (None, json!("less")));
    }

    #[test]
    fn range_agrees_if_the_whole_interval_is_in_it() {
        let range = Number::ChangeRange(-0.14, -0.02);
        let of = |mean| verdict(range, mean, 0.01, 5);
        assert_eq!((of(-0.12), of(-0.04)), ("agrees".into(), "agrees".into()));
        assert_eq!(of(-0.025), "same direction; size undecided");
        assert_eq!(of(-0.005), "differs: no change beyond the noise");
        assert_eq!(verdict(range, -0.01, 0.005, 5), "same direction, smaller");
        assert_eq!((of(-0.20), of(0.10)), ("same direction, larger".into(), "differs".into()));
        assert_eq!(
            verdict(range, -0.01, 0.02, 5),
            "undecided: consistent with the paper's change and with no change"
        );
        assert_eq!((range.published(), range.json()), ("-14.0% to -2.0%".into(), json!([-0.14, -0.02])));
        // A minimum effect: "huge" is at least a tenth.
        let huge = Number::ChangeRange(f64::NEG_INFINITY, -0.1);
        assert_eq!((huge.published(), huge.json()), ("-10.0% or less".into(), json!([null, -0.1])));
        assert_eq!(verdict(huge, -0.008, 0.001, 5), "same direction, smaller");
        assert_eq!(verdict(huge, -0.3, 0.01, 5), "agrees");
        let parts = Number::PartRange(0.05, 0.15);
        assert_eq!(
            (parts.published(), verdict(parts, 0.058, 0.026, 5)),
            ("5.0% to 15.0%".into(), "undecided: within the noise".into())
        );
        assert_eq!(
            (verdict(parts, 0.1, 0.026, 5), verdict(parts, 0.3, 0.026, 5)),
            ("agrees".into(), "differs".into())
        );
        let more = Number::PartStatement(Sign::More);
        assert_eq!((verdict(more, 0.5, 0.1, 5), more.show(0.5)), ("agrees".into(), "+50.0%".into()));
    }

    #[test]
    fn lower_bound_is_not_compared() {
        let of = |is_lower_bound| {
            let ours = Some(estimate(100.0, 1.0, is_lower_bound, 5));
            Claim { paper: Number::Seconds(100.0), ours, by_seed: Vec::new(), is_mixed: false }.verdict()
        };
        assert_eq!(of(false), "agrees");
        assert!(of(true).starts_with("not comparable: a run was stopped"), "{}", of(true));
    }

    #[test]
    fn json_contains_all_numbers_of_a_claim() {
        let ours = Some(estimate(-0.5, 0.25, false, 3));
        let claim = Claim {
            paper: Number::Change(-0.25),
            ours,
            by_seed: vec![Some(-0.333_333_3), None],
            is_mixed: false,
        }
        .json();
        assert_eq!((Number::Change(-0.25).kind(), Number::Change(-0.25).json()), ("change", json!(-0.25)));
        assert_eq!(
            claim["estimate"],
            json!({ "mean": -0.5, "low": -0.75, "high": -0.25, "is_lower_bound": false, "seeds": 3 })
        );
        assert_eq!((&claim["difference"], &claim["relative"]), (&json!(-0.25), &json!(-1.0)));
        assert_eq!(claim["verdict"], "same direction; size undecided");
        assert_eq!(claim["by_seed"], json!([-0.33333, null]));
        let none =
            Claim { paper: Number::Seconds(0.0), ours: None, by_seed: Vec::new(), is_mixed: false }.json();
        assert_eq!(
            (&none["estimate"], &none["difference"], &none["relative"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
    }

    #[test]
    fn statements_and_ranges_have_a_range_in_charts() {
        assert_eq!(Number::Change(-0.2).range(), (-0.2, -0.2));
        assert_eq!(Number::ChangeRange(-0.14, -0.02).range(), (-0.14, -0.02));
        assert_eq!(Number::PlainStatement(Sign::Less).range(), (f64::NEG_INFINITY, 0.0));
        assert_eq!(Number::PartStatement(Sign::NotLess).range(), (0.0, f64::INFINITY));
        let lower = Number::PlainStatement(Sign::Less);
        assert_eq!((verdict(lower, -2.0, 1.0, 5), lower.unit()), ("agrees".into(), "difference"));
    }

    /// A bar that cannot be seen on an axis of thousands of seconds.
    #[test]
    fn zero_that_is_read_from_a_chart_has_the_accuracy_of_the_chart() {
        let read = Number::SecondsRead(0.0, 50.0);
        assert_eq!(verdict(read, 4.39, 2.95, 3), "agrees");
        assert_eq!(verdict(read, 145.0, 485.0, 3), "undecided: within the noise");
        assert_eq!(verdict(read, 145.0, 4.0, 3), "differs in size");
        assert_eq!((read.published(), read.unit()), ("0 s (read within 50.0 s)".into(), "seconds"));
        assert_eq!(verdict(Number::PlainRead(0.0, 0.1), 0.02, 0.01, 3), "agrees");
    }

    #[test]
    fn no_change_in_the_paper_has_words_of_its_own() {
        let of = |mean, half_width| verdict(Number::Change(0.0), mean, half_width, 3);
        assert_eq!(of(0.01, 0.01), "agrees");
        assert_eq!(
            of(0.01, 0.05),
            "undecided: no change beyond the noise, but the noise is larger than the tolerance"
        );
        assert_eq!(of(0.04, 0.02), "undecided: a change, but the interval includes negligible ones");
        assert_eq!(of(0.08, 0.02), "differs");
    }

    /// In most seeds the lost tasks find a slot, in some they wait for minutes: the mean is neither.
    #[test]
    fn seeds_of_two_kinds_get_no_verdict_on_their_mean() {
        let claim = |paper, values: &[f64]| {
            let by_seed = values.iter().copied().map(Some).chain([None]).collect();
            let Ours { estimate, by_seed, is_mixed } = Ours::of(by_seed).mixed();
            Claim { paper, ours: Some(estimate), by_seed, is_mixed }
        };
        let wait = claim(Number::Seconds(325.0), &[2.0, 4.0, 5.0, 8.0, 300.0]);
        assert_eq!(wait.verdict(), "no verdict: 1 of 5 seeds within the tolerance");
        assert_eq!(wait.cell().text(), "5.00 s (4.00 s to 8.00 s; 5 seeds)");
        assert_eq!((wait.point(), wait.relative()), (Some((5.0, 0.0).into()), None));
        assert_eq!(wait.json()["quartiles"], json!([4.0, 5.0, 8.0]));
        let short = claim(Number::Seconds(325.0), &[2.0, 4.0]);
        assert_eq!(
            (short.verdict().as_str(), short.agrees()),
            ("differs: none of 2 seeds within the tolerance", false)
        );
        let near = claim(Number::Change(-0.55), &[-0.5, -0.52, -0.49]);
        assert_eq!(
            (near.verdict().as_str(), near.agrees()),
            ("agrees: 3 of 3 seeds within the tolerance", true)
        );
    }

    #[test]
    fn change_from_0_is_not_a_failed_job() {
        let claim = |changes: &[Option<f64>]| {
            let ours = Ours::of_changes(changes.to_vec()).of_all_seeds();
            Claim::new(Number::Change(-0.97), Some(ours))
        };
        let some = claim(&[Some(-0.9), None, Some(-1.0)]);
        assert_eq!(some.verdict(), "not comparable: a change from or to 0 in 2 of 3 seeds");
        assert_eq!(
            claim(&[Some(-0.9), Some(-1.0)]).verdict(),
            "not comparable: a change from or to 0 in 1 of 2 seeds"
        );
        assert_eq!(
            (some.cell().text(), some.agrees(), some.json()["estimate"].is_null()),
            ("-", false, true)
        );
        assert_eq!(some.json()["by_seed"], json!([-0.9, null, -1.0]));
        assert_eq!(claim(&[None, None]).verdict(), "nothing to compare: no run has this value");
        assert!(claim(&[Some(-0.97), Some(-0.98)]).agrees());
    }

    /// Symmetric intervals of such changes would contain a change below -100%, or an increase by half
    /// with a decrease by three times.
    #[test]
    fn intervals_of_changes_are_of_ratios() {
        let of = |changes: &[f64]| Ours::of_changes(changes.iter().copied().map(Some).collect()).estimate;
        let less = of(&[-0.9, -0.95, -0.2]);
        assert!(-1.0 < less.low && less.low < less.mean && less.mean < less.high, "{less:?}");
        // Twice as slow in one seed and twice as fast in another is no change.
        let none = of(&[1.0, -0.5]);
        assert!(none.mean.abs() < 1e-9 && none.is_insignificant(), "{none:?}");
        let more = of(&[0.07, 0.29, 1.07, 1.08, 7.14]);
        let (below, above) = (more.mean - more.low, more.high - more.mean);
        assert!(more.low > -0.2 && above > 2.0 * below, "the arithmetic mean is 193.0% ±365.9: {more:?}");
        assert_eq!(of(&[0.5]), Estimate { mean: of(&[0.5]).mean, ..Figure::of(&[of(&[0.5]).mean]).into() });
        let claim = Claim::new(Number::Change(-0.9), Some(Ours::of_changes(vec![Some(-0.9); 3])));
        assert_eq!((claim.cell().text(), claim.agrees()), ("-90.0% (-90.0 to -90.0)", true));
    }

    #[test]
    fn insignificant_differences_are_undecided() {
        // -40% ± 20 points is the interval from -20% to -60%; the tolerance is from -30% to -60%.
        assert_eq!(verdict(Number::Change(-0.45), -0.40, 0.20, 3), "same direction; size undecided");
        assert_eq!(
            verdict(Number::Change(-0.45), -0.20, 0.40, 3),
            "undecided: consistent with the paper's change and with no change"
        );
        assert_eq!(verdict(Number::Change(-0.45), -0.05, 0.10, 3), "differs: no change beyond the noise");
        assert_eq!(verdict(Number::Seconds(51.0), 60.0, 10.0, 3), "undecided: within the noise");
        assert_eq!(verdict(Number::Change(-0.45), -0.40, 0.0, 1), "agrees (one seed)");
        let none = Claim { paper: Number::Change(0.1), ours: None, by_seed: Vec::new(), is_mixed: false };
        assert!(none.verdict().starts_with("not comparable"));
        let empty = Claim { paper: Number::Seconds(1.5), ours: Some(Figure::of(&[]).into()), ..none };
        assert!(empty.verdict().starts_with("nothing to compare"), "a missing wait is not a short wait");
        assert_eq!((empty.ours(), empty.relative()), (None, None));
    }
}
