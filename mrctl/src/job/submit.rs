//! `mrctl submit`: checks what can be checked here, uploads what the tasks will need, sends the job, follows it.

use super::{
    follow,
    wire::{Submission, Unanswered},
};
use crate::{locate::Target, output};
use anyhow::{Context, Result, bail, ensure};
use dfs::{
    client::{Client, PutOptions, PutSource},
    path::DfsPath,
};
use mrlib::{registry, run::Description};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// Where programs and side files are put for the tasks to fetch.
const STAGING: &str = "/tmp/fermata/staging";

/// Submit a job
///
/// PROGRAM is a built-in (see `mrctl programs`), an executable built on mrlib, or `streaming` with --mapper and
/// --reducer. The job is followed to its end unless --detach is given; Ctrl-C detaches too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl submit wordcount --input /books --output /counts --reduces 2\n  \
    mrctl submit ./target/release/my-job --input '/logs/*.gz' --output /out --conf my.setting=3\n  \
    mrctl submit streaming --mapper ./map.py --reducer ./reduce.py --file map.py --file reduce.py \\\n      \
        --input /books --output /out")]
pub(crate) struct Args {
    /// A built-in program, an executable, or `streaming`
    program: String,
    /// Files, folders or patterns to read
    #[arg(long, value_name = "PATH", num_args = 1..)]
    input: Vec<String>,
    /// A folder to make and write to
    #[arg(long, value_name = "PATH")]
    output: Option<String>,
    /// How many reduces [default: 1, or 0 for a program without a reducer]
    #[arg(long, value_name = "N")]
    reduces: Option<u32>,
    /// A name for people [default: the program's]
    #[arg(long)]
    name: Option<String>,
    /// Run as this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The queue it waits in
    #[arg(long, value_name = "NAME", default_value = "default")]
    queue: String,
    /// very-low, low, normal, high or very-high
    #[arg(long, default_value = "normal", value_parser = ["very-low", "low", "normal", "high", "very-high"])]
    priority: String,
    /// A setting for the program or the engine
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    conf: Vec<(String, String)>,
    /// A local file that every task finds in its working folder
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// streaming: the program that maps
    #[arg(long, value_name = "CMD")]
    mapper: Option<String>,
    /// streaming: the program that combines
    #[arg(long, value_name = "CMD")]
    combiner: Option<String>,
    /// streaming: the program that reduces
    #[arg(long, value_name = "CMD")]
    reducer: Option<String>,
    /// Say the job's id and come back at once
    #[arg(long)]
    detach: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    if key.is_empty() {
        return Err("the key is empty: write KEY=VALUE".into());
    }
    Ok((key.into(), value.into()))
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let tracker = target.jobtracker_as(args.user.as_deref()).await?;
    let client = target.connect().await?;
    let mut stage = Stage::new(&client);
    let submitting = async {
        let submission = prepare(&args, target, &client, &mut stage).await?;
        stage.sent = true;
        tracker.submit(submission).await
    };
    let submitted = tokio::select! {
        submitted = submitting => submitted,
        () = crate::command::end_signal() => Err(Interrupted.into()),
    };
    let id = match submitted {
        Ok(id) => id,
        Err(error) => {
            // Without an answer it may be a job: then the JobTracker will clear away what it needs until then.
            if !(stage.sent && (error.is::<Unanswered>() || error.is::<Interrupted>())) {
                stage.discard().await;
            }
            return Err(error);
        }
    };
    if args.detach {
        if args.json {
            output::json(&BTreeMap::from([("job", &id)]))?;
        } else {
            output::line(format!("{id} submitted; follow it with: mrctl job --follow {id}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let Some(job) = follow::follow(&tracker, &id, args.json).await? else {
        eprintln!(
            "mrctl: {id} goes on; come back with `mrctl job --follow {id}`, stop it with `mrctl kill {id}`"
        );
        return Ok(ExitCode::SUCCESS);
    };
    if args.json {
        output::json(&job)?;
    } else {
        follow::summary(&job)?;
    }
    Ok(if job.state == "succeeded" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The user had enough.
#[derive(Debug, thiserror::Error)]
#[error("interrupted before the JobTracker answered: `mrctl jobs` shows whether it has taken the job")]
struct Interrupted;

/// Checks what is asked for, and uploads what the tasks will need.
async fn prepare(args: &Args, target: &Target, client: &Client, stage: &mut Stage<'_>) -> Result<Submission> {
    let conf = settings(args)?;
    let description = describe(&args.program, &conf)?;
    let mut submission = Submission {
        name: args.name.clone().unwrap_or_else(|| short_name(&args.program)),
        queue: args.queue.clone(),
        priority: args.priority.clone(),
        inputs: args.input.clone(),
        output: args.output.clone().unwrap_or_default(),
        reduces: args.reduces.unwrap_or(u32::from(description.reducer)),
        conf,
        ..Submission::default()
    };
    check_paths(&submission, &args.program)?;
    if is_builtin(&args.program) {
        submission.builtin = Some(args.program.clone());
    } else {
        submission.executable = Some(stage.put(Path::new(&args.program)).await?);
    }
    for file in &args.file {
        submission.files.push(stage.put(file).await?);
    }
    if args.program == "teragen" && submission.inputs.is_empty() {
        submission.inputs = super::tera::ranges(stage, &submission.conf).await?;
    }
    if description.input == "whole" {
        submission.conf.entry("input.format".into()).or_insert("whole".into());
    }
    if description.total_order
        && submission.reduces > 1
        && !submission.conf.contains_key("total.order.splits")
    {
        let keys = super::sample::splits(client, target, &submission, &args.program).await?;
        let path = stage.put_bytes("split-keys", keys).await?;
        submission.conf.insert("total.order.splits".into(), path);
    }
    if stage.used {
        submission.conf.insert("staging".into(), stage.folder.to_string());
    }
    Ok(submission)
}

fn settings(args: &Args) -> Result<BTreeMap<String, String>> {
    let mut conf: BTreeMap<String, String> = args.conf.iter().cloned().collect();
    let streams = [
        ("stream.mapper", &args.mapper),
        ("stream.combiner", &args.combiner),
        ("stream.reducer", &args.reducer),
    ];
    if args.program == "streaming" {
        ensure!(args.mapper.is_some(), "streaming needs --mapper CMD");
    }
    for (key, command) in streams {
        let Some(command) = command else { continue };
        ensure!(args.program == "streaming", "--{} is for `mrctl submit streaming`", &key["stream.".len()..]);
        conf.insert(key.into(), command.clone());
    }
    Ok(conf)
}

fn is_builtin(program: &str) -> bool {
    registry::find(program).is_some()
}

fn short_name(program: &str) -> String {
    Path::new(program)
        .file_name()
        .map_or_else(|| program.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Refused here, before anything is uploaded. The JobTracker checks what only it can see.
fn check_paths(submission: &Submission, program: &str) -> Result<()> {
    ensure!(
        !submission.inputs.is_empty() || program == "teragen",
        "name something to read with --input PATH"
    );
    for path in submission.inputs.iter().chain(Some(&submission.output).filter(|path| !path.is_empty())) {
        let plain: String = path.chars().filter(|c| !"*?[]{},".contains(*c)).collect();
        DfsPath::parse(if plain.is_empty() { path } else { &plain })?;
    }
    Ok(())
}

/// What the program reads and whether it reduces. Asking an executable also shows that it can be run here.
fn describe(program: &str, conf: &BTreeMap<String, String>) -> Result<Description> {
    if is_builtin(program) {
        let conf: mrlib::Conf = conf.clone().into_iter().collect();
        return Ok(Description::of(&registry::job(program, &conf)?));
    }
    let text = {
        let path = Path::new(program);
        if !program.contains('/') && !path.exists() {
            let names: Vec<&str> = registry::builtins().map(|builtin| builtin.name).collect();
            bail!(
                "there is no program {program:?}: it is no file here, and the built-ins are {}",
                names.join(", ")
            );
        }
        let mut asking = Command::new(std::path::absolute(path)?);
        asking.arg("--describe");
        for (key, value) in conf {
            asking.arg("--conf").arg(format!("{key}={value}"));
        }
        let asked = asking.output().with_context(|| {
            format!("cannot run {program}: is it executable, and built for this machine?")
        })?;
        let words = String::from_utf8_lossy(&asked.stderr);
        ensure!(
            asked.status.success(),
            "{program} does not answer --describe ({}): is it built on mrlib? (scripts and other programs go \
             through `streaming`)",
            words.lines().next().unwrap_or("it says nothing")
        );
        String::from_utf8_lossy(&asked.stdout).into_owned()
    };
    serde_json::from_str(&text)
        .with_context(|| format!("{program} describes itself in words that this mrctl does not know"))
}

/// A folder in the file system for one job's program and side files. The JobTracker removes it with the job.
pub(super) struct Stage<'a> {
    client: &'a Client,
    folder: DfsPath,
    /// Whether anything may be in it.
    used: bool,
    /// Whether the JobTracker has been told of it.
    sent: bool,
}

impl<'a> Stage<'a> {
    fn new(client: &'a Client) -> Self {
        let folder = format!("{STAGING}/{}", uuid::Uuid::new_v4());
        Self { client, folder: DfsPath::parse(&folder).expect("a plain path"), used: false, sent: false }
    }

    /// Uploads a local file under its own name.
    pub(super) async fn put(&mut self, file: &Path) -> Result<String> {
        let name = file.file_name().with_context(|| format!("{} is not a file", file.display()))?;
        let to = self.folder.join(&name.to_string_lossy())?;
        let source = PutSource::File(file.to_owned());
        self.used = true;
        let put =
            self.client.put(source, &to, PutOptions { make_parents: true, ..PutOptions::default() }, &());
        put.await.with_context(|| format!("cannot upload {}", file.display()))?;
        Ok(to.to_string())
    }

    /// Writes a small file.
    pub(super) async fn put_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<String> {
        let to = self.folder.join(name)?;
        let source = PutSource::Reader(Box::new(std::io::Cursor::new(bytes)));
        self.used = true;
        self.client.put(source, &to, PutOptions { make_parents: true, ..PutOptions::default() }, &()).await?;
        Ok(to.to_string())
    }

    /// Nothing came of it.
    async fn discard(&self) {
        if self.used {
            let _ = self.client.delete(&self.folder, true).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_key_and_value() {
        assert_eq!(setting("a.b=c=d"), Ok(("a.b".into(), "c=d".into())));
        assert!(setting("a").is_err());
        assert!(setting("=a").is_err());
    }
}
