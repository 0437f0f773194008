//! `mrctl history --figures`: a job's figures, or those of all jobs that are over, from histories, by the code that also counts for
//! the simulator. What users were promised is what the policy of the time said, as each history has it.

use super::wire::JobTracker;
use crate::output;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use sim::{JobFigures, Span, replay, report, workload::history};
use std::process::ExitCode;

/// The whole history of a job.
async fn read(tracker: &JobTracker, id: &str) -> Result<String> {
    let mut text = String::new();
    let add = |lines: &str| {
        text.push_str(lines);
        Ok(())
    };
    tracker.history(id, add).await?;
    Ok(text)
}

/// Of all jobs that are over and that the JobTracker remembers.
pub(crate) async fn of_all(tracker: &JobTracker, as_json: bool) -> Result<ExitCode> {
    let mut jobs = tracker.jobs(true).await?;
    jobs.retain(super::model::Job::is_over);
    jobs.sort_by_key(|job| job.submitted_ms);
    if jobs.is_empty() {
        output::line(if as_json { "{}" } else { "no job is over yet" })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut texts = Vec::new();
    for job in &jobs {
        texts.push((job.job.clone(), read(tracker, &job.job).await?));
    }
    let schedulers = tracker.schedulers().await?;
    let name = schedulers.scheduler.clone().unwrap_or_default();
    let history = history::read_texts(&texts)?;
    let unsaid = history.unsaid;
    let comparison = replay::as_it_was(history, &name)?;
    let shares = &comparison.runs[0][0].metrics.shares;
    let shares = unsaid.is_none().then(|| (shares.dissatisfaction(), shares.fairness()));
    let table = report::of_groups(&comparison, 0);
    if as_json {
        output::json(&json!({
            "scheduler": name,
            "groups": table.json(),
            "dissatisfaction": shares.map(|shares| shares.0),
            "fairness": shares.map(|shares| shares.1),
            "not_counted": unsaid.map(|unsaid| unsaid.to_string()),
            "deciding": schedulers.deciding,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(table.text().trim_end())?;
    output::line(against_promises(shares, unsaid))?;
    if let Some(deciding) = schedulers.deciding {
        output::line(format!("{name} was {}", deciding.words()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn against_promises(shares: Option<(f64, f64)>, unsaid: Option<history::Unsaid>) -> String {
    match (shares, unsaid) {
        (Some((lacking, unfair)), _) => format!(
            "dissatisfaction {lacking:.2}, fairness {unfair:.2} (lower is better; mean while anybody had work)"
        ),
        (None, why) => {
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            format!("dissatisfaction and fairness are left out{why}")
        }
    }
}

/// What follows from the text of a job's history, in words.
pub(crate) fn of_text(id: &str, text: &str) -> Result<Vec<String>> {
    let metrics = history::figures(id, text)?;
    let (_, figures) = metrics.jobs().next().with_context(|| format!("the history of {id} is empty"))?;
    Ok(words(figures))
}

pub(crate) async fn show(tracker: &JobTracker, id: &str, as_json: bool) -> Result<ExitCode> {
    let text = read(tracker, id).await?;
    let metrics = history::figures(id, &text)?;
    let (_, figures) = metrics.jobs().next().with_context(|| format!("the history of {id} is empty"))?;
    if as_json {
        output::json(&numbers(figures))?;
    } else {
        for line in words(figures) {
            output::line(line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn seconds(span: Option<Span>) -> Option<f64> {
    span.map(Span::as_secs_f64)
}

fn numbers(job: &JobFigures) -> Value {
    let (taken, recovery) = (&job.taken, &job.recovery);
    json!({
        "makespan_s": seconds(job.makespan()),
        "waiting_s": seconds(job.waiting()),
        "execution_s": seconds(job.execution()),
        "reduce_wait_s": seconds(job.reduce_wait()),
        "map_slot_s": job.held.map.as_secs_f64(),
        "reduce_slot_s": job.held.reduce.as_secs_f64(),
        "maps_node_local": job.near[0],
        "maps_rack_local": job.near[1],
        "maps_elsewhere": job.near[2],
        "splits": taken.splits,
        "pauses": taken.pauses,
        "kills": taken.kills,
        "resumes": taken.resumes,
        "migrations": taken.migrations,
        "duplicates": job.duplicates,
        "lost_slot_s": job.lost.as_secs_f64(),
        "lost_bytes": job.lost_bytes,
        "recovered_tasks": recovery.tasks,
        "recovered_maps": recovery.maps,
        "recovered_maps_local": recovery.local,
        "recovery_wait_s": seconds(recovery.mean_wait()),
        "recovery_longest_s": recovery.longest.as_secs_f64(),
    })
}

fn words(job: &JobFigures) -> Vec<String> {
    let span =
        |span: Option<Span>| span.map_or("-".to_owned(), |span| format!("{:.1} s", span.as_secs_f64()));
    let mut lines = vec![
        format!(
            "makespan {}: waited {} for its first map, then took {}",
            span(job.makespan()),
            span(job.waiting()),
            span(job.execution())
        ),
        format!(
            "slots held: {:.1} s of map slots, {:.1} s of reduce slots; {:.1} s and {} in vain",
            job.held.map.as_secs_f64(),
            job.held.reduce.as_secs_f64(),
            job.lost.as_secs_f64(),
            output::human(job.lost_bytes)
        ),
        format!(
            "maps near their input: {} on its node, {} in its rack, {} elsewhere",
            job.near[0], job.near[1], job.near[2]
        ),
    ];
    if let Some(waited) = job.reduce_wait() {
        let waited = waited.as_secs_f64();
        lines.push(format!("a reduce waited {waited:.1} s for a slot after the maps, on average"));
    }
    let taken = &job.taken;
    if taken.preemptions() + job.duplicates > 0 {
        lines.push(format!(
            "slots taken back: {} splits, {} pauses, {} kills; {} resumed, {} of them elsewhere; {} duplicates",
            taken.splits, taken.pauses, taken.kills, taken.resumes, taken.migrations, job.duplicates
        ));
    }
    let recovery = &job.recovery;
    if let Some(waited) = recovery.mean_wait() {
        lines.push(format!(
            "lost with nodes: {} tasks ran again after {:.1} s on average, {:.1} s at most; {} of {} maps near their input",
            recovery.tasks,
            waited.as_secs_f64(),
            recovery.longest.as_secs_f64(),
            recovery.local,
            recovery.maps
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_is_told() {
        assert_eq!(
            against_promises(None, Some(history::Unsaid::Several)),
            "dissatisfaction and fairness are left out: the jobs ran under policies that promised users different things"
        );
        assert!(
            against_promises(Some((0.25, 1.0)), None).starts_with("dissatisfaction 0.25, fairness 1.00 (")
        );
    }
}
