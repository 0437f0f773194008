//! `/jobs`: all jobs that the JobTracker remembers, newest first.

use super::{
    Frame,
    cluster::{ENDED_COLUMNS, ended_row},
    error_note, page_of, pager, table,
};
use client::model::{self, Job};
use sim::{html, report::html::Html};
use view::status_cache::Overview;

/// Number of jobs per page.
const PAGE_JOBS: usize = 100;

pub(crate) fn page(all: &Overview, page: usize) -> Frame {
    let mut main = Html::new();
    html!(main, "<h1>Jobs</h1>");
    match &all.jobs {
        Err(error) => error_note(&mut main, error),
        Ok(jobs) if jobs.is_empty() => html!(main, "<p class='soft'>No jobs have been submitted yet.</p>"),
        Ok(jobs) => list(&mut main, jobs, page),
    }
    Frame::new("Jobs", "/jobs", true, main)
}

fn list(out: &mut Html, jobs: &[Job], page: usize) {
    let mut jobs: Vec<&Job> = jobs.iter().collect();
    jobs.sort_by_key(|job| std::cmp::Reverse(job.submitted_ms));
    let forgotten = model::has_forgotten(jobs.iter().copied());
    let (shown, place) = page_of(&jobs, page, PAGE_JOBS);
    table(out, "jobs", &ENDED_COLUMNS, shown.iter().map(|job| ended_row(job)).collect());
    pager(out, place, "/jobs");
    if forgotten {
        html!(
            out,
            "<p class='soft'>Some ended jobs are no longer in memory. Their histories are kept longer: open <code>/job/job_N</code>.</p>"
        );
    }
}
