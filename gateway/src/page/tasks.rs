//! The tasks of a job: the tree of split maps, the pauses of reduces, and the failures.

use super::{Cell, cell, chip, link_cell, number_cell, page_of, pager, table};
use client::model::{Attempt, Task};
use mrlib_api::error::one_line;
use sim::{html, report::html::Html};
use std::collections::BTreeMap;
use view::{output, preempted, tasks};

/// Number of rows per page.
const PAGE_ROWS: usize = 200;
/// The largest number of failures that are shown.
const FAILURES_MAX: usize = 20;
/// The largest number of lines of an error that are shown.
const ERROR_LINES: usize = 12;

/// Which tasks the page shows: a filter by state, and the number of the page.
pub(crate) struct View {
    state: Option<&'static str>,
    page: usize,
}

impl View {
    /// Creates a view. An unknown state means no filter.
    pub(crate) fn new(state: Option<String>, page: Option<usize>) -> Self {
        let known = |state: String| tasks::STATES.into_iter().find(|known| *known == state);
        Self { state: state.and_then(known), page: page.unwrap_or(1) }
    }
}

/// Renders the table of all tasks, or of the tasks in one state.
pub(super) fn render_section(out: &mut Html, job: &str, all: &[Task], view: &View) {
    html!(out, "<h2 id='tasks'>Tasks <small>{}</small></h2>", tasks::totals(all));
    filters(out, job, all, view);
    let mut kept = all.to_vec();
    if let Some(state) = view.state {
        tasks::retain_in_state(&mut kept, state);
    }
    let roots = roots(all);
    let mut rows: Vec<(usize, &Task, Option<&Attempt>)> = Vec::new();
    for (depth, task) in preempted::tree(&kept) {
        if task.attempts.is_empty() {
            rows.push((depth, task, None));
        }
        rows.extend(task.attempts.iter().map(|attempt| (depth, task, Some(attempt))));
    }
    if rows.is_empty() {
        html!(out, "<p class='soft'>None.</p>");
        return;
    }
    let (shown, place) = page_of(&rows, view.page, PAGE_ROWS);
    let now_ms = output::now_ms();
    let cells = shown.iter().map(|(depth, task, attempt)| {
        row(task, *attempt, &tasks::indented(*depth, id(task, *attempt)), &roots, now_ms)
    });
    table(out, "task-table", &COLUMNS, cells.collect());
    let state = view.state.map_or_else(String::new, |state| format!("?state={state}"));
    pager(out, place, &format!("/job/{job}{state}"));
}

pub(super) const COLUMNS: [&str; 6] = ["Attempt", "State", "Node", "Took#", "Input", "Note"];

fn id<'a>(task: &'a Task, attempt: Option<&'a Attempt>) -> &'a str {
    attempt.map_or(&task.task, |attempt| &attempt.attempt)
}

fn row(
    task: &Task,
    attempt: Option<&Attempt>,
    shown: &str,
    roots: &BTreeMap<u32, (u64, u64, usize)>,
    now_ms: u64,
) -> Vec<Cell> {
    let name = link_cell("id", "task", id(task, attempt), shown);
    let input = input_cell(task, roots);
    match attempt {
        None => {
            let mut state = Html::new();
            html!(state, "{}", chip(&task.state));
            vec![name, Cell("", state), cell("", ""), cell("", ""), input, cell("", "")]
        }
        Some(own) => vec![
            name,
            state_cell(own),
            super::name_cell(&own.tracker),
            number_cell(tasks::elapsed(own, now_ms)),
            input,
            cell("wide", &tasks::note(task, own, one_line)),
        ],
    }
}

/// Returns a cell with the state of an attempt, and its progress.
pub(super) fn state_cell(attempt: &Attempt) -> Cell {
    let mut out = Html::new();
    html!(out, "{}", chip(&attempt.state));
    let text = tasks::state(attempt);
    if let Some(far) = text.strip_prefix(attempt.state.as_str()).filter(|far| !far.is_empty()) {
        html!(out, " <span class='soft'>{}</span>", far.trim_start());
    }
    Cell("flat", out)
}

/// Returns for each submitted split, by its index (`Task::root`): its start and end, and the number
/// of maps that process its range now.
fn roots(all: &[Task]) -> BTreeMap<u32, (u64, u64, usize)> {
    let mut roots = BTreeMap::new();
    for task in all.iter().filter(|task| !task.source.is_empty()) {
        let whole = roots.entry(task.root).or_insert((task.start, task.end, 0));
        *whole = (whole.0.min(task.start), whole.1.max(task.end), whole.2 + 1);
    }
    roots
}

/// Returns a cell with the input of a map. For a part of a split map, the cell also has a bar that
/// shows its range.
fn input_cell(task: &Task, roots: &BTreeMap<u32, (u64, u64, usize)>) -> Cell {
    let mut out = Html::new();
    if let Some((start, end, parts)) = roots.get(&task.root).filter(|_| !task.source.is_empty())
        && *parts > 1
    {
        let whole = (end - start).max(1) as f64;
        let part = |bytes: u64| 100.0 * bytes as f64 / whole;
        html!(
            out,
            "<svg class='range' viewBox='0 0 100 6' preserveAspectRatio='none' role='img' aria-label='its part of the submitted split'>\
             <rect class='track' width='100' height='6'/><rect class='own' x='{}' width='{}' height='6'/></svg>",
            part(task.start - start),
            part(task.end.saturating_sub(task.start)).max(1.5)
        );
    }
    html!(out, "<bdi>{}</bdi>", tasks::input(task));
    Cell("wide", out)
}

fn filters(out: &mut Html, job: &str, all: &[Task], view: &View) {
    html!(out, "<p class='filters'>");
    let count = |state| all.iter().map(|task| tasks::count_in_state(task, state)).sum::<usize>();
    let states = tasks::STATES.into_iter().map(|state| (state, count(state))).filter(|(_, count)| *count > 0);
    for state in std::iter::once(None).chain(states.map(Some)) {
        let name = state.map_or("all", |(state, _)| state);
        if state.map(|(state, _)| state) == view.state {
            html!(out, "<b>{}</b>", name);
        } else if let Some((state, count)) = state {
            html!(out, "<a href='/job/{}?state={}#tasks'>{} {}</a>", job, state, count, state);
        } else {
            html!(out, "<a href='/job/{}#tasks'>{}</a>", job, name);
        }
    }
    html!(out, "</p>");
}

/// Renders the failed attempts with their errors, newest first.
pub(super) fn failures(out: &mut Html, all: &[Task]) {
    let attempts = all.iter().flat_map(|task| &task.attempts);
    let mut failed: Vec<&Attempt> = attempts.filter(|attempt| attempt.state == "failed").collect();
    if failed.is_empty() {
        return;
    }
    failed.sort_by_key(|attempt| std::cmp::Reverse(attempt.ended_ms));
    html!(out, "<h2>Failures <small>{}</small></h2>", failed.len());
    for attempt in failed.iter().take(FAILURES_MAX) {
        html!(
            out,
            "<details id='{}'><summary><a href='/task/{}'>{}</a> on <bdi>{}</bdi>: {}</summary>",
            format!("failure-{}", attempt.attempt),
            attempt.attempt,
            attempt.attempt,
            attempt.tracker,
            one_line(&attempt.error)
        );
        let lines: Vec<&str> = attempt.error.lines().take(ERROR_LINES).collect();
        html!(out, "<div class='scroll'><pre>{}</pre></div></details>", lines.join("\n"));
    }
    if failed.len() > FAILURES_MAX {
        html!(out, "<p class='soft'>Only the newest {} are shown.</p>", FAILURES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(id: &str, start: u64, end: u64, state: &str) -> Task {
        let attempt = Attempt { attempt: format!("{id}.0"), state: state.into(), ..Attempt::default() };
        let (task, source) = (id.to_owned(), "/in".to_owned());
        Task { task, source, start, end, attempts: vec![attempt], ..Task::default() }
    }

    #[test]
    fn parts_of_a_split_map_are_indented() {
        let mut all = vec![map("job_1.m0", 0, 40, "succeeded"), map("job_1.m1", 40, 100, "running")];
        client::model::find_remainders(&mut all);
        let mut out = Html::new();
        render_section(&mut out, "job_1", &all, &View::new(None, None));
        let page = out.as_str();
        assert!(page.contains("└ job_1.m1.0") && page.matches("class='range'").count() == 2, "{page}");
        assert!(page.contains("x='40.0' width='60.0'"), "{page}");
        let mut out = Html::new();
        render_section(&mut out, "job_1", &all, &View::new(Some("running".into()), None));
        assert!(!out.as_str().contains("job_1.m0.0") && out.as_str().contains("job_1.m1.0"));
        assert_eq!(View::new(Some("nonsense".into()), None).state, None);
    }

    #[test]
    fn filters_count_tasks_without_running_attempts() {
        // The attempt of the second task was killed with the job.
        let mut killed = map("job_1.m1", 40, 100, "killed");
        killed.attempts[0].ended_ms = 5;
        let mut all = vec![map("job_1.m0", 0, 40, "killed"), killed];
        all[0].attempts.clear();
        for task in &mut all {
            task.state = "unfinished".into();
        }
        let mut out = Html::new();
        render_section(&mut out, "job_1", &all, &View::new(None, None));
        let page = out.as_str();
        assert!(page.contains("2 maps: 2 unfinished") && page.contains(">2 unfinished</a>"), "{page}");
        assert!(page.contains(">1 killed</a>"), "{page}");
        let mut out = Html::new();
        render_section(&mut out, "job_1", &all, &View::new(Some("unfinished".into()), None));
        let page = out.as_str();
        assert!(page.contains("job_1.m0") && page.contains("job_1.m1"), "{page}");
    }

    #[test]
    fn failures_show_the_escaped_error() {
        let mut task = map("job_1.m0", 0, 1, "failed");
        task.attempts[0].error = "<b>no room</b>\nmore".into();
        let mut out = Html::new();
        failures(&mut out, &[task]);
        assert!(
            out.as_str().contains("&lt;b&gt;no room") && !out.as_str().contains("<b>no"),
            "{}",
            out.as_str()
        );
        let mut out = Html::new();
        failures(&mut out, &[map("job_1.m0", 0, 1, "succeeded")]);
        assert!(out.is_empty());
    }
}
