//! `mrctl history --figures`: metrics of one job or of all ended jobs, computed from histories by
//! the same code as in the simulator. Fairness compares the slots of each user with the fair shares
//! in the histories, which the policy recorded when the jobs ran.

use crate::output::{self, SimulationProgress};
use anyhow::{Context, Result};
use client::JobTracker;
use serde_json::{Value, json};
use sim::{JobFigures, Span, experiment::TimesAlone, replay, report, workload::history};
use std::{collections::BTreeSet, process::ExitCode, time::Duration};

/// The real time that the simulation of jobs alone may take.
const TIME_LIMIT: Duration = Duration::from_mins(30);

/// Returns the complete history of a job.
async fn read_history(tracker: &JobTracker, id: &str) -> Result<String> {
    let mut text = String::new();
    let add = |lines: &str| {
        text.push_str(lines);
        anyhow::Ok(())
    };
    tracker.history(id, add).await?;
    Ok(text)
}

/// Prints the metrics of all ended jobs that the JobTracker remembers.
pub(crate) async fn print_all_jobs(tracker: &JobTracker, as_json: bool) -> Result<ExitCode> {
    let mut jobs = tracker.jobs(true).await?;
    jobs.retain(client::model::Job::has_ended);
    jobs.sort_by_key(|job| job.submitted_ms);
    if jobs.is_empty() {
        if as_json {
            output::json(&json!({ "groups": [] }))?;
        } else {
            output::line("no job has ended yet")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut texts = Vec::new();
    for job in &jobs {
        texts.push((job.job.clone(), read_history(tracker, &job.job).await?));
    }
    let schedulers = tracker.schedulers().await?;
    let name = schedulers.scheduler.clone().unwrap_or_default();
    let history = history::read_texts(&texts)?;
    let unknown_shares = history.unknown_shares;
    let runs = SimulationProgress::new();
    let comparison = replay::as_it_was(history, &name, TIME_LIMIT, &|run| runs.report(run))?;
    drop(runs);
    if comparison.alone.contains(&TimesAlone::Stopped) {
        let minutes = TIME_LIMIT.as_secs() / 60;
        eprintln!("mrctl: slowdowns are left out: simulating each job alone takes over {minutes} minutes");
    }
    let shares = &comparison.runs[0][0].metrics.shares;
    let users: BTreeSet<&str> = jobs.iter().map(|job| job.user.as_str()).collect();
    let shares = shares_of((shares.dissatisfaction(), shares.fairness()), users.len(), unknown_shares);
    let table = report::of_groups(&comparison, 0);
    if as_json {
        let known = shares.as_ref().ok();
        output::json(&json!({
            "scheduler": name,
            "groups": with_underscores_in_keys(table.json()),
            "dissatisfaction": known.map(|shares| shares.0),
            "fairness": known.map(|shares| shares.1),
            "not_counted": shares.as_ref().err(),
            "deciding": schedulers.deciding,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(table.text().trim_end())?;
    output::line(describe_shares(&shares))?;
    if let Some(deciding) = schedulers.deciding {
        output::line(format!("{name} since the JobTracker started: {}", deciding.describe()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces the spaces in column names by underscores, as in other JSON output: `reduce wait s`
/// becomes `reduce_wait_s`.
fn with_underscores_in_keys(rows: Value) -> Value {
    let Value::Array(rows) = rows else { return rows };
    let plain = |row: Value| match row {
        Value::Object(row) => row.into_iter().map(|(key, value)| (key.replace(' ', "_"), value)).collect(),
        other => other,
    };
    rows.into_iter().map(plain).collect()
}

/// Returns `shares`, the dissatisfaction and fairness, or why they are omitted. They are omitted
/// for a single user who always had the fair share, because both are always 0 then.
fn shares_of(
    shares: (f64, f64),
    users: usize,
    unknown_shares: Option<history::UnknownShares>,
) -> Result<(f64, f64), String> {
    match unknown_shares {
        Some(why) => Err(why.to_string()),
        None if users < 2 && shares.0 <= 0.0 => Err("all jobs belong to one user".to_owned()),
        None => Ok(shares),
    }
}

fn describe_shares(shares: &Result<(f64, f64), String>) -> String {
    match shares {
        Ok((lacking, unfair)) => format!(
            "dissatisfaction {lacking:.2}, fairness {unfair:.2} (as defined by COSHH: 0 is best; mean over the time in which any user had jobs)"
        ),
        Err(why) => format!("the COSHH metrics dissatisfaction and fairness are left out: {why}"),
    }
}

pub(crate) async fn print_job(tracker: &JobTracker, id: &str, as_json: bool) -> Result<ExitCode> {
    let text = read_history(tracker, id).await?;
    let metrics = history::figures(id, &text)?;
    let (_, figures) = metrics.jobs().next().with_context(|| format!("the history of {id} is empty"))?;
    if as_json {
        output::json(&figures_json(id, figures))?;
    } else {
        for line in view::figures::describe(figures) {
            output::line(line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn seconds(span: Option<Span>) -> Option<f64> {
    span.map(Span::as_secs_f64)
}

fn figures_json(id: &str, job: &JobFigures) -> Value {
    let (taken, recovery) = (&job.preemption, &job.recovery);
    json!({
        "job": id,
        "completion_s": seconds(job.makespan()),
        "waiting_s": seconds(job.waiting()),
        "execution_s": seconds(job.execution()),
        "reduce_wait_s": seconds(job.reduce_wait()),
        "map_slot_s": job.held.map.as_secs_f64(),
        "reduce_slot_s": job.held.reduce.as_secs_f64(),
        "maps_node_local": job.near[0],
        "maps_rack_local": job.near[1],
        "maps_off_rack": job.near[2],
        "splits": taken.splits,
        "pauses": taken.pauses,
        "kills": taken.kills,
        "resumes": taken.resumes,
        "migrations": taken.migrations,
        "speculative_attempts": job.speculative_attempts,
        "lost_slot_s": job.lost.as_secs_f64(),
        "lost_bytes": job.lost_bytes,
        "recovered_tasks": recovery.tasks,
        "recovered_maps": recovery.maps,
        "recovered_maps_local": recovery.local,
        "recovery_wait_s": seconds(recovery.mean_wait()),
        "recovery_longest_s": recovery.mean_wait().map(|_| recovery.longest.as_secs_f64()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meaningless_shares_are_omitted_with_the_reason() {
        let several = shares_of((0.25, 1.0), 2, Some(history::UnknownShares::Several));
        assert_eq!(
            describe_shares(&several),
            "the COSHH metrics dissatisfaction and fairness are left out: the jobs ran under policies with different minimum shares"
        );
        let alone = shares_of((0.0, 0.0), 1, None);
        assert_eq!(
            describe_shares(&alone),
            "the COSHH metrics dissatisfaction and fairness are left out: all jobs belong to one user"
        );
        assert_eq!(shares_of((0.25, 0.0), 1, None), Ok((0.25, 0.0)), "one user who lacked slots");
        let both = shares_of((0.25, 1.0), 2, None);
        assert!(
            describe_shares(&both)
                .starts_with("dissatisfaction 0.25, fairness 1.00 (as defined by COSHH: 0 is best;")
        );
    }

    #[test]
    fn keys_of_groups_have_no_spaces() {
        let rows = json!([{ "group": "all", "reduce wait s": 1.5, "worst slowdown": null }]);
        let plain = json!([{ "group": "all", "reduce_wait_s": 1.5, "worst_slowdown": null }]);
        assert_eq!(with_underscores_in_keys(rows), plain);
    }
}
