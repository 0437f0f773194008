//! `/job/ID`: progress, preemptions and their cost, attempts over time, why the job waits, tasks
//! and counters.

use super::{
    Frame, Tile, bar, chip, error_note, facts,
    tasks::{self, View},
    tiles,
};
use crate::chart;
use client::{
    model::{Job, Task},
    scheduling::WhyReply,
};
use sim::{html, report::html::Html};
use view::{
    output::{self, count, human},
    preempted,
    status_cache::{JobDetails, QueryError},
};

/// Rows of `mrctl job` that the page shows outside its table.
const SHOWN_ELSEWHERE: [&str; 5] = ["job", "state", "maps", "reduces", "preempted"];

pub(crate) fn page(details: &JobDetails, view: &View) -> Frame {
    let JobDetails { job, tasks, why, past } = details;
    let mut main = Html::new();
    html!(main, "<h1><bdi>{}</bdi> {}</h1>", job.name, chip(job.display_state()));
    html!(main, "<p class='lead'>{}</p>", describe_owner_and_time(job));
    if !job.why.is_empty() {
        html!(main, "<div class='note {}'>{}</div>", if job.state == "failed" { "bad" } else { "" }, job.why);
    }
    html!(main, "<div class='phases'>");
    for (name, phase) in [("Maps", &job.maps), ("Reduces", &job.reduces)] {
        if phase.total > 0 {
            html!(main, "<b>{}</b>{}<span class='words'>{}</span>", name, bar(phase), phase.describe());
        }
    }
    html!(main, "</div>");
    facts(&mut main, view::job::facts(job).into_iter().filter(|(name, _)| !SHOWN_ELSEWHERE.contains(name)));
    if let Some(figures) = past {
        history_section(&mut main, figures);
    } else {
        html!(main, "<h2>Preemptions</h2>");
        preemption_section(&mut main, job, tasks.as_deref().unwrap_or_default());
    }
    match tasks {
        // If the user may not see the tasks, one note replaces all sections about them.
        Err(error) => error_note(&mut main, error),
        Ok(tasks) => {
            timeline_section(&mut main, job, tasks);
            if past.is_none() {
                reasons(&mut main, why);
            }
            tasks::failures(&mut main, tasks);
            tasks::render_section(&mut main, &job.job, tasks, view);
        }
    }
    counters_section(&mut main, job);
    Frame::new(&format!("{} {}", job.job, job.name), "/jobs", !job.has_ended(), main)
}

fn describe_owner_and_time(job: &Job) -> String {
    let now_ms = output::now_ms();
    let time = if job.has_ended() {
        let took = output::took(job.ended_ms.saturating_sub(job.submitted_ms));
        format!("ended {} after {took}", output::time(job.ended_ms))
    } else {
        format!("submitted {} ago", output::age(now_ms.saturating_sub(job.submitted_ms)))
    };
    format!("{} of {}, {time}", job.job, job.user)
}

fn history_section(out: &mut Html, figures: &[String]) {
    html!(
        out,
        "<div class='note'>The JobTracker no longer remembers this job. The following is from its history.</div>\
         <ul class='words'>"
    );
    for line in figures {
        html!(out, "<li>{}</li>", line);
    }
    html!(out, "</ul>");
}

/// Renders preemptions by kind, work saved and lost, latencies and checkpoints.
fn preemption_section(out: &mut Html, job: &Job, tasks: &[Task]) {
    let of = &job.preemption;
    if preempted::summary(job).is_none() {
        html!(out, "<p class='soft'>None: this job was not preempted.</p>");
        return;
    }
    let seconds = output::took;
    let soon = |word| {
        let elapsed = preempted::latency(tasks, word);
        elapsed.map_or_else(String::new, |(median, most)| {
            format!("slot free after {median} ms (median), {most} ms at most")
        })
    };
    let mean = |ms: u64, times: u32| ms.checked_div(times.into()).map(|each| format!("{each} ms"));
    let resuming = preempted::mean_resume_ms(job).map(|each| format!("{each} ms"));
    let asked = mean(of.latency_ms, of.splits + of.pauses);
    let lost = if of.ms_lost + of.bytes_lost > 0 { "bad" } else { "good" };
    let mut all = vec![
        Tile::new("Splits of maps", of.splits.to_string(), soon("split")),
        Tile::new("Pauses of reduces", of.pauses.to_string(), soon("pause")),
        Tile::new("Resumes", of.resumes.to_string(), format!("{} on another node", of.migrations)),
        Tile::new("Kills", of.kills.to_string(), if of.kills > 0 { "their work is lost" } else { "" }),
        Tile::new("Work saved", human(of.bytes_saved), format!("in {}", seconds(of.ms_saved)))
            .severity("good"),
        Tile::new("Work lost", human(of.bytes_lost), format!("in {}", seconds(of.ms_lost))).severity(lost),
    ];
    all.extend(asked.map(|each| Tile::new("Slot free after", each, "mean of splits and pauses")));
    all.extend(
        resuming.map(|each| Tile::new("Resumed after", each, "mean, from a resume to its first record")),
    );
    if of.pauses > 0 {
        let lost = count(of.checkpoints_lost.into(), "checkpoint");
        all.push(Tile::new("Checkpoints", human(of.checkpoint_bytes), format!("{lost} lost")));
    }
    tiles(out, all);
}

fn timeline_section(out: &mut Html, job: &Job, tasks: &[Task]) {
    html!(out, "<h2>Attempts over time <small>by node</small></h2>");
    let until_ms = if job.has_ended() { job.ended_ms } else { output::now_ms() };
    let Some(chart) = chart::draw(tasks, job.submitted_ms, until_ms) else {
        html!(out, "<p class='soft'>No attempt has started yet.</p>");
        return;
    };
    html!(out, "<div class='scroll' id='chart' tabindex='0'>{}</div><div class='legend'>", chart.svg);
    for (class, name) in [("map", "map"), ("reduce", "reduce"), ("failed", "failed"), ("killed", "killed")] {
        html!(
            out,
            "<span><svg viewBox='0 0 10 10'><rect class='{}' width='10' height='10' rx='2'/></svg>{}</span>",
            class,
            name
        );
    }
    html!(
        out,
        "<span><svg viewBox='0 0 10 10'><path class='split' d='M5,0 l4,5 l-4,5 l-4,-5 z'/></svg>split here</span>\
         <span><svg viewBox='0 0 10 10'><rect class='pause' x='3.5' width='3' height='10'/></svg>paused here</span>\
         <span><svg viewBox='0 0 10 10'><line class='gap' x1='0' y1='5' x2='10' y2='5'/></svg>paused, until it continues</span></div>"
    );
    if chart.omitted > 0 {
        html!(
            out,
            "<p class='soft'>Only {} of {} attempts are shown: at most the {} longest, on the first nodes.</p>",
            chart.shown,
            chart.shown + chart.omitted,
            chart::ATTEMPTS_MAX
        );
    }
}

/// Renders why the job or task waits, and its recent events.
pub(super) fn reasons(out: &mut Html, why: &Result<WhyReply, QueryError>) {
    html!(out, "<h2>Why</h2>");
    let why = match why {
        Ok(why) => why,
        Err(error) => return error_note(out, error),
    };
    if why.waiting_for.is_empty() {
        html!(out, "<p>It is not waiting.</p>");
    } else {
        html!(out, "<ul class='words'>");
        for reason in &why.waiting_for {
            html!(out, "<li>{}</li>", reason.text);
        }
        html!(out, "</ul>");
    }
    if why.recent_events.is_empty() {
        return;
    }
    // An ended job may have run under another policy.
    let scheduler = if why.has_ended() { String::new() } else { format!(" (scheduler: {})", why.scheduler) };
    html!(
        out,
        "<details id='recent' open><summary>Recent events{}</summary><ul class='words recent'>",
        scheduler
    );
    for event in why.recent_events.iter().rev() {
        html!(out, "<li><time>{}</time>{}</li>", output::time(event.at_ms), event.text);
    }
    html!(out, "</ul></details>");
}

fn counters_section(out: &mut Html, job: &Job) {
    let all = preempted::counters(job);
    if all.is_empty() || job.partial {
        return;
    }
    html!(
        out,
        "<h2>Counters</h2><details id='counters'><summary>{} counters</summary><div class='columns'>",
        all.len()
    );
    for (name, value) in &all {
        html!(out, "<div><span>{}</span><span>{}</span></div>", name, group_digits(*value));
    }
    html!(out, "</div></details>");
}

/// Separates groups of three digits by narrow spaces.
fn group_digits(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::model::{PhaseStatus, Preemption};

    #[test]
    fn digit_groups_are_separated() {
        assert_eq!(group_digits(7), "7");
        assert_eq!(group_digits(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(group_digits(100_000), "100\u{202f}000");
    }

    #[test]
    fn page_keeps_the_line_breaks_of_an_error() {
        let job =
            Job { state: "failed".into(), why: "Traceback:\n  line 1\nKeyError".into(), ..Job::default() };
        let unknown = QueryError::Forbidden(String::new());
        let details = JobDetails { job, tasks: Err(unknown.clone()), why: Err(unknown), past: None };
        let page = page(&details, &View::new(None, None)).render("ann").into_string();
        assert!(page.contains("<div class='note bad'>Traceback:\n  line 1\nKeyError</div>"), "{page}");
        let style = include_str!("../style.css").lines().find(|line| line.starts_with(".note {")).unwrap();
        assert!(style.contains("white-space: pre-wrap"), "{style}");
    }

    #[test]
    fn page_of_a_job_of_another_user_has_one_note_instead_of_its_tasks() {
        let job = Job {
            job: "job_1".into(),
            name: "<script>alert(1)</script>".into(),
            state: "running".into(),
            maps: PhaseStatus { total: 2, ..PhaseStatus::default() },
            preemption: Preemption { pauses: 1, checkpoint_bytes: 2048, ..Preemption::default() },
            ..Job::default()
        };
        let refused = QueryError::Forbidden("job_1 is ann's".into());
        let details = JobDetails { job, tasks: Err(refused.clone()), why: Err(refused), past: None };
        let page = page(&details, &View::new(None, None)).render("bob").into_string();
        assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script>alert"), "{page}");
        assert!(page.contains("2.00 KiB") && page.matches("job_1 is ann&#39;s").count() == 1, "{page}");
    }
}
