//! `/`: masters, slots, jobs that run, wait or have just ended, nodes, the policy.

use super::{
    Cell, Frame, Tile, cell, chip, error_note, job_cells, nodes, number_cell, progress_cell, table, tiles,
};
use client::{
    model::{Job, Tracker},
    scheduling::Schedulers,
};
use mrlib_api::error::one_line;
use sim::{html, report::html::Html};
use view::{
    output, preempted,
    status_cache::{Overview, QueryResult, Slots},
};

/// The largest number of jobs in the lists of running and waiting jobs. `/jobs` lists all jobs.
const JOBS_MAX: usize = 100;
/// The largest number of jobs in the list of ended jobs.
const ENDED_MAX: usize = 12;

pub(crate) fn page(all: &Overview) -> Frame {
    let mut main = Html::new();
    html!(main, "<h1>Cluster</h1>");
    overview_section(&mut main, all);
    for error in all.query_errors() {
        error_note(&mut main, error);
    }
    if let Ok(jobs) = &all.jobs {
        jobs_section(&mut main, all, jobs);
    }
    html!(main, "<h2>Nodes</h2>");
    nodes::slots_table(&mut main, all);
    if let Ok(schedulers) = &all.schedulers {
        policy_section(&mut main, schedulers);
    }
    Frame::new("", "/", true, main)
}

fn master_tile<T>(name: &'static str, answer: &QueryResult<T>, more: String) -> Tile<'static> {
    match answer {
        Ok(_) => Tile::new(name, "up", more).severity("good"),
        Err(_) => Tile::new(name, "down", "retrying").severity("bad"),
    }
}

fn overview_section(out: &mut Html, all: &Overview) {
    let policy = all.schedulers.as_ref().ok().and_then(|all| all.scheduler.clone());
    let jobs = all.jobs.as_deref().unwrap_or_default();
    let active = jobs.iter().filter(|job| !job.has_ended()).count();
    let mut tiles_of = vec![
        master_tile("JobTracker", &all.jobs, format!("{} active", output::count(active as u64, "job"))),
        master_tile(
            "NameNode",
            &all.files,
            all.files.as_ref().map_or_else(|_| String::new(), safemode_or_files),
        ),
    ];
    if let Some(policy) = policy {
        let shadow = all.schedulers.as_ref().ok().and_then(|all| all.shadow.clone());
        let shadow = shadow.map_or_else(String::new, |name| format!("shadow: {name}"));
        tiles_of.push(Tile::new("Scheduler", policy, shadow));
    }
    if let Ok(trackers) = &all.trackers {
        let Slots { maps: (maps, map_slots), reduces: (reduces, reduce_slots) } = all.slots();
        // Free slots of trackers that are not live cannot be used.
        let free = |of: fn(&Tracker) -> u32| {
            let free = trackers.iter().filter(|own| own.state == "live").map(of).sum::<u32>();
            format!("{free} free")
        };
        let free_maps = free(|own| own.map_slots.saturating_sub(own.maps_running));
        let free_reduces = free(|own| own.reduce_slots.saturating_sub(own.reduces_running));
        tiles_of.push(Tile::new("Map slots in use", format!("{maps} of {map_slots}"), free_maps));
        tiles_of.push(Tile::new("Reduce slots in use", format!("{reduces} of {reduce_slots}"), free_reduces));
    }
    if let Ok(files) = &all.files {
        let more = format!("{} free", output::human(files.free));
        tiles_of.push(Tile::new("Stored", output::human(files.used), more));
    }
    tiles(out, tiles_of);
}

fn safemode_or_files(report: &dfs_client::Report) -> String {
    if report.safemode.on {
        return "in safemode".into();
    }
    output::count(report.files, "file")
}

fn jobs_section(out: &mut Html, all: &Overview, jobs: &[Job]) {
    let (over, active): (Vec<&Job>, Vec<&Job>) = jobs.iter().partition(|job| job.has_ended());
    let (waiting, running): (Vec<&Job>, Vec<&Job>) = active.into_iter().partition(|job| job.is_waiting());
    html!(out, "<h2>Running <small>{}</small></h2>", running.len());
    let now_ms = output::now_ms();
    if running.is_empty() {
        html!(out, "<p class='soft'>No job is running.</p>");
    } else {
        let row = |job: &&Job| {
            let mut state = Html::new();
            html!(state, "{}", chip(job.display_state()));
            let since = number_cell(output::age(now_ms.saturating_sub(job.submitted_ms)));
            let bars = [progress_cell(&job.maps), progress_cell(&job.reduces), Cell("", state), since];
            job_cells(job).into_iter().chain(bars).collect()
        };
        let rows = running.iter().take(JOBS_MAX).map(row).collect();
        table(out, "running", &["Job", "Name", "User", "Maps", "Reduces", "State", "Since#"], rows);
        more_jobs(out, running.len(), JOBS_MAX);
    }
    if !waiting.is_empty() {
        html!(out, "<h2>Waiting <small>{}</small></h2>", waiting.len());
        let row = |job: &&Job| {
            let why = all.reasons.get(&job.job).map_or("", String::as_str);
            let paused = job.maps.paused + job.reduces.paused;
            let paused = if paused > 0 { format!("{paused} paused. ") } else { String::new() };
            let since = number_cell(output::age(now_ms.saturating_sub(job.submitted_ms)));
            let more = [cell("wide", &format!("{paused}{why}")), since];
            job_cells(job).into_iter().chain(more).collect()
        };
        let rows = waiting.iter().take(JOBS_MAX).map(row).collect();
        table(out, "waiting", &["Job", "Name", "User", "Reason", "Since#"], rows);
        more_jobs(out, waiting.len(), JOBS_MAX);
    }
    if !over.is_empty() {
        html!(out, "<h2>Ended <small>the newest of {}</small></h2>", over.len());
        let rows = newest_first(&over).into_iter().take(ENDED_MAX).map(ended_row).collect();
        table(out, "ended", &ENDED_COLUMNS, rows);
        html!(out, "<p><a href='/jobs'>All jobs</a></p>");
    }
}

fn more_jobs(out: &mut Html, count: usize, shown: usize) {
    if count > shown {
        html!(out, "<p class='soft'>{} more: <a href='/jobs'>all jobs</a></p>", count - shown);
    }
}

/// The columns of a table of ended jobs.
pub(super) const ENDED_COLUMNS: [&str; 8] =
    ["Job", "Name", "User", "State", "Ended", "Took#", "Preempted", "Why"];

pub(super) fn newest_first<'a>(jobs: &[&'a Job]) -> Vec<&'a Job> {
    let mut jobs = jobs.to_vec();
    jobs.sort_by_key(|job| std::cmp::Reverse((job.ended_ms, job.submitted_ms)));
    jobs
}

pub(super) fn ended_row(job: &Job) -> Vec<Cell> {
    let mut state = Html::new();
    html!(state, "{}", chip(job.display_state()));
    let ended = if job.has_ended() { output::time(job.ended_ms) } else { String::new() };
    let elapsed = if job.has_ended() {
        output::took(job.ended_ms.saturating_sub(job.submitted_ms))
    } else {
        String::new()
    };
    let (preempted, why) = (preempted::short_summary(job), one_line(&job.why));
    let more = [
        Cell("", state),
        cell("flat", &ended),
        number_cell(elapsed),
        cell("", &preempted),
        cell("wide", &why),
    ];
    job_cells(job).into_iter().chain(more).collect()
}

fn policy_section(out: &mut Html, all: &Schedulers) {
    let Some(name) = &all.scheduler else { return };
    html!(out, "<h2>Scheduler <small>{}", name);
    if let Some(shadow) = &all.shadow {
        html!(out, ", shadow: {}", shadow);
    }
    html!(out, "</small></h2>");
    if let Some(deciding) = &all.deciding {
        html!(out, "<p class='soft'>{}</p>", deciding.describe());
    }
    let in_use = all.policies.iter().filter(|policy| policy.in_use);
    let rows: Vec<Vec<Cell>> = in_use
        .flat_map(|policy| policy.parameters.iter().map(move |own| (policy, own)))
        .map(|(policy, own)| {
            let key = format!("{}.{}", policy.section, own.key);
            let default = if own.value == own.default { "" } else { own.default.as_str() };
            vec![cell("id", &key), number_cell(&own.value), number_cell(default), cell("wide", &own.about)]
        })
        .collect();
    if rows.is_empty() {
        html!(out, "<p class='soft'>It has no parameters.</p>");
        return;
    }
    html!(out, "<details id='parameters'><summary>{} parameters</summary>", rows.len());
    table(out, "parameter-table", &["Parameter", "Value#", "Default#", "Description"], rows);
    html!(out, "</details>");
}
