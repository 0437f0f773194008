//! `mrctl history --figures`: a job's figures, or those of all jobs that are over, from histories, by the code that also counts for
//! the simulator. What users were promised is what the policy in use says of them.

use super::{
    scheduling::{Policy, Schedulers},
    wire::JobTracker,
};
use crate::output;
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use sim::{JobFigures, Promise, Span, replay, report, workload::history};
use std::{collections::BTreeMap, process::ExitCode};

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
    let users = promises(jobs.iter().map(|job| job.user.as_str()), &schedulers);
    let name = schedulers.scheduler.clone().unwrap_or_default();
    let comparison = replay::as_it_was(history::read_texts(&texts, users)?, &name)?;
    let shares = &comparison.runs[0][0].metrics.shares;
    let (lacking, unfair) = (shares.dissatisfaction(), shares.fairness());
    let table = report::of_groups(&comparison, 0);
    if as_json {
        let row = |cells: &Vec<String>| -> Value {
            table
                .head
                .iter()
                .cloned()
                .zip(cells.iter().cloned().map(Value::from))
                .collect::<Map<_, _>>()
                .into()
        };
        output::json(&json!({
            "scheduler": name,
            "groups": table.rows.iter().map(row).collect::<Vec<_>>(),
            "dissatisfaction": lacking,
            "fairness": unfair,
            "deciding": schedulers.deciding,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(table.text().trim_end())?;
    output::line(format!(
        "dissatisfaction {lacking:.2}, fairness {unfair:.2} (lower is better; mean while anybody had work)"
    ))?;
    if let Some(deciding) = schedulers.deciding {
        output::line(format!("{name} was {}", deciding.words()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the policies in use say of each user: `pools.NAME.min_maps` of fair, `users.NAME.weight` of coshh; a minimum is of both kinds of
/// slots together.
fn promises<'a>(users: impl Iterator<Item = &'a str>, schedulers: &Schedulers) -> Vec<(String, Promise)> {
    let policies = schedulers.policies.iter().filter(|policy| policy.in_use);
    let said: BTreeMap<&str, f64> = policies.flat_map(said).collect();
    let promise = |user: &str| {
        let of = |what: &str| {
            let keys =
                [user, "default"].map(|name| ["pools", "users"].map(|kind| format!("{kind}.{name}.{what}")));
            keys.iter().flatten().find_map(|key| said.get(key.as_str()).copied())
        };
        let min_share = of("min_maps").unwrap_or(0.0) + of("min_reduces").unwrap_or(0.0);
        Promise { min_share, weight: of("weight").unwrap_or(1.0) }
    };
    users.map(|user| (user.to_owned(), promise(user))).collect::<BTreeMap<_, _>>().into_iter().collect()
}

fn said(policy: &Policy) -> impl Iterator<Item = (&str, f64)> {
    policy.parameters.iter().filter_map(|own| Some((own.key.as_str(), own.value.parse().ok()?)))
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
        "reduce_wait_s": job.reduce_wait().as_secs_f64(),
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
        "recovery_wait_s": recovery.mean_wait().as_secs_f64(),
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
        format!("a reduce waited {:.1} s for a slot after the maps", job.reduce_wait().as_secs_f64()),
    ];
    let taken = &job.taken;
    if taken.preemptions() + job.duplicates > 0 {
        lines.push(format!(
            "slots taken back: {} splits, {} pauses, {} kills; {} resumed, {} of them elsewhere; {} duplicates",
            taken.splits, taken.pauses, taken.kills, taken.resumes, taken.migrations, job.duplicates
        ));
    }
    let recovery = &job.recovery;
    if recovery.tasks > 0 {
        lines.push(format!(
            "lost with nodes: {} tasks ran again after {:.1} s on average, {:.1} s at most; {} of {} maps near their input",
            recovery.tasks,
            recovery.mean_wait().as_secs_f64(),
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
    use crate::job::scheduling::Parameter;

    #[test]
    fn users_are_promised_what_the_policy_in_use_says() {
        let parameter = |key: &str, value: &str| Parameter {
            key: key.into(),
            value: value.into(),
            default: String::new(),
            about: String::new(),
        };
        let parameters = vec![
            parameter("node_wait", "3s"),
            parameter("pools.ann.weight", "2"),
            parameter("pools.ann.min_maps", "4"),
            parameter("pools.ann.min_reduces", "1"),
            parameter("pools.default.min_maps", "1"),
        ];
        let policy = |in_use| Policy {
            name: "fair".into(),
            about: String::new(),
            section: "fair".into(),
            in_use,
            parameters: parameters.clone(),
        };
        let all = |in_use| Schedulers {
            scheduler: None,
            shadow: None,
            deciding: None,
            policies: vec![policy(in_use)],
        };
        let promise = |min_share, weight| Promise { min_share, weight };
        let expected = [("ann".to_owned(), promise(5.0, 2.0)), ("bob".to_owned(), promise(1.0, 1.0))];
        assert_eq!(promises(["bob", "ann", "bob"].into_iter(), &all(true)), expected);
        assert_eq!(promises(["ann"].into_iter(), &all(false)), [("ann".to_owned(), promise(0.0, 1.0))]);
    }
}
