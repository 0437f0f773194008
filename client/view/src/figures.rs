//! Describes the metrics of a job, which are computed from its history by the same code as in the
//! simulator.

use crate::output;
use anyhow::{Context, Result};
use sim::{JobFigures, Span, workload::history};

/// Computes the metrics of a job from the text of its history. Returns them as sentences.
pub(crate) fn of_text(id: &str, text: &str) -> Result<Vec<String>> {
    let metrics = history::figures(id, text)?;
    let (_, figures) = metrics.jobs().next().with_context(|| format!("the history of {id} is empty"))?;
    Ok(describe(figures))
}

/// Describes the metrics of a job as sentences.
pub fn describe(job: &JobFigures) -> Vec<String> {
    let known = |span: Span| format!("{:.2} s", span.as_secs_f64());
    let span = |span: Option<Span>| span.map_or("-".to_owned(), known);
    let mut lines = vec![
        format!(
            "completion time {}: {} until the first map started, then {}",
            span(job.makespan()),
            span(job.waiting()),
            span(job.execution())
        ),
        format!(
            "slot time: {} of map slots, {} of reduce slots; {} of it was lost, after reading {}",
            known(job.held.map),
            known(job.held.reduce),
            known(job.lost),
            output::human(job.lost_bytes)
        ),
        format!(
            "map attempts: {} node-local, {} rack-local, {} off-rack",
            job.near[0], job.near[1], job.near[2]
        ),
    ];
    if let Some(waited) = job.reduce_wait() {
        lines.push(format!("reduces waited {} for a slot after the last map, on average", known(waited)));
    }
    let taken = &job.preemption;
    if taken.preemptions() > 0 {
        lines.push(format!(
            "preempted: {} split, {} paused, {} killed; {} resumed, {} of them on another node",
            taken.splits, taken.pauses, taken.kills, taken.resumes, taken.migrations
        ));
    }
    if job.speculative_attempts > 0 {
        lines.push(format!("speculative attempts: {}", job.speculative_attempts));
    }
    let recovery = &job.recovery;
    if let Some(waited) = recovery.mean_wait() {
        lines.push(format!(
            "run again after a node was lost: {}, started {} after the loss on average, {} at most; {} of {} maps node-local",
            output::count(recovery.tasks.into(), "task"),
            known(waited),
            known(recovery.longest),
            recovery.local,
            recovery.maps
        ));
    }
    lines
}
