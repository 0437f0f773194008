//! `mrctl hadoop-home`: a folder that programs take for an installation of Hadoop.
//!
//! It has scripts that execute `mrctl hadoop` for one cluster, and an empty file where programs
//! look for `hadoop-streaming.jar`, whose path they pass back to `hadoop jar`.

use super::VERSION;
use crate::output::{self, Usage};
use anyhow::{Context, Result, bail};
use clusters::locate::Target;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The folder of `hadoop-streaming.jar`.
const TOOLS: &str = "share/hadoop/tools/lib";

/// Make a folder for programs that need an installation of Hadoop
///
/// Its bin/hadoop, bin/hdfs and bin/mapred call this mrctl, for the cluster that is found now.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl hadoop-home ~/hadoop\n  \
    HADOOP_HOME=~/hadoop python3 my_job.py -r hadoop /books/a.txt")]
pub(crate) struct Args {
    /// Folder to create, or one that this command has made
    dir: PathBuf,
}

pub(crate) fn run(args: &Args, target: &Target) -> Result<ExitCode> {
    let dir = std::path::absolute(&args.dir).context("cannot determine the current folder")?;
    let marker = dir.join("etc/fermata-hadoop-home");
    let is_empty = fs::read_dir(&dir).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty && !marker.is_file() {
        bail!(Usage(format!("{}: the folder is not empty: name a new folder", dir.display())));
    }
    let mrctl = std::env::current_exe().context("cannot find the path of mrctl")?;
    let flags = target.flags()?;
    let flags: Vec<String> = flags.iter().map(|word| output::shell(Path::new(word))).collect();
    for (name, text) in [
        (format!("{TOOLS}/hadoop-streaming-{VERSION}.jar"), String::new()),
        ("etc/fermata-hadoop-home".into(), "made by mrctl hadoop-home\n".into()),
    ] {
        write(&dir.join(name), &text, 0o644)?;
    }
    for program in ["hadoop", "hdfs", "mapred"] {
        let words = [&flags[..], &["hadoop".to_owned(), program.to_owned()]].concat().join(" ");
        // The flags select the cluster, whatever the environment of the caller is.
        let unset = "unset FERMATA_NAMENODE FERMATA_JOBTRACKER FERMATA_CONFIG";
        let text = format!("#!/bin/sh\n{unset}\nexec {} {words} \"$@\"\n", output::shell(&mrctl));
        write(&dir.join("bin").join(program), &text, 0o755)?;
    }
    output::line(format!("export HADOOP_HOME={}", output::shell(&dir)))?;
    Ok(ExitCode::SUCCESS)
}

fn write(file: &Path, text: &str, mode: u32) -> Result<()> {
    let failed = || format!("cannot write {}", file.display());
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    fs::write(file, text).with_context(failed)?;
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).with_context(failed)
}
