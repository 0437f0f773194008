//! Charts as SVG: curves, stacked areas, grouped bars. They need no script, font or other file.

use super::html::escape;
use std::fmt::Write as _;

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;

/// Colours that can be distinguished with most forms of colour blindness.
const COLOURS: [&str; 10] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31", "#7f7f7f",
    "#b2182b",
];

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
    body: String,
    x_max: f64,
    y_max: f64,
}

impl Chart {
    fn new(x_max: f64, y_max: f64, x_label: &str, y_label: &str, x_ticks: bool) -> Self {
        let (x_ticks_at, y_ticks_at) = (ticks(x_max), ticks(y_max));
        let last =
            |ticks: &[(f64, String)], most: f64| ticks.last().map_or(1.0, |(at, _)| at.max(most).max(1e-9));
        let x_end = if x_ticks { last(&x_ticks_at, x_max) } else { x_max.max(1e-9) };
        let mut chart = Self { body: String::new(), x_max: x_end, y_max: last(&y_ticks_at, y_max) };
        for (at, label) in &y_ticks_at {
            let y = chart.y(*at);
            let _ = write!(
                chart.body,
                "<line x1='{LEFT}' y1='{y:.1}' x2='{:.1}' y2='{y:.1}' stroke='#ddd'/>\
                 <text x='{:.1}' y='{:.1}' text-anchor='end'>{label}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
                y + 4.0,
            );
        }
        for (at, label) in x_ticks_at.iter().filter(|_| x_ticks) {
            let x = chart.x(*at);
            let _ = write!(
                chart.body,
                "<text x='{x:.1}' y='{:.1}' text-anchor='middle'>{label}</text>",
                HEIGHT - BOTTOM + 15.0,
            );
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        let _ = write!(
            chart.body,
            "<text x='{middle:.1}' y='{:.1}' text-anchor='middle'>{}</text>\
             <text x='12' y='{:.1}' text-anchor='middle' transform='rotate(-90 12 {:.1})'>{}</text>",
            HEIGHT - 6.0,
            escape(x_label),
            HEIGHT / 2.0,
            HEIGHT / 2.0,
            escape(y_label)
        );
        chart
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + value / self.x_max * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.y_max * (HEIGHT - TOP - BOTTOM)
    }

    fn legend(&mut self, labels: &[&str]) {
        for (at, label) in labels.iter().enumerate().take(18) {
            let y = TOP + 15.0 * at as f64;
            let _ = write!(
                self.body,
                "<rect x='{:.1}' y='{y:.1}' width='10' height='10' fill='{}'/><text x='{:.1}' y='{:.1}'>{}</text>",
                WIDTH - RIGHT + 8.0,
                colour(at),
                WIDTH - RIGHT + 22.0,
                y + 9.0,
                escape(label)
            );
        }
    }

    fn finish(self) -> String {
        format!(
            "<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' role='img' font-family='sans-serif' font-size='11'>{}</svg>",
            self.body
        )
    }
}

/// Returns a chart of the cumulative distribution of each series.
pub fn cdf(x_label: &str, series: &[(&str, Vec<f64>)]) -> String {
    let x_max = series.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let mut chart = Chart::new(x_max, 1.0, x_label, "fraction of jobs", true);
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
        let _ =
            write!(chart.body, "<path d='{path}' fill='none' stroke='{}' stroke-width='1.6'/>", colour(at));
    }
    let labels: Vec<&str> = series.iter().map(|(label, _)| *label).collect();
    chart.legend(&labels);
    chart.finish()
}

/// Returns a chart of stacked areas over time, with one value per `step_s` seconds. Areas above
/// `capacity` are cut off.
pub fn stacked(y_label: &str, step_s: f64, series: &[(&str, Vec<f64>)], capacity: f64) -> String {
    let steps = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let mut chart = Chart::new(steps as f64 * step_s, capacity, "time, s", y_label, true);
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
    let labels: Vec<&str> = series.iter().map(|(label, _)| *label).collect();
    chart.legend(&labels);
    chart.finish()
}

/// Returns a chart with one bar per group and series. Each value is a mean and half the width of
/// its confidence interval.
pub fn bars(y_label: &str, groups: &[String], series: &[(&str, Vec<(f64, f64)>)]) -> String {
    let y_max = series
        .iter()
        .flat_map(|(_, values)| values)
        .map(|(mean, half_width)| mean + half_width)
        .fold(0.0, f64::max);
    // The axis of a fraction ends at 1, even if a confidence interval exceeds it.
    let y_max = if y_label.ends_with(" fraction") { y_max.min(1.0) } else { y_max };
    let mut chart = Chart::new(groups.len() as f64, y_max, "", y_label, false);
    let width = 0.8 / series.len().max(1) as f64;
    for (at, (_, values)) in series.iter().enumerate() {
        for (group, (mean, half_width)) in values.iter().enumerate() {
            let from = group as f64 + 0.1 + width * at as f64;
            let (x, right, y) = (chart.x(from), chart.x(from + width), chart.y(*mean));
            let middle = f64::midpoint(x, right);
            let _ = write!(
                chart.body,
                "<rect x='{x:.1}' y='{y:.1}' width='{:.1}' height='{:.1}' fill='{}'/>",
                (right - x).max(0.5),
                (chart.y(0.0) - y).max(0.0),
                colour(at)
            );
            if *half_width > 0.0 {
                let (low, high) =
                    (chart.y((mean - half_width).max(0.0)), chart.y((mean + half_width).min(chart.y_max)));
                let _ = write!(
                    chart.body,
                    "<line x1='{middle:.1}' y1='{low:.1}' x2='{middle:.1}' y2='{high:.1}' stroke='#000'/>"
                );
            }
        }
    }
    for (at, group) in groups.iter().enumerate() {
        let x = chart.x(at as f64 + 0.5);
        let y = HEIGHT - BOTTOM + 13.0 + 11.0 * (at % 2) as f64;
        let _ =
            write!(chart.body, "<text x='{x:.1}' y='{y:.1}' text-anchor='middle'>{}</text>", escape(group));
    }
    let labels: Vec<&str> = series.iter().map(|(label, _)| *label).collect();
    chart.legend(&labels);
    chart.finish()
}

/// A row of [`points`]: a label, the published value, and ours with half the width of its interval.
pub type PointRow<'a> = (&'a str, Option<f64>, Option<(f64, f64)>);

/// Returns a chart with one row per label: the published value as a diamond, our mean as a dot over
/// its interval. Values may be negative.
pub fn points(x_label: &str, rows: &[PointRow<'_>]) -> String {
    const LABELS: f64 = 300.0;
    const ROW: f64 = 20.0;
    let values = rows.iter().flat_map(|(_, paper, ours)| {
        let ours = ours.map(|(mean, half_width)| [mean - half_width, mean + half_width]);
        paper.iter().copied().chain(ours.into_iter().flatten()).collect::<Vec<_>>()
    });
    let (least, most) = values
        .filter(|value| value.is_finite())
        .fold((0.0, 0.0), |(least, most): (f64, f64), value| (least.min(value), most.max(value)));
    let step = ticks(most - least)[1].0;
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let (from, to) = ((least / step).floor(), (most / step).ceil().max((least / step).floor() + 1.0));
    let height = TOP + ROW * rows.len() as f64;
    let x = |value: f64| LABELS + (value / step - from) / (to - from) * (WIDTH - LABELS - 20.0);
    let mut body = String::new();
    let mut tick = from;
    while tick <= to + 1e-9 {
        let at = x(tick * step);
        let colour = if tick == 0.0 { "#888" } else { "#ddd" };
        let _ = write!(
            body,
            "<line x1='{at:.1}' y1='{TOP}' x2='{at:.1}' y2='{height:.1}' stroke='{colour}'/>\
             <text x='{at:.1}' y='{:.1}' text-anchor='middle'>{:.digits$}</text>",
            height + 14.0,
            tick * step + 0.0
        );
        tick += 1.0;
    }
    for (at, (label, paper, ours)) in rows.iter().enumerate() {
        let y = TOP + ROW * (at as f64 + 0.5);
        let _ = write!(
            body,
            "<text x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>",
            LABELS - 8.0,
            y + 4.0,
            escape(label)
        );
        if let Some((mean, half_width)) = ours.filter(|(mean, half)| mean.is_finite() && half.is_finite()) {
            let (low, high) = (x(mean - half_width), x(mean + half_width));
            let _ = write!(
                body,
                "<line x1='{low:.1}' y1='{y:.1}' x2='{high:.1}' y2='{y:.1}' stroke='{0}' stroke-width='2'/>\
                 <circle cx='{1:.1}' cy='{y:.1}' r='3.5' fill='{0}'/>",
                colour(0),
                x(mean)
            );
        }
        if let Some(paper) = paper.filter(|paper| paper.is_finite()) {
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
        "<text x='{LABELS}' y='{key:.1}'>{} (<tspan fill='{}'>◇ paper</tspan>, <tspan fill='{}'>● ours</tspan>)</text>",
        escape(x_label),
        colour(1),
        colour(0)
    );
    format!(
        "<svg viewBox='0 0 {WIDTH} {0:.0}' width='{WIDTH}' role='img' font-family='sans-serif' font-size='11'>{body}</svg>",
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
    fn charts_are_well_formed() {
        let charts = [
            cdf("s", &[("a<b", vec![3.0, 1.0, 2.0]), ("empty", vec![])]),
            stacked("slots", 2.0, &[("a", vec![1.0, 2.0]), ("b", vec![0.5])], 4.0),
            bars("s", &["x".to_owned(), "y".to_owned()], &[("a", vec![(1.0, 0.1), (0.0, 0.0)])]),
            bars("s", &[], &[]),
            points("s", &[("a<b", Some(-0.45), Some((-0.2, 0.1))), ("x", None, Some((f64::NAN, 0.0)))]),
            points("s", &[]),
        ];
        for chart in charts {
            assert!(chart.starts_with("<svg") && chart.ends_with("</svg>"));
            assert!(!chart.contains("NaN") && !chart.contains("inf") && !chart.contains("a<b"), "{chart}");
        }
    }
}
