//! Parses scenario files. Errors contain the line of the file.

use super::{Daemons, JobMark, JobRef, NodeRef, Scenario, ScenarioAction, Step, When};
use crate::{
    fault,
    toml_file::{self, line_at},
};
use mrcore::{Span, ids::JobId};
use serde::Deserialize;
use toml::Spanned;

/// A scenario file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {what}")]
pub struct ScenarioFileError {
    /// Line of the file, counted from 1.
    pub line: usize,
    /// What is wrong, and what is expected.
    pub what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    step: Vec<Spanned<StepRecord>>,
    #[serde(default)]
    fault: Vec<Spanned<fault::FaultRecord>>,
}

/// A step as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRecord {
    at: Option<String>,
    when: Option<String>,
    after: Option<String>,
    #[serde(rename = "do")]
    verb: String,
    node: Option<String>,
    daemon: Option<String>,
    from: Option<String>,
    #[serde(default)]
    one_way: bool,
    block: Option<String>,
    #[serde(default)]
    truncate: bool,
    share: Option<f64>,
    leave: Option<String>,
    #[serde(rename = "for")]
    lasts: Option<String>,
}

/// Parses a scenario file.
pub fn parse(text: &str) -> Result<Scenario, ScenarioFileError> {
    let file: File = toml_file::parse(text).map_err(|(line, what)| ScenarioFileError { line, what })?;
    let mut scenario = Scenario::default();
    for record in file.step {
        let line = line_at(text, record.span().start);
        let step = parse_step(line, record.get_ref()).map_err(|what| ScenarioFileError { line, what })?;
        if scenario.steps.is_empty() && step.action.node() == Some(&NodeRef::Same) {
            let what =
                "node = \"same\" means the node of the previous step, but this is the first step".into();
            return Err(ScenarioFileError { line, what });
        }
        scenario.steps.push(step);
    }
    for fault in file.fault {
        let line = line_at(text, fault.span().start);
        let fault = fault.get_ref().read().map_err(|what| ScenarioFileError { line, what })?;
        scenario.faults.push(fault);
        scenario.fault_lines.push(line);
    }
    Ok(scenario)
}

fn parse_step(line: usize, record: &StepRecord) -> Result<Step, String> {
    let when = match (&record.at, &record.when) {
        (Some(at), None) => When::At(span("at", at)?),
        (None, Some(when)) => parse_condition(when)?,
        (None, None) => {
            return Err("`at` or `when` is missing: write at = \"5s\", or when = \"job 1 maps 40%\"".into());
        }
        (Some(_), Some(_)) => return Err("`at` and `when`: a step can have only one of the two".into()),
    };
    let after = record.after.as_deref().map_or(Ok(Span(0)), |text| span("after", text))?;
    let lasts = record.lasts.as_deref().map(|text| span("for", text)).transpose()?;
    let action = parse_action(record)?;
    let stays = matches!(
        action,
        ScenarioAction::Cont { .. }
            | ScenarioAction::Restart { .. }
            | ScenarioAction::Heal { .. }
            | ScenarioAction::Corrupt { .. }
    );
    if stays && lasts.is_some() {
        return Err(format!("for: {} cannot be undone after a time", action.verb()));
    }
    if matches!(action, ScenarioAction::Slow { .. }) && lasts.is_none() {
        return Err("slow: for is missing: write for = \"30s\"".into());
    }
    Ok(Step { line, when, after, action, lasts })
}

fn parse_action(record: &StepRecord) -> Result<ScenarioAction, String> {
    let node = || {
        let text = record
            .node
            .as_deref()
            .ok_or_else(|| format!("{}: node is missing: write node = \"node2\"", record.verb))?;
        parse_node(text)
    };
    let daemons = match record.daemon.as_deref() {
        None => Daemons::Both,
        Some("datanode") => Daemons::Datanode,
        Some("tasktracker") => Daemons::Tasktracker,
        Some(other) => return Err(format!("daemon = {other:?}: must be datanode or tasktracker")),
    };
    let action = match record.verb.as_str() {
        "kill" => ScenarioAction::Kill { node: node()?, daemons },
        "stop" => ScenarioAction::Stop { node: node()?, daemons },
        "cont" => ScenarioAction::Cont { node: node()?, daemons },
        "restart" => ScenarioAction::Restart { node: node()?, daemons },
        "partition" => {
            let from =
                record.from.as_deref().ok_or("partition: from is missing: write from = \"jobtracker\"")?;
            ScenarioAction::Partition { from: node()?, to: parse_node(from)?, one_way: record.one_way }
        }
        "heal" => ScenarioAction::Heal { node: record.node.as_deref().map(parse_node).transpose()? },
        "corrupt" => {
            ScenarioAction::Corrupt { node: node()?, block: parse_block(record)?, cut: record.truncate }
        }
        "slow" => {
            let share = record.share.unwrap_or(0.2);
            if !(share > 0.0 && share < 1.0) {
                return Err(format!(
                    "share = {share}: must be the fraction of time that the daemons run, between 0 and 1"
                ));
            }
            ScenarioAction::Slow { node: node()?, share }
        }
        "fill-disk" => {
            let leave = record.leave.as_deref().map_or(Ok(0), bytes)?;
            ScenarioAction::FillDisk { node: node()?, leave }
        }
        other => {
            return Err(format!(
                "do = {other:?}: must be kill, stop, cont, restart, partition, heal, corrupt, slow or fill-disk"
            ));
        }
    };
    validate(record, &action)?;
    let links = matches!(action, ScenarioAction::Partition { .. } | ScenarioAction::Heal { .. });
    if !links && action.node() == Some(&NodeRef::Named("master".into())) {
        return Err(format!("{}: the master has two daemons: write namenode or jobtracker", action.verb()));
    }
    Ok(action)
}

/// Rejects keys that do not apply to the action.
fn validate(record: &StepRecord, action: &ScenarioAction) -> Result<(), String> {
    let by_daemon = matches!(
        action,
        ScenarioAction::Kill { .. }
            | ScenarioAction::Stop { .. }
            | ScenarioAction::Cont { .. }
            | ScenarioAction::Restart { .. }
    );
    let partition = matches!(action, ScenarioAction::Partition { .. });
    let corrupt = matches!(action, ScenarioAction::Corrupt { .. });
    let used = [
        ("daemon", record.daemon.is_some(), by_daemon),
        ("from", record.from.is_some(), partition),
        ("one_way", record.one_way, partition),
        ("block", record.block.is_some(), corrupt),
        ("truncate", record.truncate, corrupt),
        ("share", record.share.is_some(), matches!(action, ScenarioAction::Slow { .. })),
        ("leave", record.leave.is_some(), matches!(action, ScenarioAction::FillDisk { .. })),
    ];
    match used.iter().find(|(_, given, takes)| *given && !takes) {
        Some((word, ..)) => Err(format!("{} takes no {word}", action.verb())),
        None => Ok(()),
    }
}

fn parse_node(text: &str) -> Result<NodeRef, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["any"] => Ok(NodeRef::Any),
        ["same"] => Ok(NodeRef::Same),
        ["any", "running", ref job @ ..] => Ok(NodeRef::Running(job_ref(job, text)?)),
        [name] => Ok(NodeRef::Named(name.to_owned())),
        _ => Err(format!("{text:?} is not a node: write a name, \"any\", \"any running job 1\" or \"same\"")),
    }
}

fn job_ref(words: &[&str], text: &str) -> Result<JobRef, String> {
    let bad = || {
        format!(
            "{text:?} is not a job: write \"job 1\" for the first active or submitted job, or an id like job_7"
        )
    };
    match words {
        ["job", number] => number.parse().ok().filter(|number| *number > 0).map(JobRef::Nth).ok_or_else(bad),
        [id] => id.parse::<JobId>().map(|id| JobRef::Number(id.0.into())).map_err(|_| bad()),
        _ => Err(bad()),
    }
}

/// Parses `job 1 maps 40%`, `job 1 reduces 10%`, `job 1 submitted` and `job 1 ended`. The words "is",
/// "has" and "reach" are ignored. Files that are older than the word "ended" have "finished" or "over".
fn parse_condition(text: &str) -> Result<When, String> {
    let bad = || {
        format!(
            "when = {text:?}: write \"job 1 maps 40%\", \"job 1 reduces 10%\", \"job 1 submitted\" or \"job 1 ended\""
        )
    };
    let words: Vec<&str> =
        text.split_whitespace().filter(|word| !matches!(*word, "is" | "has" | "reach")).collect();
    let length = if words.first() == Some(&"job") { 2 } else { 1 };
    let (job, mark) = words.split_at_checked(length).ok_or_else(bad)?;
    let mark = match *mark {
        ["submitted"] => JobMark::Submitted,
        ["ended" | "finished" | "over"] => JobMark::Ended,
        [phase @ ("maps" | "reduces"), part] => {
            let part = part.strip_suffix('%').and_then(|part| part.parse::<f64>().ok()).ok_or_else(bad)?;
            if !(0.0..=100.0).contains(&part) {
                return Err(format!("when = {text:?}: a percentage must be from 0% to 100%"));
            }
            if phase == "maps" { JobMark::Maps(part / 100.0) } else { JobMark::Reduces(part / 100.0) }
        }
        _ => return Err(bad()),
    };
    Ok(When::Job(job_ref(job, text)?, mark))
}

fn parse_block(record: &StepRecord) -> Result<Option<String>, String> {
    let Some(text) = &record.block else { return Ok(None) };
    let number = text.strip_prefix("blk_").unwrap_or(text);
    match number.parse::<u64>() {
        Ok(number) => Ok(Some(format!("blk_{number}"))),
        Err(_) => {
            Err(format!("block = {text:?}: must be blk_NUMBER, as listed by `mrctl fs stat --blocks FILE`"))
        }
    }
}

/// Splits a number and its unit.
fn split_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse::<f64>().ok().filter(|number| number.is_finite())?, unit.trim()))
}

fn span(key: &str, text: &str) -> Result<Span, String> {
    let bad = || format!("{key} = {text:?} is not a time: write \"500ms\", \"5s\" or \"2m\"");
    let (number, unit) = split_unit(text).ok_or_else(bad)?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "s" => number,
        "m" | "min" => number * 60.0,
        _ => return Err(bad()),
    };
    Ok(Span((seconds * 1e6) as u64))
}

fn bytes(text: &str) -> Result<u64, String> {
    let bad = || format!("leave = {text:?} is not a size: write \"64KiB\" or \"10MiB\"");
    let (number, unit) = split_unit(text).ok_or_else(bad)?;
    let factor = match unit {
        "" | "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(bad()),
    };
    // The conversion to u64 would replace a larger number by the maximum.
    if number * factor >= u64::MAX as f64 {
        return Err(format!("leave = {text:?} is too large: the maximum is just under 16EiB"));
    }
    Ok((number * factor) as u64)
}
