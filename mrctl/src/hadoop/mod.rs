//! `mrctl hadoop`: the commands `hadoop`, `hdfs` and `mapred` of Hadoop 3, for programs that call
//! them. `mrctl hadoop-home` makes a folder whose scripts only execute this command.
//!
//! Arguments, output and exit codes are those of Hadoop. The work is done by the functions of
//! `mrctl fs` and of the client of jobs. Deliberately absent: commands for daemons and
//! administration, and Java programs. They are refused by name.

pub(crate) mod home;
mod ids;
mod job;
mod log;
mod options;
mod path;
mod shell;
mod streaming;

use crate::output;
use anyhow::Result;
use clusters::locate::Target;
use std::{path::Path, process::ExitCode};

/// The version of Hadoop whose commands these are.
const VERSION: &str = "3.4.1";

/// The commands of Hadoop; `mrctl hadoop-home` makes scripts that call this
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// The program (hadoop, hdfs or mapred), then its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

pub(crate) async fn run(args: Args, target: &Target) -> Result<ExitCode> {
    let Some((program, rest)) = args.words.split_first() else { return Ok(unknown("mrctl hadoop", "")) };
    // Options for the scripts of Hadoop, before the command.
    let mut rest = rest;
    while let [option, _, after @ ..] = rest
        && matches!(option.as_str(), "--config" | "--loglevel")
    {
        rest = after;
    }
    let Some((command, rest)) = rest.split_first() else { return Ok(unknown(program, "")) };
    match (program.as_str(), command.as_str()) {
        (_, "version") => version(),
        ("hadoop", "fs" | "dfs") | ("hdfs", "dfs") => shell::run(rest, target, &user(target)?).await,
        ("hadoop", "jar") => Box::pin(jar(rest, target)).await,
        ("mapred", "streaming") => Box::pin(streaming::run(rest, target, &user(target)?)).await,
        ("hadoop" | "mapred", "job") => job::run(rest, target).await,
        (program, command) => Ok(unknown(program, command)),
    }
}

/// Returns the name of the user, as the cluster knows it.
fn user(target: &Target) -> Result<String> {
    Ok(target.authenticated_name()?.unwrap_or_else(daemon::account::user))
}

fn version() -> Result<ExitCode> {
    output::line(format!("Hadoop {VERSION}"))?;
    output::line(format!("These commands are those of Fermata {}", env!("CARGO_PKG_VERSION")))?;
    Ok(ExitCode::SUCCESS)
}

/// Reports a command that does not exist here.
fn unknown(program: &str, command: &str) -> ExitCode {
    let known = match program {
        "hdfs" => "dfs, version",
        "mapred" => "job, streaming, version",
        _ => "fs, jar, job, version",
    };
    let why =
        if command.is_empty() { "name a command".into() } else { format!("there is no command {command}") };
    eprintln!("{program}: {why}: Fermata has {known} (docs/guide/hadoop.md)");
    ExitCode::from(1)
}

/// Runs `hadoop jar JAR ...`. The only program in Java that has an equivalent is streaming.
async fn jar(args: &[String], target: &Target) -> Result<ExitCode> {
    let Some((jar, rest)) = args.split_first() else {
        eprintln!("RunJar jarFile [mainClass] args...");
        return Ok(ExitCode::from(255));
    };
    let path = Path::new(jar);
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    if !(name.contains("streaming") && path.extension().is_some_and(|extension| extension == "jar")) {
        eprintln!(
            "Not a valid JAR: {jar}: Fermata runs no Java programs; only hadoop-streaming.jar has an equivalent"
        );
        return Ok(ExitCode::from(255));
    }
    // A user may name the main class, as for other files of this kind.
    let rest = match rest {
        [class, rest @ ..] if class.ends_with("streaming.HadoopStreaming") => rest,
        rest => rest,
    };
    Box::pin(streaming::run(rest, target, &user(target)?)).await
}
