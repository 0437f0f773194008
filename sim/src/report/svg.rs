//! Charts as SVG: curves, stacked areas, grouped bars. They need no script, font or other file.

use super::html::escape;
use std::{collections::BTreeSet, fmt::Write as _};

/// Sizes of a chart, in the units of its coordinates.
#[derive(Debug)]
pub struct Layout {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    font: f64,
    line: f64,
    /// How long one unit is: `px`, or `pt` in print.
    unit: &'static str,
    /// Number of labels in a row of the legend above the chart; 0 for a legend on the right.
    legend_columns: usize,
    /// Whether curves also have different dashes, for print without colours.
    dashes: bool,
}

/// A chart in a page.
pub const SCREEN: Layout = Layout {
    width: 620.0,
    height: 300.0,
    left: 58.0,
    right: 150.0,
    top: 14.0,
    bottom: 46.0,
    font: 11.0,
    line: 1.6,
    unit: "px",
    legend_columns: 0,
    dashes: false,
};

/// A chart for a column of a two-column paper: 240 points (3.33 inches) wide, text of 8 points.
pub const COLUMN: Layout = Layout {
    width: 240.0,
    height: 150.0,
    left: 38.0,
    right: 8.0,
    top: 6.0,
    bottom: 32.0,
    font: 8.0,
    line: 1.1,
    unit: "pt",
    legend_columns: 2,
    dashes: true,
};

impl Layout {
    /// Returns whether this is a chart in a page.
    pub(super) fn is_screen(&self) -> bool {
        self.unit == SCREEN.unit
    }
}

/// Dashes of curves in print.
const DASHES: [&str; 5] = ["", "5 2", "2 1.5", "6 2 1.5 2", "1 2"];

/// Colours that can be distinguished with most forms of colour blindness.
const COLOURS: [&str; 10] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31", "#7f7f7f",
    "#b2182b",
];

/// Most labels in a legend.
const LEGEND_MAX: usize = 18;

/// Space between the label of the y axis and the ends of the chart.
const MARGIN: f64 = 2.0;

/// Mean width of a letter, in sizes of the font.
const LETTER: f64 = 0.5;

/// Cuts a text to a number of characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Returns the colour of a series.
pub fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

/// Formats a number with few digits: `12k`, `345`, `67.8`, `0.12`.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.2}"),
    }
}

/// Returns the ticks of an axis, with their labels: round numbers from 0 to the first that is not
/// below `most`.
pub fn ticks(most: f64) -> Vec<(f64, String)> {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| most / step <= 5.0 + 1e-9).unwrap_or(steps[3]);
    let count = (most / step - 1e-9).ceil() as u32;
    // Labels have as many decimals as the step.
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let label = |value: f64| {
        if step >= 1000.0 { format!("{:.0}k", value / 1000.0) } else { format!("{value:.digits$}") }
    };
    (0..=count).map(|at| f64::from(at) * step).map(|at| (at, label(at))).collect()
}

struct Chart {
    layout: &'static Layout,
    body: String,
    /// Height of the legend above the chart.
    legend_height: f64,
    x_max: f64,
    y_max: f64,
}

/// The axes of a chart.
struct Axes<'a> {
    x_max: f64,
    y_max: f64,
    x_label: &'a str,
    y_label: &'a str,
    x_ticks: bool,
}

impl Chart {
    fn new(layout: &'static Layout, axes: &Axes<'_>, labels: &[&str]) -> Self {
        let (x_ticks_at, y_ticks_at) = (ticks(axes.x_max), ticks(axes.y_max));
        let last =
            |ticks: &[(f64, String)], most: f64| ticks.last().map_or(1.0, |(at, _)| at.max(most).max(1e-9));
        let x_max = if axes.x_ticks { last(&x_ticks_at, axes.x_max) } else { axes.x_max.max(1e-9) };
        let y_max = last(&y_ticks_at, axes.y_max);
        let shown = labels.len().min(LEGEND_MAX);
        let rows = shown
            .checked_div(layout.legend_columns)
            .map_or(0, |full| full + usize::from(!shown.is_multiple_of(layout.legend_columns)));
        let legend_height = rows as f64 * layout.font * 1.3;
        let mut chart = Self { layout, body: String::new(), legend_height, x_max, y_max };
        let Layout { width, height, left, right, bottom, font, .. } = *layout;
        for (at, label) in &y_ticks_at {
            let y = chart.y(*at);
            let _ = write!(
                chart.body,
                "<line x1='{left}' y1='{y:.1}' x2='{:.1}' y2='{y:.1}' stroke='#ddd'/>\
                 <text x='{:.1}' y='{:.1}' text-anchor='end'>{label}</text>",
                width - right,
                left - 5.0,
                y + font * 0.36,
            );
        }
        for (at, label) in x_ticks_at.iter().filter(|_| axes.x_ticks) {
            let x = chart.x(*at);
            let _ = write!(
                chart.body,
                "<text x='{x:.1}' y='{:.1}' text-anchor='middle'>{label}</text>",
                height - bottom + font * 1.36,
            );
        }
        let middle = f64::midpoint(left, width - right);
        // A label of the y axis that is longer than the axis moves, or is cut, to stay in the chart.
        let y_label = cut(axes.y_label, ((height - 2.0 * MARGIN) / (font * LETTER)) as usize);
        let beside = MARGIN + y_label.chars().count() as f64 * font * LETTER / 2.0;
        let centre = f64::midpoint(chart.y(0.0), chart.y(chart.y_max));
        let centre = centre.min(height - beside).max(beside);
        let _ = write!(
            chart.body,
            "<text x='{middle:.1}' y='{:.1}' text-anchor='middle'>{}</text>\
             <text x='{font}' y='{centre:.1}' text-anchor='middle' transform='rotate(-90 {font} {centre:.1})'>{}</text>",
            height - 6.0,
            escape(axes.x_label),
            escape(&y_label)
        );
        chart.legend(labels, layout.dashes && axes.x_ticks);
        chart
    }

    fn x(&self, value: f64) -> f64 {
        let Layout { width, left, right, .. } = *self.layout;
        left + value / self.x_max * (width - left - right)
    }

    fn y(&self, value: f64) -> f64 {
        let Layout { height, top, bottom, .. } = *self.layout;
        height - bottom - value / self.y_max * (height - top - self.legend_height - bottom)
    }

    /// Returns the attributes of the curve of a series.
    fn stroke(&self, at: usize) -> String {
        let dash = DASHES[at % DASHES.len()];
        let dash = if self.layout.dashes && !dash.is_empty() {
            format!(" stroke-dasharray='{dash}'")
        } else {
            String::new()
        };
        format!("stroke='{}' stroke-width='{}'{dash}", colour(at), self.layout.line)
    }

    /// Shows what each series looks like: a line with its dashes, or a box.
    fn legend(&mut self, labels: &[&str], as_lines: bool) {
        let Layout { width, left, right, top, font, legend_columns, .. } = *self.layout;
        let size = (font - 1.0).min(10.0);
        for (at, label) in labels.iter().enumerate().take(LEGEND_MAX) {
            let (x, y) = match (at.checked_div(legend_columns), at.checked_rem(legend_columns)) {
                (Some(row), Some(column)) => {
                    let step = (width - left - right) / legend_columns as f64;
                    (left + step * column as f64, top + font * 1.3 * row as f64)
                }
                _ => (width - right + 8.0, top + 15.0 * at as f64),
            };
            let mark = if as_lines {
                let middle = y + font * 0.45;
                let stroke = self.stroke(at);
                format!("<line x1='{x:.1}' y1='{middle:.1}' x2='{:.1}' y2='{middle:.1}' {stroke}/>", x + 14.0)
            } else {
                format!("<rect x='{x:.1}' y='{y:.1}' width='{size}' height='{size}' fill='{}'/>", colour(at))
            };
            let _ = write!(
                self.body,
                "{mark}<text x='{:.1}' y='{:.1}'>{}</text>",
                x + if as_lines { 18.0 } else { size + 4.0 },
                y + font * 0.82,
                escape(label)
            );
        }
    }

    fn finish(self) -> String {
        let Layout { width, height, font, unit, .. } = *self.layout;
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}{unit}' height='{height}{unit}' role='img' font-family='Helvetica, Arial, sans-serif' font-size='{font}'>{}</svg>",
            self.body
        )
    }
}

/// Returns a chart as a file of its own, with a description of how it was made.
pub fn file(chart: &str, made_by: &str) -> String {
    let (opening, rest) = chart.split_once('>').unwrap_or((chart, ""));
    format!("<?xml version='1.0' encoding='UTF-8'?>\n{opening}><desc>{}</desc>{rest}\n", escape(made_by))
}

/// Returns the labels of series.
fn labels<'a, T>(series: &[(&'a str, T)]) -> Vec<&'a str> {
    series.iter().map(|(label, _)| *label).collect()
}

/// Returns a chart of the cumulative distribution of each series.
pub fn cdf(layout: &'static Layout, x_label: &str, series: &[(&str, Vec<f64>)]) -> String {
    let x_max = series.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let axes = Axes { x_max, y_max: 1.0, x_label, y_label: "fraction of jobs", x_ticks: true };
    let mut chart = Chart::new(layout, &axes, &labels(series));
    for (at, (_, values)) in series.iter().enumerate() {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        // A few hundred points are enough for a smooth curve.
        let step = (sorted.len() / 300).max(1);
        let mut path = format!("M{:.1},{:.1}", chart.x(0.0), chart.y(0.0));
        for (rank, value) in sorted.iter().enumerate() {
            if rank % step == 0 || rank + 1 == sorted.len() {
                let part = (rank + 1) as f64 / sorted.len() as f64;
                let _ = write!(path, "H{:.1}V{:.1}", chart.x(*value), chart.y(part));
            }
        }
        let _ = write!(path, "H{:.1}", chart.x(x_max));
        let stroke = chart.stroke(at);
        let _ = write!(chart.body, "<path d='{path}' fill='none' {stroke}/>");
    }
    chart.finish()
}

/// Returns a chart of stacked areas over time, with one value per `step_s` seconds. Areas above
/// `capacity` are cut off. Each time in `faults_s` has a dashed line.
pub fn stacked(
    layout: &'static Layout,
    y_label: &str,
    (step_s, series): (f64, &[(&str, Vec<f64>)]),
    capacity: f64,
    faults_s: &[f64],
) -> String {
    let steps = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let x_max = steps as f64 * step_s;
    let x_label = if faults_s.is_empty() { "time, s" } else { "time, s (dashed lines: faults)" };
    let axes = Axes { x_max, y_max: capacity, x_label, y_label, x_ticks: true };
    let mut chart = Chart::new(layout, &axes, &labels(series));
    let mut below = vec![0.0; steps];
    for (at, (_, values)) in series.iter().enumerate() {
        let above: Vec<f64> =
            below.iter().enumerate().map(|(step, below)| below + values.get(step).unwrap_or(&0.0)).collect();
        let mut path = String::new();
        for (step, value) in above.iter().enumerate() {
            let (x, y) = (chart.x(step as f64 * step_s), chart.y(value.min(capacity)));
            let _ = write!(path, "{}{x:.1},{y:.1}", if step == 0 { 'M' } else { 'L' });
        }
        for (step, value) in below.iter().enumerate().rev() {
            let _ = write!(path, "L{:.1},{:.1}", chart.x(step as f64 * step_s), chart.y(value.min(capacity)));
        }
        let _ = write!(chart.body, "<path d='{path}Z' fill='{}' fill-opacity='0.75'/>", colour(at));
        below = above;
    }
    let marks: BTreeSet<String> = faults_s
        .iter()
        .filter(|at_s| **at_s <= chart.x_max)
        .map(|at_s| format!("{:.1}", chart.x(*at_s)))
        .collect();
    let (top, bottom) = (chart.y(chart.y_max), chart.y(0.0));
    for x in marks {
        let _ = write!(
            chart.body,
            "<line x1='{x}' y1='{top:.1}' x2='{x}' y2='{bottom:.1}' stroke='#000' stroke-dasharray='3 2'/>"
        );
    }
    chart.finish()
}

/// The value of a bar, and its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// A mean and half the width of its interval.
impl From<(f64, f64)> for Bar {
    fn from((mean, half_width): (f64, f64)) -> Self {
        Self { value: mean, low: mean - half_width, high: mean + half_width }
    }
}

/// Returns a chart with one bar per group and series. There is no bar for a value that is not a
/// number.
pub fn bars<B: Into<Bar> + Copy>(
    layout: &'static Layout,
    y_label: &str,
    groups: &[String],
    series: &[(&str, Vec<B>)],
) -> String {
    let y_max = series
        .iter()
        .flat_map(|(_, values)| values)
        .map(|bar| Into::<Bar>::into(*bar).high)
        .fold(0.0, f64::max);
    // The axis of a fraction ends at 1, even if a confidence interval exceeds it.
    let y_max = if y_label.ends_with(" fraction") { y_max.min(1.0) } else { y_max };
    let axes = Axes { x_max: groups.len() as f64, y_max, x_label: "", y_label, x_ticks: false };
    let mut chart = Chart::new(layout, &axes, &labels(series));
    let width = 0.8 / series.len().max(1) as f64;
    for (at, (_, values)) in series.iter().enumerate() {
        let is_known = |bar: &Bar| [bar.value, bar.low, bar.high].into_iter().all(f64::is_finite);
        let values = values.iter().map(|bar| Into::<Bar>::into(*bar)).enumerate();
        for (group, bar) in values.filter(|(_, bar)| is_known(bar)) {
            let from = group as f64 + 0.1 + width * at as f64;
            let (x, right, y) = (chart.x(from), chart.x(from + width), chart.y(bar.value));
            let middle = f64::midpoint(x, right);
            let _ = write!(
                chart.body,
                "<rect x='{x:.1}' y='{y:.1}' width='{:.1}' height='{:.1}' fill='{}'/>",
                (right - x).max(0.5),
                (chart.y(0.0) - y).max(0.0),
                colour(at)
            );
            if bar.high > bar.low {
                let (low, high) = (chart.y(bar.low.max(0.0)), chart.y(bar.high.min(chart.y_max)));
                let _ = write!(
                    chart.body,
                    "<line x1='{middle:.1}' y1='{low:.1}' x2='{middle:.1}' y2='{high:.1}' stroke='#000'/>"
                );
            }
        }
    }
    let widest = groups.iter().map(|group| group.chars().count()).max().unwrap_or(0) as f64;
    // Labels that would overlap are in two rows.
    let rows = if widest * layout.font * 0.6 > chart.x(1.0) - chart.x(0.0) { 2 } else { 1 };
    for (at, group) in groups.iter().enumerate() {
        let x = chart.x(at as f64 + 0.5);
        let y = layout.height - layout.bottom + layout.font * (1.2 + (at % rows) as f64);
        let _ =
            write!(chart.body, "<text x='{x:.1}' y='{y:.1}' text-anchor='middle'>{}</text>", escape(group));
    }
    chart.finish()
}

/// A row of [`points`]: a label, the least and the largest published value, and ours with its
/// interval.
pub type PointRow<'a> = (&'a str, Option<(f64, f64)>, Option<Bar>);

/// Returns a chart with one row per label: the published value as a diamond, or the published range
/// as a bar, and our mean as a dot over its interval. Values may be negative. A range that is infinite
/// ends where the chart ends.
pub fn points(x_label: &str, rows: &[PointRow<'_>]) -> String {
    const LABELS: f64 = 300.0;
    const ROW: f64 = 20.0;
    let (width, top) = (SCREEN.width, SCREEN.top);
    let values = rows.iter().flat_map(|(_, paper, ours)| {
        let ours = ours.map(|ours| [ours.low, ours.high]);
        let paper = paper.map(|(low, high)| [low, high]);
        paper.into_iter().chain(ours).flatten().collect::<Vec<_>>()
    });
    let (least, most) = values
        .filter(|value| value.is_finite())
        .fold((0.0, 0.0), |(least, most): (f64, f64), value| (least.min(value), most.max(value)));
    let step = ticks(most - least)[1].0;
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let (from, to) = ((least / step).floor(), (most / step).ceil().max((least / step).floor() + 1.0));
    let height = top + ROW * rows.len() as f64;
    let x = |value: f64| LABELS + (value / step - from) / (to - from) * (width - LABELS - 20.0);
    let mut body = String::new();
    let mut tick = from;
    while tick <= to + 1e-9 {
        let at = x(tick * step);
        let colour = if tick == 0.0 { "#888" } else { "#ddd" };
        let _ = write!(
            body,
            "<line x1='{at:.1}' y1='{top}' x2='{at:.1}' y2='{height:.1}' stroke='{colour}'/>\
             <text x='{at:.1}' y='{:.1}' text-anchor='middle'>{:.digits$}</text>",
            height + 14.0,
            tick * step + 0.0
        );
        tick += 1.0;
    }
    for (at, (label, paper, ours)) in rows.iter().enumerate() {
        let y = top + ROW * (at as f64 + 0.5);
        let _ = write!(
            body,
            "<text x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>",
            LABELS - 8.0,
            y + 4.0,
            escape(label)
        );
        let range = paper.filter(|(low, high)| low < high);
        if let Some((low, high)) = range {
            let (left, right) = (x(low.max(from * step)), x(high.min(to * step)));
            let _ = write!(
                body,
                "<rect x='{left:.1}' y='{:.1}' width='{:.1}' height='10' fill='{}' fill-opacity='0.3'/>",
                y - 5.0,
                right - left,
                colour(1)
            );
        }
        if let Some(Bar { value, low, high }) =
            ours.filter(|ours| [ours.value, ours.low, ours.high].iter().all(|end| end.is_finite()))
        {
            let (low, high) = (x(low), x(high));
            let _ = write!(
                body,
                "<line x1='{low:.1}' y1='{y:.1}' x2='{high:.1}' y2='{y:.1}' stroke='{0}' stroke-width='2'/>\
                 <circle cx='{1:.1}' cy='{y:.1}' r='3.5' fill='{0}'/>",
                colour(0),
                x(value)
            );
        }
        if let Some((paper, _)) = paper.filter(|(low, high)| low.total_cmp(high).is_eq() && low.is_finite()) {
            let (x, left, right) = (x(paper), x(paper) - 5.0, x(paper) + 5.0);
            let (above, below) = (y - 5.0, y + 5.0);
            let _ = write!(
                body,
                "<path d='M{left:.1},{y:.1}L{x:.1},{above:.1}L{right:.1},{y:.1}L{x:.1},{below:.1}Z' fill='none' \
                 stroke='{}' stroke-width='2'/>",
                colour(1)
            );
        }
    }
    let key = height + 32.0;
    let _ = write!(
        body,
        "<text x='{LABELS}' y='{key:.1}'>{} (<tspan fill='{}'>◇ paper, or a bar for a range</tspan>, <tspan fill='{}'>● ours</tspan>)</text>",
        escape(x_label),
        colour(1),
        colour(0)
    );
    format!(
        "<svg viewBox='0 0 {width} {0:.0}' width='{width}' role='img' font-family='sans-serif' font-size='11'>{body}</svg>",
        key + 8.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_differ() {
        let labels =
            |most: f64| ticks(most).into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(" ");
        assert_eq!(labels(374.0), "0 100 200 300 400");
        assert_eq!(labels(1.0), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(labels(0.0021), "0.0000 0.0005 0.0010 0.0015 0.0020 0.0025");
        assert_eq!(labels(12_000.0), "0k 5k 10k 15k");
        assert_eq!(labels(0.0), labels(1.0));
    }

    #[test]
    fn faults_are_lines_and_labels_of_bars_have_two_rows_only_if_they_would_overlap() {
        let areas =
            |faults_s: &[f64]| stacked(&SCREEN, "slots", (2.0, &[("a", vec![1.0; 5])]), 4.0, faults_s);
        let lines = |chart: &str| chart.matches("stroke-dasharray='3 2'").count();
        assert_eq!(lines(&areas(&[])), 0);
        let marked = areas(&[4.0, 4.0, 99.0]);
        assert!(
            lines(&marked) == 1 && marked.contains("(dashed lines: faults)"),
            "not after the end: {marked}"
        );
        let rows = |groups: [&str; 2]| {
            let groups = groups.map(str::to_owned);
            let chart = bars(&COLUMN, "s", &groups, &[("x", vec![(1.0, 0.0); 2])]);
            let y = |group: &String| {
                let (before, _) =
                    chart.split_once(&format!(" text-anchor='middle'>{group}<")).expect("a label");
                before.rsplit("y=").next().expect("a place").to_owned()
            };
            groups.iter().map(y).collect::<BTreeSet<_>>().len()
        };
        assert_eq!(
            (rows(["small", "large"]), rows(["fcs-reduce-heavy, long", "fcs-map-heavy, long"])),
            (1, 2)
        );
    }

    #[test]
    fn label_of_the_y_axis_stays_in_the_chart() {
        let series: Vec<(&str, Vec<(f64, f64)>)> = vec![("policy", vec![(1.0, 0.0)]); 12];
        let centre_of = |label: &str, shown: &str| {
            let chart = bars(&COLUMN, label, &["gridmix".to_owned()], &series);
            let (before, _) = chart.split_once(&format!(")'>{shown}</text>")).expect(shown);
            before.rsplit(' ').next().and_then(|at| at.parse::<f64>().ok()).expect("the centre of the label")
        };
        // The legend leaves the axis 50 of 150 points, from 68 to 118.
        assert!((90.0..96.0).contains(&centre_of("s", "s")));
        let long = "completion / fcs[literal=true]";
        assert!(centre_of(long, long) <= COLUMN.height - MARGIN - 30.0 * 8.0 * LETTER / 2.0);
        let middle = centre_of(&"policy".repeat(20), &format!("{}polic…", "policy".repeat(5)));
        assert!((middle - COLUMN.height / 2.0).abs() < 3.0, "{middle}");
    }

    #[test]
    fn charts_are_well_formed() {
        for layout in [&SCREEN, &COLUMN] {
            let charts = [
                cdf(layout, "s", &[("a<b", vec![3.0, 1.0, 2.0]), ("empty", vec![])]),
                stacked(layout, "slots", (2.0, &[("a", vec![1.0, 2.0]), ("b", vec![0.5])]), 4.0, &[3.0, 9.0]),
                bars(layout, "s", &["x".to_owned(), "y".to_owned()], &[("a", vec![(1.0, 0.1), (0.0, 0.0)])]),
                bars::<Bar>(layout, "s", &[], &[]),
                points(
                    "s",
                    &[
                        ("a<b", Some((-0.45, -0.45)), Some((-0.2, 0.1).into())),
                        ("x", None, Some((f64::NAN, 0.0).into())),
                    ],
                ),
                points("s", &[("less", Some((f64::NEG_INFINITY, 0.0)), Some((-0.2, 0.1).into()))]),
                bars(layout, "s", &["x".to_owned()], &[("a", vec![(f64::NAN, 0.0)])]),
                points("s", &[]),
            ];
            for chart in charts {
                assert!(chart.starts_with("<svg") && chart.ends_with("</svg>"));
                assert!(
                    !chart.contains("NaN") && !chart.contains("inf") && !chart.contains("a<b"),
                    "{chart}"
                );
            }
        }
    }

    #[test]
    fn published_ranges_are_bars_and_published_values_diamonds() {
        let of = |paper| points("s", &[("a", Some(paper), Some((-0.2, 0.1).into()))]);
        let marks = |chart: &str| (chart.matches("<rect").count(), chart.matches("<path").count());
        assert_eq!(marks(&of((-0.3, -0.3))), (0, 1));
        assert_eq!(marks(&of((-0.14, -0.02))), (1, 0));
        let less = of((f64::NEG_INFINITY, 0.0));
        assert_eq!(marks(&less), (1, 0));
        assert!(less.contains("<rect x='300.0'"), "the bar begins where the chart begins: {less}");
    }

    #[test]
    fn chart_of_a_paper_is_a_file_with_its_size_and_provenance() {
        let series = [("a", vec![1.0]), ("b", vec![2.0]), ("c", vec![3.0])];
        let chart = file(&cdf(&COLUMN, "s", &series), "mrctl lab compare --policies 'a<b'");
        assert!(chart.starts_with("<?xml version='1.0' encoding='UTF-8'?>\n<svg xmlns="), "{chart}");
        assert!(chart.contains("width='240pt'") && chart.contains("font-size='8'"), "{chart}");
        assert!(chart.contains("<desc>mrctl lab compare --policies &#39;a&lt;b&#39;</desc>"), "{chart}");
        // The curves differ without colours, and the legend has two rows above the plot.
        assert_eq!(chart.matches("stroke-dasharray='5 2'").count(), 2, "{chart}");
        assert!(chart.contains("<text x='56.0' y='12.6'>a</text>"), "{chart}");
        assert!(chart.contains("<text x='56.0' y='23.0'>c</text>"), "{chart}");
    }
}
