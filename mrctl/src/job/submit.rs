//! `mrctl submit`: checks the arguments, uploads files that the tasks need, sends the job, and
//! follows it.

use super::program::{self, is_builtin, short_name};
use crate::output::{self, Usage};
use anyhow::{Result, bail, ensure};
use clap::builder::NonEmptyStringValueParser;
use client::{Error, Program, StagingFolder, Submission};
use clusters::locate::Target;
use dfs_client::path::DfsPath;
use engine::{registry, streaming};
use mrlib_api::settings::{self, ENGINE_SETTINGS};
use std::{
    collections::BTreeMap,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
};
use view::follow;

/// Submit a job, and follow it
///
/// PROGRAM is a built-in program (see `mrctl programs`), an executable built on mrlib, or
/// `streaming` with --mapper and --reducer. The command follows the job until it ends; with
/// --detach, or after Ctrl-C, the job continues without it.
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub(crate) struct Args {
    /// A built-in program, an executable, or `streaming`
    program: String,
    /// Files, folders (with their subfolders) or patterns to read
    #[arg(long, value_name = "PATH", num_args = 1..)]
    input: Vec<String>,
    /// Read folders without their subfolders
    #[arg(long)]
    no_recursive: bool,
    /// Folder to create for the output
    #[arg(long, value_name = "PATH")]
    output: Option<String>,
    /// Discard the output of the job; its counters are kept
    #[arg(long, conflicts_with = "output")]
    no_output: bool,
    /// Number of reduces [default: 1, or 0 for a program without a reducer]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    reduces: Option<u32>,
    /// Name of the job [default: the name of the program]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// Submit as this user
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    user: Option<String>,
    /// Queue for the scheduler
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    queue: String,
    /// Job priority
    #[arg(long, default_value = "normal", value_parser = ["very-low", "low", "normal", "high", "very-high"])]
    priority: String,
    /// A setting of the program or the engine; unknown names are refused
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_setting)]
    conf: Vec<(String, String)>,
    /// A local file that every task finds in its working folder; may be repeated
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// streaming: the mapper
    #[arg(long, value_name = "CMD")]
    mapper: Option<String>,
    /// streaming: the combiner
    #[arg(long, value_name = "CMD")]
    combiner: Option<String>,
    /// streaming: the reducer
    #[arg(long, value_name = "CMD")]
    reducer: Option<String>,
    /// Print the job ID and exit
    #[arg(long)]
    detach: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn help() -> String {
    format!(
        "{EXAMPLES}Settings of every job (--conf NAME=VALUE):\n{}\n{ABOUT_SETTINGS}",
        settings::help(ENGINE_SETTINGS)
    )
}

const EXAMPLES: &str = "\
Examples:
  mrctl submit wordcount --input /books --output /counts --reduces 2
  mrctl submit grep --conf grep.pattern=slow --input '/logs/*.gz' --output /slow
  mrctl submit ./target/release/my-job --input /books --output /out \\
      --conf user.threshold=3
  mrctl submit streaming --mapper ./map.py --reducer ./reduce.py \\
      --file map.py --file reduce.py --input /books --output /out

";

const ABOUT_SETTINGS: &str = "\
`mrctl programs` lists the settings of built-in programs. Your own program
declares its settings (Job::declare_setting); it also gets all settings whose
names begin with user. Other unknown names are refused.

A folder is read with its subfolders, except files and folders whose names
begin with . or _. Files that end in .gz are decompressed. Other compressed
files, recognised by name and by first bytes, are refused; input.codec=none
reads them as they are. The job fails if a map finds that its file was replaced
or deleted after the submission; a map that has opened its file reads the old
bytes.

skip.bad.records=N allows up to N records that cannot be read, that make the
mapper return an error or panic, or that crash a streaming mapper (found by
bisection). Skipped records use up no attempts; the map restarts without them.
The counter SKIPPED_RECORDS counts them, and the log of the task names them.

The limits of a task are settings of its node (docs/guide/jobs.md), not of the
job. A task that prints more than
tasktracker.task_log_max (64MiB by default) to stdout or to stderr fails.";

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    if key.is_empty() {
        return Err("the key is empty: write KEY=VALUE".into());
    }
    Ok((key.into(), value.into()))
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let mut plan = plan(&args)?;
    let advice = plan.advice.take();
    let tracker = target.jobtracker_as(args.user.as_deref()).await?;
    let client = target.connect_as(args.user.as_deref()).await?;
    let mut staging = StagingFolder::new(&client);
    // Whether the request may have reached the JobTracker.
    let mut sent = false;
    // Use one future for the complete run: a signal that arrives between two futures would be lost.
    let mut stop = std::pin::pin!(daemon::lifecycle::end_signal());
    let submitting = async {
        let submission = prepare(&args, plan, target, &mut staging).await?;
        sent = true;
        anyhow::Ok(tracker.submit(submission).await?)
    };
    let submitted = tokio::select! {
        submitted = submitting => submitted,
        () = &mut stop => Err(Interrupted.into()),
    };
    let id = match submitted {
        Ok(id) => id,
        Err(error) => {
            // Without a reply, the JobTracker may have accepted the job. Then it needs the staged
            // files, and removes them itself.
            let no_reply = matches!(error.downcast_ref(), Some(Error::NoReply { .. }));
            if !(sent && (no_reply || error.is::<Interrupted>())) {
                staging.discard().await;
            }
            return Err(with_hint(error, &args.input));
        }
    };
    if args.detach {
        if args.json {
            output::json(&BTreeMap::from([("job", &id)]))?;
        } else {
            output::line(&id)?;
            eprintln!("mrctl: {id} submitted; follow it with `mrctl job --follow {id}`");
        }
    } else if !args.json && !std::io::stderr().is_terminal() {
        eprintln!("{id} submitted");
    }
    note_divisible(advice);
    if args.detach {
        return Ok(ExitCode::SUCCESS);
    }
    let Some(job) = follow::follow_until(&tracker, &id, args.json, stop).await? else {
        eprintln!(
            "mrctl: {id} continues; follow it with `mrctl job --follow {id}`, stop it with `mrctl kill {id}`"
        );
        return Ok(ExitCode::SUCCESS);
    };
    let skipped = job.counters.get("SKIPPED_RECORDS").copied().unwrap_or(0);
    if skipped > 0 {
        let records = output::count(skipped, "bad record");
        eprintln!("mrctl: note: {records} skipped; the logs of the tasks name them (`mrctl logs TASK`)");
    }
    if job.maps.total == 0 {
        eprintln!("mrctl: note: the input is empty, so the job had no maps");
    }
    if args.json {
        output::json(&job)?;
    } else {
        follow::summary(&job)?;
    }
    Ok(if job.state == "succeeded" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The user interrupted the submission.
#[derive(Debug, thiserror::Error)]
#[error("interrupted before the JobTracker answered: `mrctl jobs` shows whether it has accepted the job")]
struct Interrupted;

/// The parts of a job that can be prepared without a cluster.
struct SubmissionPlan {
    program: Program,
    submission: Submission,
    /// How to make the maps divisible (a preempted map can then be split), if they are not.
    advice: Option<String>,
}

/// Returns advice on how to declare the mapper divisible, or None for a built-in program, which the
/// user cannot change.
fn how_to_divide(program: &str) -> Option<String> {
    let how = match program {
        registry::STREAMING => format!("--conf {}=true", streaming::DIVISIBLE),
        _ if is_builtin(program) => return None,
        _ => "`fn divisible() -> bool { true }` in its Mapper".into(),
    };
    Some(format!(
        "maps of this job are never split, so a preempted map starts over; if the output for a record depends only on that record, declare that with \
         {how}"
    ))
}

/// Prints the advice. It applies under every policy: drains, users and the split of slow maps also
/// preempt maps.
fn note_divisible(advice: Option<String>) {
    if let Some(advice) = advice {
        eprintln!("mrctl: note: {advice}");
    }
}

/// Checks the arguments, as far as possible without a cluster.
fn plan(args: &Args) -> Result<SubmissionPlan> {
    let mut submission = Submission {
        name: args.name.clone().unwrap_or_else(|| short_name(&args.program)),
        queue: args.queue.clone(),
        priority: args.priority.clone(),
        inputs: args.input.clone(),
        output: args.output.clone().unwrap_or_default(),
        conf: conf_of(args)?,
        ..Submission::default()
    };
    let program = program::check(&args.program, &submission)?;
    let description = program.description();
    submission.reduces = args.reduces.unwrap_or(u32::from(description.reducer));
    let advised = !description.divisible && description.input != "whole" && !args.json;
    let advice = how_to_divide(&args.program).filter(|_| advised);
    check_paths(&submission, args)?;
    Ok(SubmissionPlan { program, submission, advice })
}

/// Uploads the files that the tasks need.
async fn prepare(
    args: &Args,
    plan: SubmissionPlan,
    target: &Target,
    staging: &mut StagingFolder<'_>,
) -> Result<Submission> {
    let SubmissionPlan { program, mut submission, .. } = plan;
    for file in &args.file {
        submission.files.push(staging.put(file).await?);
    }
    program.stage(&mut submission, staging, &target.cluster()?).await?;
    staging.add_to(&mut submission);
    Ok(submission)
}

/// Returns the settings of `--conf` and of flags. A setting that both give is refused, because one
/// of the values would be ignored.
fn conf_of(args: &Args) -> Result<BTreeMap<String, String>> {
    let mut conf: BTreeMap<String, String> = args.conf.iter().cloned().collect();
    let mut set = |flag: &str, key: &str, value: &str| match conf.insert(key.to_owned(), value.to_owned()) {
        None => Ok(()),
        Some(other) => {
            bail!(Usage(format!("{flag} and --conf {key}={other} exclude each other: leave out one of them")))
        }
    };
    if args.no_recursive {
        set("--no-recursive", "input.recursive", "false")?;
    }
    let streams = [
        ("--mapper", "stream.mapper", &args.mapper),
        ("--combiner", "stream.combiner", &args.combiner),
        ("--reducer", "stream.reducer", &args.reducer),
    ];
    let is_streaming = args.program == registry::STREAMING;
    for (flag, key, command) in streams {
        let Some(command) = command else { continue };
        ensure!(is_streaming, Usage(format!("{flag} is for `mrctl submit streaming`")));
        set(flag, key, command)?;
    }
    if is_streaming {
        check_stream_commands(&conf, args)?;
    }
    Ok(conf)
}

/// Checks the commands of a streaming job, from flags or from `--conf`.
fn check_stream_commands(conf: &BTreeMap<String, String>, args: &Args) -> Result<()> {
    let why = "streaming needs --mapper CMD: a program that reads and writes lines";
    ensure!(conf.contains_key("stream.mapper"), Usage(why.into()));
    let has_reducer = conf.contains_key("stream.reducer");
    if args.reduces.unwrap_or(u32::from(has_reducer)) == 0 {
        let why = "--reducer has no effect with --reduces 0: leave out one of them";
        ensure!(!has_reducer, Usage(why.into()));
        let why = "a combiner without a reducer has no effect: give --reducer CMD, or leave out --combiner";
        ensure!(!conf.contains_key("stream.combiner"), Usage(why.into()));
    }
    for name in ["mapper", "combiner", "reducer"] {
        if let Some(command) = conf.get(&format!("stream.{name}")) {
            program::check_stream(name, command, &args.file)?;
        }
    }
    Ok(())
}

/// Checks paths before anything is uploaded. Paths in the cluster are checked by the JobTracker.
fn check_paths(submission: &Submission, args: &Args) -> Result<()> {
    ensure!(
        !submission.inputs.is_empty() || args.program == "teragen",
        Usage("name the input with --input PATH".into())
    );
    ensure!(
        !submission.output.is_empty() || args.no_output,
        Usage("name a new folder for the output with --output PATH, or discard it with --no-output".into())
    );
    let program = Some(Path::new(&args.program)).filter(|_| !is_builtin(&args.program));
    let mut names: BTreeMap<_, &Path> = BTreeMap::new();
    for file in program.into_iter().chain(args.file.iter().map(PathBuf::as_path)) {
        let Some(name) = file.file_name() else { continue };
        if let Some(other) = names.insert(name, file) {
            let (other, file, name) = (other.display(), file.display(), name.display());
            bail!(Usage(format!(
                "{other} and {file} would both be {name} in the folder of a task: rename one of them"
            )));
        }
    }
    if let Some(file) = args.file.iter().find(|file| !file.exists()) {
        bail!(Usage(format!("--file {}: there is no such local file", file.display())));
    }
    for path in submission.inputs.iter().chain(Some(&submission.output).filter(|path| !path.is_empty())) {
        let plain: String = path.chars().filter(|c| !"*?[]{},".contains(*c)).collect();
        DfsPath::parse(if plain.is_empty() { path } else { &plain })?;
    }
    Ok(())
}

/// Adds advice if an input is missing in the cluster but exists as a local file.
fn with_hint(error: anyhow::Error, inputs: &[String]) -> anyhow::Error {
    let text = error.to_string();
    let missing = inputs.iter().find(|input| text.starts_with(&format!("input {input} does not exist")));
    match missing {
        Some(path) if inputs.len() > 1 && Path::new(path).exists() => {
            error.context(format!("{text}, but it exists on this machine: {}", output::QUOTING_ADVICE))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn settings_are_key_and_value() {
        assert_eq!(parse_setting("a.b=c=d"), Ok(("a.b".into(), "c=d".into())));
        assert!(parse_setting("a").is_err());
        assert!(parse_setting("=a").is_err());
    }

    #[test]
    fn help_names_the_limit_of_a_tasks_log_with_its_default() {
        let limit = daemon::config::TaskTrackerConfig::default().task_log_max;
        assert!(help().contains(&format!("tasktracker.task_log_max ({limit} by default)")), "{}", help());
    }

    fn refused(words: &str) -> String {
        let args = Line::try_parse_from(words.split(' ')).unwrap().args;
        let error = plan(&args).map(|plan| plan.submission).unwrap_err();
        assert_eq!(output::exit_code(&error), 2, "{words}: {error}");
        error.to_string()
    }

    #[test]
    fn empty_names_are_rejected() {
        for flag in ["--name", "--queue", "--user"] {
            let words = ["submit", "wordcount", flag, "", "--input", "/in", "--output", "/out"];
            assert_eq!(Line::try_parse_from(words).unwrap_err().exit_code(), 2, "{flag}");
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn advice_on_divisible_maps_is_only_for_programs_of_users() {
        assert_eq!(how_to_divide("kmeans"), None);
        assert!(
            how_to_divide("streaming").is_some_and(|advice| advice.contains("stream.mapper.divisible=true"))
        );
        assert!(how_to_divide("./my-job").is_some_and(|advice| advice.contains("fn divisible()")));
    }

    #[test]
    fn invalid_arguments_are_rejected_without_a_cluster() {
        for (words, why) in [
            ("submit wordcount --input /in", "--output PATH, or discard it with --no-output"),
            ("submit wordcount --output /out", "--input PATH"),
            ("submit wordcount --input in --output /out", "in"),
            ("submit wordcont --input /in --output /out", "wordcount"),
            ("submit grep --input /in --output /out", "grep.pattern"),
            ("submit grep --input /in --output /out --conf grep.patern=a", "did you mean grep.pattern?"),
            (
                "submit grep --input /in --output /out --conf grep.pattern=a --conf grep.invert=maybe",
                "grep.invert",
            ),
            (
                "submit wordcount --input /in --output /out --file a/words --file b/words",
                "a/words and b/words would both be words",
            ),
            (
                "submit streaming --mapper ./no.py --file no.py --input /in --output /out",
                "--file no.py: there is no such local file",
            ),
            ("submit teragen --output /out", "rows"),
            ("submit teragen --output /out --conf rows=10 --conf maps=0", "maps"),
            ("submit streaming --input /in --output /out", "--mapper"),
            ("submit wordcount --mapper cat --input /in --output /out", "--mapper"),
            ("submit wordcount --input /in --output /out --conf sort.memory=lots", "sort.memory"),
            ("submit wordcount --input /in --output /out --conf pace.mpa=1", "did you mean pace.map?"),
            ("submit wordcount --input /in --output /out --conf grep.invert=true", "grep.invert is unknown"),
            ("submit wordcount --input /in --output /out --conf mapred.reduce.tasks=4", "use --reduces 4"),
            ("submit streaming --mapper cat|sort --input /in --output /out", "there is no shell"),
            (
                "submit streaming --mapper cat --conf stream.mapper=tac --input /in --output /out",
                "--mapper and --conf stream.mapper=tac exclude each other",
            ),
            (
                "submit wordcount --no-recursive --conf input.recursive=true --input /in --output /out",
                "--no-recursive and --conf input.recursive=true exclude each other",
            ),
            (
                "submit streaming --mapper cat --combiner cat --input /in --output /out",
                "a combiner without a reducer has no effect",
            ),
            (
                "submit streaming --mapper cat --reducer cat --reduces 0 --input /in --output /out",
                "--reducer has no effect with --reduces 0",
            ),
            (
                "submit wordcount --input /in --output /out --conf split.size=99999999TiB",
                "split.size = \"99999999TiB\": it must be a size such as 16MiB, at least 64 and less than 16EiB",
            ),
        ] {
            assert!(refused(words).contains(why), "{words}: {}", refused(words));
        }
        let maybe = "submit grep --input /in --output /out --conf grep.pattern=a --conf grep.invert=maybe";
        assert!(refused(maybe).contains("true or false"), "{}", refused(maybe));
        let thrown = Line::try_parse_from("submit wordcount --input /in --no-output".split(' ')).unwrap();
        assert_eq!(plan(&thrown.args).unwrap().submission.output, "");
    }
}
