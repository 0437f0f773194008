//! `/task/ID`: the attempts of a task, why each ran on its node, why the task waits, and the end of
//! a log.

use super::{Cell, Frame, cell, chip, error_note, facts, job::reasons, name_cell, number_cell, table, tasks};
use client::{
    model::{Attempt, Job, Task},
    scheduling::WhyReply,
};
use mrlib_api::error::one_line;
use schedulers::explain::{Names, describe_text};
use sim::{html, report::html::Html};
use view::{
    output, preempted,
    status_cache::{LOG_BYTES_MAX, QueryResult},
    tasks as job_tasks,
};

/// The log of an attempt.
pub(crate) struct Log<'a> {
    pub(crate) attempt: &'a Attempt,
    pub(crate) stderr: bool,
    pub(crate) text: QueryResult<String>,
}

pub(crate) fn page(
    job: &Job,
    all: &[Task],
    task: &Task,
    why: Option<QueryResult<WhyReply>>,
    log: Option<Log<'_>>,
) -> Frame {
    let (job, owner) = (job.job.as_str(), job);
    let mut main = Html::new();
    html!(main, "<p class='crumb'><a href='/job/{}'>{}</a></p>", job, job);
    html!(main, "<h1>{} {}</h1>", task.task, chip(&task.state));
    facts(&mut main, task_facts(all, task));
    attempts(&mut main, owner, task);
    if let Some(why) = &why {
        reasons(&mut main, why);
    }
    if let Some(log) = &log {
        show_log(&mut main, task, log);
    }
    let has_ended = matches!(task.state.as_str(), "done" | "succeeded" | "failed" | "killed" | "unfinished");
    Frame::new(&task.task, "/jobs", !has_ended, main)
}

/// Returns the input of the task, the maps that it was split from or split into, and its
/// checkpoint.
fn task_facts(all: &[Task], task: &Task) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if !task.source.is_empty() {
        let bytes = output::human(task.end.saturating_sub(task.start));
        rows.push(("input", format!("{} ({bytes})", job_tasks::input(task))));
    }
    if let Some(parent) = &task.remainder_of {
        rows.push(("remainder of", parent.clone()));
    }
    let remainders = all.iter().filter(|other| other.remainder_of.as_ref() == Some(&task.task));
    let remainders: Vec<&str> = remainders.map(|other| other.task.as_str()).collect();
    if !remainders.is_empty() {
        rows.push(("split into", remainders.join(" ")));
    }
    if !task.paused.is_empty() {
        let on_hold = if task.on_hold { ", paused until `mrctl resume`" } else { "" };
        let bytes = output::human(task.paused_bytes);
        rows.push(("checkpoint", format!("{bytes} by {} on {}{on_hold}", task.paused, task.paused_on)));
    } else if task.on_hold {
        rows.push(("paused", "by a user until `mrctl resume`".into()));
    }
    rows
}

/// Describes why an attempt was placed on its node. Assumes that the pool of the job is named after
/// its user, which is the default.
fn describe_placement(job: &Job, why: &str) -> String {
    let Job { user, queue, .. } = job;
    describe_text(why, &Names { user, queue, pool: user, tracker: &|id| format!("tracker {id}") })
}

fn attempts(out: &mut Html, job: &Job, task: &Task) {
    html!(out, "<h2>Attempts <small>{}</small></h2>", task.attempts.len());
    if task.attempts.is_empty() {
        html!(out, "<p class='soft'>None yet.</p>");
        return;
    }
    let now_ms = output::now_ms();
    let row = |attempt: &Attempt| {
        let mut id = Html::new();
        html!(id, "<a href='/task/{}?attempt={}#log'>{}</a>", task.task, attempt.attempt, attempt.attempt);
        vec![
            Cell("id", id),
            tasks::state_cell(attempt),
            name_cell(&attempt.tracker),
            cell("flat", &output::time(attempt.launched_ms)),
            number_cell(job_tasks::elapsed(attempt, now_ms)),
            cell("wide", &describe_placement(job, &attempt.why)),
            cell("wide", &job_tasks::note(task, attempt, one_line)),
        ]
    };
    let rows = task.attempts.iter().map(row).collect();
    let head = ["Attempt", "State", "Node", "Launched", "Took#", "Reason", "Note"];
    table(out, "attempts", &head, rows);
    let pauses: Vec<&Attempt> = task.attempts.iter().filter(|own| own.state == "paused").collect();
    if !pauses.is_empty() {
        html!(out, "<h2>Pauses <small>{}</small></h2><ul class='words'>", pauses.len());
        for attempt in pauses {
            let elapsed = preempted::note(task, attempt).unwrap_or_default();
            html!(
                out,
                "<li><time class='soft'>{}</time> {}: {}</li>",
                output::time(attempt.ended_ms),
                attempt.attempt,
                elapsed
            );
        }
        html!(out, "</ul>");
    }
}

fn show_log(out: &mut Html, task: &Task, log: &Log<'_>) {
    let (shown, other) = if log.stderr { ("stderr", "stdout") } else { ("stdout", "stderr") };
    html!(out, "<h2 id='log'>Log <small>{}, {}</small></h2>", log.attempt.attempt, shown);
    html!(
        out,
        "<p class='filters'><b>{}</b><a href='/task/{}?attempt={}&amp;stream={}#log'>{}</a></p>",
        shown,
        task.task,
        log.attempt.attempt,
        other,
        other
    );
    match &log.text {
        Err(error) => error_note(out, error),
        Ok(text) if text.is_empty() => html!(out, "<p class='soft'>The attempt has printed nothing.</p>"),
        Ok(text) => {
            html!(out, "<div class='scroll' id='log-text' tabindex='0'><pre>{}</pre></div>", text);
            if text.len() as u64 >= LOG_BYTES_MAX {
                html!(
                    out,
                    "<p class='soft'>The last {}; <code>mrctl logs {}</code> shows all of it.</p>",
                    output::human(LOG_BYTES_MAX),
                    log.attempt.attempt
                );
            }
        }
    }
}
