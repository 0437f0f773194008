//! Draws a chart of the attempts of a job over time, by node, with pauses of reduces and splits of
//! maps.
//!
//! Each node has as many lines as it ran attempts at the same time. A resumed reduce keeps its line
//! if the line is free. The chart shows at most [`ATTEMPTS_MAX`] attempts, the longest ones. If their
//! nodes need more than [`LINES_MAX`] lines, the last nodes in the order of their names are omitted;
//! the first node is always shown. Omitted attempts are only counted. Colours are defined in the
//! style sheet.

use client::model::{Attempt, Task};
use sim::{
    html,
    report::{html::Html, svg::ticks},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};
use view::nodes::natural_sort_key;

/// The largest number of attempts in the chart.
pub(super) const ATTEMPTS_MAX: usize = 2000;
/// The largest number of lines, over all nodes but the first. Space between nodes counts too.
const LINES_MAX: usize = 400;

/// The width of the chart. This and all sizes below are in SVG units.
const WIDTH: f64 = 1000.0;
const LEFT_MARGIN: f64 = 96.0;
const RIGHT_MARGIN: f64 = 18.0;
const TOP_MARGIN: f64 = 8.0;
/// The height of a line, with the space below its bars.
const LINE_HEIGHT: f64 = 12.0;
/// The height of the bar of an attempt.
const BAR_HEIGHT: f64 = 9.0;
/// The space between the lines of two nodes.
const NODE_GAP: f64 = 7.0;
/// The height of the time axis.
const AXIS_HEIGHT: f64 = 22.0;
/// Longer names of nodes are cut to this many characters.
const NAME_CHARS_MAX: usize = 14;

/// A chart, with the numbers of attempts that it shows and omits.
pub(super) struct Chart {
    pub(super) svg: Html,
    pub(super) shown: usize,
    pub(super) omitted: usize,
}

/// An attempt in the chart.
struct Bar<'a> {
    task: &'a Task,
    attempt: &'a Attempt,
    is_map: bool,
    from_ms: u64,
    until_ms: u64,
}

/// The time axis.
#[derive(Clone, Copy)]
struct Scale {
    from_ms: u64,
    span_s: f64,
}

impl Scale {
    fn x(self, at_ms: u64) -> f64 {
        let at_s = at_ms.saturating_sub(self.from_ms) as f64 / 1000.0;
        LEFT_MARGIN + (at_s / self.span_s).min(1.0) * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN)
    }
}

/// Draws the attempts between `from_ms` and `until_ms`, which is the end of the job, or now.
/// Returns None if there are no attempts.
pub(super) fn draw(tasks: &[Task], from_ms: u64, until_ms: u64) -> Option<Chart> {
    let mut bars: Vec<Bar<'_>> = tasks.iter().flat_map(|task| bars(task, until_ms)).collect();
    if bars.is_empty() {
        return None;
    }
    let all = bars.len();
    let until_ms = bars.iter().map(|bar| bar.until_ms).max().unwrap_or(0).max(until_ms);
    bars.sort_by_key(|bar| Reverse(bar.until_ms - bar.from_ms));
    bars.truncate(ATTEMPTS_MAX);
    bars.sort_by_key(|bar| bar.from_ms);
    let span_s = (until_ms.saturating_sub(from_ms) as f64 / 1000.0).max(0.1);
    let scale = Scale { from_ms, span_s };

    let mut by_node = BTreeMap::<_, Vec<&Bar<'_>>>::new();
    for bar in &bars {
        by_node.entry(natural_sort_key(&bar.attempt.tracker)).or_default().push(bar);
    }
    let (mut y_by_attempt, mut node_bands) = (HashMap::<&str, f64>::new(), Vec::new());
    let mut y = TOP_MARGIN;
    for ((.., name), own) in by_node {
        let lines = assign_lines(&own);
        let count = lines.iter().map(|(_, line)| line + 1).max().unwrap_or(1);
        if (y + count as f64 * LINE_HEIGHT) / LINE_HEIGHT > LINES_MAX as f64 && !node_bands.is_empty() {
            break;
        }
        for (bar, line) in lines {
            y_by_attempt.insert(&bar.attempt.attempt, y + line as f64 * LINE_HEIGHT);
        }
        node_bands.push((name, y, count as f64 * LINE_HEIGHT));
        y += count as f64 * LINE_HEIGHT + NODE_GAP;
    }
    let shown = y_by_attempt.len();
    let svg = draw_svg(scale, &bars, &y_by_attempt, &node_bands, y, until_ms);
    Some(Chart { svg, shown, omitted: all - shown })
}

fn bars(task: &Task, now_ms: u64) -> impl Iterator<Item = Bar<'_>> {
    let is_map = task.task.contains(".m");
    let started = task.attempts.iter().filter(|attempt| attempt.launched_ms > 0);
    started.map(move |attempt| {
        let until_ms = if attempt.ended_ms == 0 { now_ms } else { attempt.ended_ms };
        let from_ms = attempt.launched_ms;
        Bar { task, attempt, is_map, from_ms, until_ms: until_ms.max(from_ms) }
    })
}

/// Assigns a line to each attempt of a node: maps above, reduces below.
fn assign_lines<'a>(bars: &[&'a Bar<'a>]) -> Vec<(&'a Bar<'a>, usize)> {
    let mut laid = Vec::with_capacity(bars.len());
    let mut above = 0;
    for maps in [true, false] {
        let mut free_from: Vec<u64> = Vec::new();
        let mut lines = HashMap::<&str, usize>::new();
        for bar in bars.iter().filter(|bar| bar.is_map == maps) {
            let is_free = |line: &usize| free_from[*line] <= bar.from_ms;
            let before = lines.get(bar.attempt.resumed_from.as_str()).copied().filter(is_free);
            let line = before.or_else(|| (0..free_from.len()).find(is_free)).unwrap_or(free_from.len());
            if line == free_from.len() {
                free_from.push(0);
            }
            free_from[line] = bar.until_ms;
            lines.insert(&bar.attempt.attempt, line);
            laid.push((*bar, above + line));
        }
        above += free_from.len();
    }
    laid
}

fn draw_svg(
    scale: Scale,
    bars: &[Bar<'_>],
    y_by_attempt: &HashMap<&str, f64>,
    node_bands: &[(&str, f64, f64)],
    bottom: f64,
    until_ms: u64,
) -> Html {
    let mut out = Html::new();
    html!(
        out,
        "<svg class='chart' viewBox='0 0 {} {}' role='img' aria-label='attempts over time by node'>",
        WIDTH,
        bottom + AXIS_HEIGHT
    );
    for (at, (name, y, height)) in node_bands.iter().enumerate() {
        if at % 2 == 0 {
            html!(
                out,
                "<rect class='band' x='0' y='{}' width='{}' height='{}'/>",
                y - NODE_GAP / 2.0,
                WIDTH,
                height + NODE_GAP
            );
        }
        let short: String = name.chars().take(NAME_CHARS_MAX).collect();
        html!(
            out,
            "<text class='node' x='8' y='{}'>{}<title>{}</title></text>",
            y + height / 2.0 + 4.0,
            short,
            *name
        );
    }
    for (at_s, label) in ticks(scale.span_s) {
        if at_s > scale.span_s * 1.0001 {
            continue;
        }
        let x = LEFT_MARGIN + at_s / scale.span_s * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN);
        html!(out, "<line class='grid' x1='{}' y1='0' x2='{}' y2='{}'/>", x, x, bottom);
        html!(out, "<text x='{}' y='{}' text-anchor='middle'>{} s</text>", x, bottom + 14.0, label);
    }
    let ends: HashMap<&str, u64> =
        bars.iter().map(|bar| (bar.attempt.attempt.as_str(), bar.until_ms)).collect();
    for bar in bars {
        let Some(&y) = y_by_attempt.get(bar.attempt.attempt.as_str()) else { continue };
        let from = bar.attempt.resumed_from.as_str();
        if let (Some(&before), Some(&end)) = (y_by_attempt.get(from), ends.get(from)) {
            draw_paused_line(&mut out, (scale.x(end), before), (scale.x(bar.from_ms), y));
        }
        if bar.task.paused == bar.attempt.attempt && bar.attempt.state == "paused" {
            draw_paused_line(&mut out, (scale.x(bar.until_ms), y), (scale.x(until_ms), y));
        }
        draw_attempt(&mut out, scale, bar, y);
    }
    html!(out, "</svg>");
    out
}

/// Draws a line over the time in which a reduce is paused.
fn draw_paused_line(out: &mut Html, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let middle = BAR_HEIGHT / 2.0;
    html!(out, "<line class='gap' x1='{}' y1='{}' x2='{}' y2='{}'/>", x1, y1 + middle, x2, y2 + middle);
}

fn draw_attempt(out: &mut Html, scale: Scale, bar: &Bar<'_>, y: f64) {
    let Bar { attempt, .. } = bar;
    let class = match attempt.state.as_str() {
        "failed" => "failed",
        "killed" => "killed",
        _ if bar.is_map => "map",
        _ => "reduce",
    };
    let running = if attempt.ended_ms == 0 { "running" } else { "" };
    let (x, end) = (scale.x(bar.from_ms), scale.x(bar.until_ms));
    let split = attempt.preempt_kind == "split" && attempt.state == "succeeded";
    let what = if split { "split".to_owned() } else { attempt.state.clone() };
    let seconds = (bar.until_ms - bar.from_ms) as f64 / 1000.0;
    let text = format!("{} on {}: {what}, {seconds:.2} s", attempt.attempt, attempt.tracker);
    html!(
        out,
        "<a href='/task/{}'><rect class='{} {}' x='{}' y='{}' width='{}' height='{}' rx='1.5'><title>{}</title></rect></a>",
        attempt.attempt,
        class,
        running,
        x,
        y,
        (end - x).max(1.2),
        BAR_HEIGHT,
        text
    );
    if split {
        let (top, side) = (y - 1.0, BAR_HEIGHT / 2.0 + 1.0);
        html!(
            out,
            "<path class='split' d='M{},{} l{},{} l{},{} l{},{} z'/>",
            end,
            top,
            4.0,
            side,
            -4.0,
            side,
            -4.0,
            -side
        );
    }
    if attempt.state == "paused" {
        html!(
            out,
            "<rect class='pause' x='{}' y='{}' width='3' height='{}'/>",
            end - 1.5,
            y - 1.5,
            BAR_HEIGHT + 3.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(id: &str, node: &str, state: &str, launched_ms: u64, ended_ms: u64) -> Attempt {
        let (attempt, tracker, state) = (id.into(), node.into(), state.into());
        Attempt { attempt, tracker, state, launched_ms, ended_ms, ..Attempt::default() }
    }

    fn task(id: &str, attempts: Vec<Attempt>) -> Task {
        Task { task: id.into(), attempts, ..Task::default() }
    }

    #[test]
    fn chart_shows_pauses_as_gaps_and_splits_as_marks() {
        let split =
            Attempt { preempt_kind: "split".into(), ..attempt("j.m0.0", "node1", "succeeded", 1000, 3000) };
        let resumed =
            Attempt { resumed_from: "j.r0.0".into(), ..attempt("j.r0.1", "node2", "running", 5000, 0) };
        let paused = attempt("j.r0.0", "node1", "paused", 2000, 4000);
        let again =
            Attempt { resumed_from: "j.r1.0".into(), ..attempt("j.r1.1", "node1", "paused", 6000, 7000) };
        let on_hold = Task {
            paused: "j.r1.1".into(),
            ..task("j.r1", vec![attempt("j.r1.0", "node1", "paused", 4500, 5000), again])
        };
        let tasks = [task("j.m0", vec![split]), task("j.r0", vec![paused, resumed]), on_hold];
        let chart = draw(&tasks, 0, 10_000).unwrap();
        let svg = chart.svg.as_str();
        assert_eq!((chart.shown, chart.omitted), (5, 0));
        assert_eq!(svg.matches("class='split'").count(), 1, "{svg}");
        assert_eq!(svg.matches("class='pause'").count(), 3, "{svg}");
        // There is a gap for each of the two resumed reduces, and for the reduce that is still
        // paused.
        assert_eq!(svg.matches("class='gap'").count(), 3, "{svg}");
        assert!(svg.contains("reduce running") && svg.contains("node1") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn parallel_attempts_have_separate_lines() {
        let bars = [
            task("j.m0", vec![attempt("j.m0.0", "n", "succeeded", 0, 10)]),
            task("j.m1", vec![attempt("j.m1.0", "n", "succeeded", 5, 20)]),
            task("j.m2", vec![attempt("j.m2.0", "n", "succeeded", 10, 20)]),
            task("j.r0", vec![attempt("j.r0.0", "n", "paused", 5, 10)]),
            task("j.r1", vec![attempt("j.r1.0", "n", "succeeded", 5, 12)]),
            task(
                "j.r0",
                vec![Attempt { resumed_from: "j.r0.0".into(), ..attempt("j.r0.1", "n", "running", 15, 0) }],
            ),
        ];
        // A launch time of 0 means "not launched", so add 1 to all times.
        let mut bars = bars;
        for own in bars.iter_mut().flat_map(|task| &mut task.attempts) {
            own.launched_ms += 1;
            own.ended_ms += u64::from(own.ended_ms > 0);
        }
        let all: Vec<Bar<'_>> = bars.iter().flat_map(|task| super::bars(task, 30)).collect();
        let lines: Vec<usize> =
            assign_lines(&all.iter().collect::<Vec<_>>()).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, [0, 1, 0, 2, 3, 2]);
    }

    #[test]
    fn omitted_attempts_are_counted() {
        let one = |at: u64| {
            task(&format!("j.m{at}"), vec![attempt(&format!("j.m{at}.0"), "n", "succeeded", 1, 2 + at)])
        };
        let tasks: Vec<Task> = (0..ATTEMPTS_MAX as u64 + 7).map(one).collect();
        let chart = draw(&tasks, 0, 10).unwrap();
        assert_eq!((chart.shown, chart.omitted), (ATTEMPTS_MAX, 7));
        assert!(!chart.svg.as_str().contains("j.m3.0"), "the shortest are omitted");
        assert!(draw(&[task("j.m0", Vec::new())], 0, 10).is_none());
        // The number of lines is limited too: use many nodes.
        let one = |at: u64| {
            task(
                &format!("j.m{at}"),
                vec![attempt(&format!("j.m{at}.0"), &format!("n{at}"), "succeeded", 1, 2)],
            )
        };
        let tasks: Vec<Task> = (0..1000).map(one).collect();
        let chart = draw(&tasks, 0, 10).unwrap();
        assert!(chart.shown <= LINES_MAX && chart.omitted == 1000 - chart.shown, "{}", chart.shown);
    }

    #[test]
    fn node_names_are_escaped() {
        let chart = draw(&[task("j.m0", vec![attempt("j.m0.0", "<i>&'", "failed", 1, 2)])], 0, 10).unwrap();
        let svg = chart.svg.as_str();
        assert!(svg.contains("&lt;i&gt;&amp;&#39;") && !svg.contains("<i>"), "{svg}");
    }
}
