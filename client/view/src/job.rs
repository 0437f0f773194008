//! Describes a job.

use crate::{output, preempted};
use client::model::Job;

/// Returns the properties of a job as rows of a table.
pub fn facts(job: &Job) -> Vec<(&'static str, String)> {
    let why = if job.why.is_empty() { String::new() } else { format!(": {}", job.why) };
    let mut rows = vec![
        ("job", format!("{} ({})", job.job, job.name)),
        ("program", job.program.clone()),
        ("user", format!("{}, queue {}, priority {}", job.user, job.queue, job.priority)),
        ("state", format!("{}{why}", job.display_state())),
        ("submitted", output::utc(job.submitted_ms)),
    ];
    if job.has_ended() {
        rows.push(("took", output::took(job.ended_ms.saturating_sub(job.submitted_ms))));
    }
    rows.extend([("maps", job.maps.describe()), ("reduces", job.reduces.describe())]);
    rows.extend(job.locality().map(|words| ("locality", words)));
    rows.extend(preempted::summary(job).map(|words| ("preempted", words)));
    if job.partial {
        rows.push(("files", format!("visible only to {} and admins", job.user)));
    } else {
        let more = if job.more_inputs > 0 { format!(" and {} more", job.more_inputs) } else { String::new() };
        rows.push(("input", job.inputs.join(" ") + &more));
        rows.push(("output", if job.output.is_empty() { "none".into() } else { job.output.clone() }));
    }
    rows
}
