//! `mrctl top`: shows jobs, slots and nodes on a terminal, refreshed regularly.

#![allow(clippy::doc_markdown, reason = "doc comments here are help text, where backticks would be printed")]

use crate::output::{self, Usage};
use anyhow::{Result, bail};
use client::model::{Job, PhaseStatus, Tracker};
use clusters::locate::Target;
use daemon::Period;
use dfs_client::{NodeReport, Report};
use serde::Serialize;
use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};
use view::{
    nodes::{self, Row},
    preempted,
    status_cache::{Overview, Slots, StatusCache},
};

/// The shortest interval between queries of the masters.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The maximum number of ended jobs that are shown, newest first.
const ENDED_JOBS_MAX: usize = 5;
/// Rows and columns to assume if the size of the terminal is unknown.
const SIZE_DEFAULT: (u16, u16) = (40, 120);
/// The smallest rows and columns that are used, even if the terminal is smaller.
const SIZE_MIN: (u16, u16) = (12, 40);

/// Switches to the alternate screen and hides the cursor.
const ENTER_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and switches back to the normal screen.
const LEAVE_SCREEN: &str = "\x1b[?25h\x1b[?1049l";
/// Moves the cursor to the first line.
const CURSOR_HOME: &str = "\x1b[H";
/// Clears the remainder of the line and starts the next line.
const END_LINE: &str = "\x1b[K\n";
/// Clears the remainder of the line and of the screen.
const END_SCREEN: &str = "\x1b[K\x1b[J";

/// Show jobs, slots and nodes, refreshed regularly
///
/// Shows the active jobs in the order of submission, with the reason why a job waits and the number
/// of preempted slots, then the ended jobs, newest first, and then the nodes. Ends with Ctrl-C. With
/// --once or --json, or if standard output is not a terminal, it prints once; the exit code is then
/// 1 if a master is unreachable.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl top\n  mrctl top --every 5s\n  mrctl top --once\n  mrctl top --json"
)]
pub(crate) struct Args {
    /// Interval between refreshes, at least 1s
    #[arg(long, value_name = "TIME", default_value = "2s")]
    every: Period,
    /// Print once
    #[arg(long)]
    once: bool,
    /// Print once, as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    if args.every.0 < INTERVAL_MIN {
        bail!(Usage("--every: the interval must be at least 1s".into()));
    }
    let status_cache = StatusCache::new(Box::new(target.clone()), target.authenticated_name()?);
    if args.once || args.json || !std::io::stdout().is_terminal() {
        return once(&*status_cache.overview().await, args.json);
    }
    let mut out = output::stdout();
    write!(out, "{ENTER_SCREEN}")?;
    let looks = async {
        loop {
            let all = status_cache.overview().await;
            let (rows, columns) = screen_size();
            let lines = fit(frame(&all, output::now_ms()), rows, columns);
            let mut out = output::stdout();
            write!(out, "{CURSOR_HOME}{}{END_SCREEN}", lines.join(END_LINE))?;
            out.flush()?;
            drop(out);
            tokio::time::sleep(args.every.0).await;
        }
    };
    drop(out);
    let ended: Result<()> = tokio::select! {
        ended = looks => ended,
        () = daemon::lifecycle::end_signal() => Ok(()),
    };
    // Ignore errors: the terminal may have been closed.
    let _ = write!(output::stdout(), "{LEAVE_SCREEN}").and_then(|()| output::stdout().flush());
    ended.map(|()| ExitCode::SUCCESS)
}

fn once(all: &Overview, as_json: bool) -> Result<ExitCode> {
    if as_json {
        output::json(&Snapshot::of(all))?;
    } else {
        for line in without_errors(frame(all, output::now_ms())).all() {
            output::line(line)?;
        }
    }
    let mut code = ExitCode::SUCCESS;
    for error in all.query_errors() {
        eprintln!("mrctl: {}", error.describe());
        code = ExitCode::FAILURE;
    }
    Ok(code)
}

/// Removes the errors, which are printed to standard error, from the lines for standard output.
fn without_errors(lines: ScreenLines) -> ScreenLines {
    ScreenLines { errors: Vec::new(), ..lines }
}

/// One snapshot as JSON. Values from a master that is unreachable are null.
#[derive(Serialize)]
struct Snapshot<'a> {
    at_ms: u64,
    scheduler: Option<&'a str>,
    shadow: Option<&'a str>,
    slots: Option<Slots>,
    /// The active jobs.
    jobs: Option<Vec<&'a Job>>,
    /// Why each waiting job has no slot, by job ID.
    waiting_for: &'a std::collections::BTreeMap<String, String>,
    trackers: Option<&'a [Tracker]>,
    files: Option<&'a Report>,
}

impl<'a> Snapshot<'a> {
    fn of(all: &'a Overview) -> Self {
        let policy = all.schedulers.as_ref().ok();
        Self {
            at_ms: output::now_ms(),
            scheduler: policy.and_then(|all| all.scheduler.as_deref()),
            shadow: policy.and_then(|all| all.shadow.as_deref()),
            slots: all.trackers.is_ok().then(|| all.slots()),
            jobs: all.jobs.as_ref().ok().map(|jobs| jobs.iter().filter(|job| !job.has_ended()).collect()),
            waiting_for: &all.reasons,
            trackers: all.trackers.as_deref().ok(),
            files: all.files.as_ref().ok(),
        }
    }
}

/// The lines to show, from top to bottom.
#[derive(Debug, Default)]
struct ScreenLines {
    /// Always shown completely.
    head: Vec<String>,
    /// Why a master is unreachable. Always shown completely.
    errors: Vec<String>,
    /// A header line and the jobs. Cut if the screen is too small.
    jobs: Vec<String>,
    /// A header line and the nodes. Cut if the screen is too small.
    nodes: Vec<String>,
}

impl ScreenLines {
    fn all(self) -> Vec<String> {
        let Self { mut head, errors, jobs, nodes } = self;
        head.extend(errors);
        let blank = || vec![String::new()];
        let parts = [head, jobs, nodes].into_iter().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join(&blank()[..])
    }
}

/// Cuts the lines to the size of the screen. If both lists are too long, the nodes get a third of
/// the lines.
fn fit(mut lines: ScreenLines, rows: usize, columns: usize) -> Vec<String> {
    // Two blank lines separate the three parts. There is no line break after the last line: it
    // would scroll the screen.
    let room = rows.saturating_sub(lines.head.len() + lines.errors.len() + 2);
    let for_nodes = lines.nodes.len().min(room.saturating_sub(lines.jobs.len()).max(room / 3));
    cut(&mut lines.jobs, room - for_nodes, "jobs");
    cut(&mut lines.nodes, for_nodes, "nodes");
    let mut shown = lines.all();
    shown.truncate(rows);
    for line in &mut shown {
        if let Some((end, _)) = line.char_indices().nth(columns) {
            line.truncate(end);
        }
    }
    shown
}

fn cut(lines: &mut Vec<String>, room: usize, what: &str) {
    if lines.len() > room && room > 0 {
        let more = lines.len() - room + 1;
        lines.truncate(room - 1);
        lines.push(format!("... {more} more: mrctl {what}"));
    }
}

fn screen_size() -> (usize, usize) {
    let (rows, columns) = console::Term::stdout().size_checked().unwrap_or(SIZE_DEFAULT);
    (rows.max(SIZE_MIN.0).into(), columns.max(SIZE_MIN.1).into())
}

fn frame(all: &Overview, now_ms: u64) -> ScreenLines {
    let jobs = all.jobs.as_deref().unwrap_or_default();
    let mut head = vec![format!("{}  {}", output::utc(now_ms), summary(all, jobs))];
    if let Ok(files) = &all.files {
        head.push(describe_storage(files));
    }
    let errors = all.query_errors().map(|error| error.describe().to_owned()).collect();
    let datanodes = all.files.as_ref().map_or(&[][..], |report| &report.nodes);
    let trackers = all.trackers.as_deref().unwrap_or_default();
    ScreenLines { head, errors, jobs: job_lines(all, jobs, now_ms), nodes: node_lines(datanodes, trackers) }
}

/// Returns the summary line, such as
/// `chronos(fair)  2 jobs running, 1 waiting  maps 7 of 8 slots, reduces 3 of 4`.
fn summary(all: &Overview, jobs: &[Job]) -> String {
    let waiting = jobs.iter().filter(|job| job.is_waiting()).count();
    let running = jobs.iter().filter(|job| !job.has_ended()).count() - waiting;
    let mut parts = Vec::new();
    if let Ok(policy) = &all.schedulers {
        let shadow = policy.shadow.as_ref().map_or_else(String::new, |name| format!(" (shadow: {name})"));
        parts.extend(policy.scheduler.as_ref().map(|name| format!("{name}{shadow}")));
    }
    if all.jobs.is_ok() {
        parts.push(format!("{} running, {waiting} waiting", output::count(running as u64, "job")));
    }
    if all.trackers.is_ok() {
        let Slots { maps, reduces } = all.slots();
        parts.push(format!("maps {} of {} slots, reduces {} of {}", maps.0, maps.1, reduces.0, reduces.1));
    }
    if parts.is_empty() {
        parts.push("the JobTracker does not answer".to_owned());
    }
    parts.join("  ")
}

fn describe_storage(files: &Report) -> String {
    let (used, all) = (output::human(files.used), output::human(files.capacity));
    let mut parts = vec![output::count(files.files, "file"), format!("{used} of {all} used")];
    for (count, what) in [(files.under_replicated, "under-replicated"), (files.missing, "missing")] {
        parts.extend((count > 0).then(|| format!("{} {what}", output::count(count, "block"))));
    }
    parts.extend(files.safemode.on.then(|| "in safemode".to_owned()));
    parts.join(", ")
}

fn job_lines(all: &Overview, jobs: &[Job], now_ms: u64) -> Vec<String> {
    let (over, active): (Vec<&Job>, Vec<&Job>) = jobs.iter().partition(|job| job.has_ended());
    let mut ended = over;
    ended.sort_by_key(|job| std::cmp::Reverse(job.ended_ms));
    ended.truncate(ENDED_JOBS_MAX);
    if active.is_empty() && ended.is_empty() {
        return Vec::new();
    }
    let header = ["JOB", "NAME", "USER", "STATE", "MAPS", "REDUCES", "SLOTS", "TIME", "NOTE"];
    let mut table = output::table(&header, &[4, 5, 6, 7]);
    for job in active.into_iter().chain(ended) {
        let state = job.display_state();
        let waiting_for = all.reasons.get(&job.job).filter(|_| job.is_waiting());
        let time = if job.has_ended() { job.ended_ms } else { now_ms }.saturating_sub(job.submitted_ms);
        table.add_row([
            job.job.clone(),
            job.name.clone(),
            job.user.clone(),
            state.to_owned(),
            describe_phase(&job.maps),
            describe_phase(&job.reduces),
            format!("{}", job.maps.running + job.reduces.running),
            output::age(time),
            job_note(job, waiting_for),
        ]);
    }
    output::table_lines(&table)
}

/// Returns a note on why a job waits or how often it was preempted.
fn job_note(job: &Job, waiting_for: Option<&String>) -> String {
    if !job.has_ended() && !job.why.is_empty() {
        return job.why.clone();
    }
    waiting_for.cloned().unwrap_or_else(|| preempted::short_summary(job))
}

/// Describes a phase with its progress and its done tasks, such as `41% 3/8`.
fn describe_phase(phase: &PhaseStatus) -> String {
    if phase.total == 0 {
        return "-".into();
    }
    format!("{:.0}% {}/{}", phase.progress * 100.0, phase.done, phase.total)
}

fn node_lines(datanodes: &[NodeReport], trackers: &[Tracker]) -> Vec<String> {
    let rows = nodes::merge_by_name(datanodes, trackers);
    if rows.is_empty() {
        return Vec::new();
    }
    let header = ["NODE", "TASKTRACKER", "MAPS", "REDUCES", "DATANODE", "USED", "FREE", "HEARTBEAT"];
    let mut table = output::table(&header, &[2, 3, 5, 6, 7]);
    for row in rows {
        let (name, datanode, tracker) = match row {
            Row::Datanode { datanode, tracker } => (datanode.address.node.as_str(), Some(datanode), tracker),
            Row::Tracker { node, tracker } => (node, None, Some(tracker)),
        };
        let of = |what: fn(&Tracker) -> String| tracker.map_or_else(|| "-".into(), what);
        let on = |what: fn(&NodeReport) -> String| datanode.map_or_else(|| "-".into(), what);
        // Show the age of the older heartbeat: that of the tracker or that of the DataNode.
        let last_heartbeat = match (datanode, tracker) {
            (Some(datanode), Some(tracker))
                if datanode.last_heartbeat_ms_ago < tracker.last_heartbeat_ms_ago =>
            {
                nodes::tracker_heartbeat(tracker)
            }
            (Some(datanode), _) => nodes::heartbeat(datanode.last_heartbeat_ms_ago),
            (None, _) => of(nodes::tracker_heartbeat),
        };
        table.add_row([
            name.to_owned(),
            of(|own| own.state.clone()),
            of(|own| format!("{}/{}", own.maps_running, own.map_slots)),
            of(|own| format!("{}/{}", own.reduces_running, own.reduce_slots)),
            on(|own| nodes::state_name(own.state).to_owned()),
            on(|own| nodes::of_volumes(own, |own| output::human(own.used))),
            on(|own| nodes::of_volumes(own, |own| output::human(own.free))),
            last_heartbeat,
        ]);
    }
    output::table_lines(&table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use view::status_cache::QueryError;

    fn job(id: &str, state: &str, running: u32) -> Job {
        let maps = PhaseStatus { total: 8, done: 3, running, progress: 0.41, ..PhaseStatus::default() };
        Job { job: id.into(), name: "count".into(), state: state.into(), maps, ..Job::default() }
    }

    fn unavailable<T>() -> Result<T, QueryError> {
        Err(QueryError::Unavailable("the master is down".into()))
    }

    fn overview(jobs: Vec<Job>) -> Overview {
        let reasons = [("job_2".to_owned(), "a free map slot".to_owned())].into();
        Overview {
            jobs: Ok(jobs),
            trackers: Ok(Vec::new()),
            schedulers: unavailable(),
            files: unavailable(),
            reasons,
        }
    }

    #[test]
    fn waiting_reasons_and_unreachable_masters_are_shown() {
        let all = overview(vec![job("job_1", "running", 2), job("job_2", "running", 0)]);
        let lines = frame(&all, 1000).all().join("\n");
        assert!(
            lines.contains("1 job running, 1 waiting") && lines.contains("the master is down"),
            "{lines}"
        );
        let waiting = lines.lines().find(|line| line.starts_with("job_2")).unwrap();
        assert!(waiting.contains("waiting") && waiting.ends_with("a free map slot"), "{lines}");
        assert!(lines.contains("41% 3/8"), "{lines}");
        let printed = without_errors(frame(&all, 1000)).all().join("\n");
        assert!(printed.contains("41% 3/8") && !printed.contains("the master is down"), "{printed}");
        let blocked = Job { why: "waits: in safemode".into(), ..job("job_3", "running", 2) };
        let lines = frame(&overview(vec![blocked]), 1000).all().join("\n");
        assert!(
            lines.lines().any(|line| line.starts_with("job_3") && line.ends_with("in safemode")),
            "{lines}"
        );
    }

    #[test]
    fn header_reports_an_unreachable_jobtracker() {
        let all = Overview { jobs: unavailable(), trackers: unavailable(), ..overview(Vec::new()) };
        let printed = without_errors(frame(&all, 1000)).all();
        assert!(printed[0].ends_with("  the JobTracker does not answer"), "{printed:?}");
    }

    #[test]
    fn frame_fits_the_screen_and_counts_omitted_lines() {
        let jobs = (0..100).map(|number| job(&format!("job_{number}"), "running", 1)).collect();
        let nodes = (0..50).map(|number| format!("node{number}")).collect();
        let lines = ScreenLines { nodes, ..frame(&overview(jobs), 1000) };
        let shown = fit(lines, 24, 60);
        assert!(shown.len() <= 24 && shown.iter().all(|line| line.chars().count() <= 60), "{shown:#?}");
        let more: Vec<_> = shown.iter().filter(|line| line.starts_with("... ")).collect();
        assert!(more.len() == 2 && more[0].ends_with("more: mrctl jobs"), "{shown:#?}");
        // Lists that fit are not cut.
        let shown = fit(frame(&overview(vec![job("job_1", "running", 1)]), 1000), 24, 60);
        assert!(shown.iter().all(|line| !line.starts_with("...")), "{shown:#?}");
    }
}
