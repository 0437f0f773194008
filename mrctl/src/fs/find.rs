//! `mrctl fs find`: files and folders by name, kind and size.

use super::{Outcome, expand_all, tree};
use crate::output::{self, Usage};
use anyhow::Result;
use clap::ValueEnum;
use daemon::Bytes;
use dfs_client::{Client, FileStatus, NamePattern};
use std::process::ExitCode;

/// Find files and folders below a path
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs find /logs --name '*.gz'\n  \
    mrctl fs find / --kind file --min-size 1GiB")]
pub(crate) struct Find {
    /// Folders, files or patterns
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<String>,
    /// Only names that match this pattern (* ? [..])
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// Do not distinguish upper and lower case in --name
    #[arg(long, requires = "name")]
    ignore_case: bool,
    /// Only files, or only folders
    #[arg(long)]
    kind: Option<FileKind>,
    /// Only files of at least this size
    #[arg(long, value_name = "SIZE")]
    min_size: Option<Bytes>,
    /// Print JSON: one array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FileKind {
    File,
    Folder,
}

/// What a file or folder must be like. All conditions must hold.
#[derive(Debug, Default)]
pub(crate) struct Expression {
    /// Patterns of names, and whether case is ignored.
    names: Vec<(NamePattern, bool)>,
    kind: Option<FileKind>,
    min_bytes: Option<u64>,
}

impl Expression {
    /// Adds a pattern that the name must match.
    pub(crate) fn add_name(&mut self, pattern: &str, ignore_case: bool) -> Result<()> {
        let text = if ignore_case { pattern.to_lowercase() } else { pattern.to_owned() };
        let parsed = NamePattern::parse(&text).map_err(|why| Usage(why.to_string()))?;
        self.names.push((parsed, ignore_case));
        Ok(())
    }

    fn holds(&self, status: &FileStatus) -> bool {
        let named = |(pattern, ignore_case): &(NamePattern, bool)| {
            let name = status.path.name();
            if *ignore_case { pattern.matches(&name.to_lowercase()) } else { pattern.matches(name) }
        };
        self.names.iter().all(named)
            && self.kind.is_none_or(|kind| status.is_dir == (kind == FileKind::Folder))
            && self.min_bytes.is_none_or(|min| !status.is_dir && status.length >= min)
    }
}

/// Returns `root` and everything below it for which the expression holds, sorted.
pub(crate) async fn find(client: &Client, root: &FileStatus, what: &Expression) -> Result<Vec<FileStatus>> {
    let mut all = tree(client, root.clone()).await?;
    all.retain(|status| what.holds(status));
    Ok(all)
}

pub(crate) async fn run(args: Find, client: &Client) -> Result<ExitCode> {
    let mut expression =
        Expression { kind: args.kind, min_bytes: args.min_size.map(|size| size.0), ..Expression::default() };
    if let Some(name) = &args.name {
        expression.add_name(name, args.ignore_case)?;
    }
    let mut outcome = Outcome::default();
    let mut all = Vec::new();
    for root in expand_all(client, &args.paths, &mut outcome).await? {
        match find(client, &root, &expression).await {
            Ok(found) => all.extend(found),
            Err(error) => outcome.note(error)?,
        }
    }
    if args.json {
        output::json(&all)?;
    } else {
        all.iter().try_for_each(|status| output::line(&status.path))?;
    }
    Ok(outcome.code())
}
