//! `mrctl fs test` and `count`: answers about files and folders.

use super::{Outcome, expand_all, lookup};
use crate::output::{self, Sizes};
use anyhow::Result;
use dfs_client::{Client, ClientError, FileStatus, error::Kind, path::DfsPath};
use serde::Serialize;
use std::process::ExitCode;

/// Test a file or folder; exit code 0 if all tests hold, else 1
///
/// Prints nothing. Without a test, the path must exist.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl fs test /in && echo exists\n  mrctl fs test -f -s /in/part-r-00000"
)]
pub(crate) struct Test {
    /// File or folder
    path: String,
    /// It is a folder
    #[arg(short, long)]
    directory: bool,
    /// It is a file
    #[arg(short, long)]
    file: bool,
    /// It has bytes
    #[arg(short, long)]
    size: bool,
    /// It has no bytes
    #[arg(short, long)]
    zero: bool,
    /// You may read it
    #[arg(short, long)]
    readable: bool,
    /// You may write it
    #[arg(short, long)]
    writable: bool,
}

/// Count folders, files and bytes
///
/// A folder counts itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs count /in '/out/*'")]
pub(crate) struct Count {
    /// Files, folders or patterns
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<String>,
    /// Print JSON: one array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Counted {
    path: DfsPath,
    folders: u64,
    files: u64,
    bytes: u64,
}

/// Returns whether a test holds, by the letter of its flag.
pub(crate) async fn holds(client: &Client, status: &FileStatus, test: &str) -> Result<bool> {
    let bits = match test {
        "d" => return Ok(status.is_dir),
        "f" => return Ok(!status.is_dir),
        "s" => return Ok(status.length > 0),
        "z" => return Ok(status.length == 0),
        "r" => 4,
        "w" => 2,
        _ => return Ok(true),
    };
    match client.check_access(&status.path, bits).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == Some(Kind::Denied) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn test(args: Test, client: &Client) -> Result<ExitCode> {
    let Some(status) = lookup(client, &DfsPath::parse(&args.path)?).await? else {
        return Ok(ExitCode::FAILURE);
    };
    let tests = [
        (args.directory, "d"),
        (args.file, "f"),
        (args.size, "s"),
        (args.zero, "z"),
        (args.readable, "r"),
        (args.writable, "w"),
    ];
    for (_, test) in tests.into_iter().filter(|(asked, _)| *asked) {
        if !holds(client, &status, test).await? {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn count(args: Count, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let mut all = Vec::new();
    for root in expand_all(client, &args.paths, &mut outcome).await? {
        let counted: Result<_, ClientError> = client.usage(&root.path).await;
        match counted {
            Ok(usage) => all.push(Counted {
                folders: usage.dirs + u64::from(root.is_dir),
                files: usage.files,
                bytes: usage.bytes,
                path: root.path,
            }),
            Err(error) => outcome.note(error.into())?,
        }
    }
    if args.json {
        output::json(&all)?;
        return Ok(outcome.code());
    }
    let mut table = output::table(&["FOLDERS", "FILES", "BYTES", "PATH"], &[0, 1, 2]);
    for Counted { path, folders, files, bytes } in &all {
        table.add_row([folders.to_string(), files.to_string(), Sizes::Exact.of(*bytes), path.to_string()]);
    }
    if !all.is_empty() || outcome.code == 0 {
        output::print_table(&table)?;
    }
    Ok(outcome.code())
}
