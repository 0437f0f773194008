//! `mrctl fs ls`.

use super::{Outcome, below, expand_all};
use crate::output::{self, Sizes};
use anyhow::Result;
use comfy_table::Table;
use dfs_client::{Client, FileStatus};
use std::process::ExitCode;

/// List a folder or show files
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  mrctl fs ls /\n  mrctl fs ls -lh /data\n  mrctl fs ls -R '/data/2026-*'"
)]
pub(crate) struct Ls {
    /// Folders, files or patterns
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<String>,
    /// Show permissions, replicas, owner, size and time
    #[arg(short, long)]
    long: bool,
    /// Include everything below folders
    #[arg(short = 'R', short_alias = 'r', long)]
    recursive: bool,
    /// Show sizes with units
    #[arg(short = 'h', short_alias = 'H', long)]
    human: bool,
    /// List the folder itself, not its entries
    #[arg(short, long)]
    directory: bool,
    /// Print JSON: one array of all entries
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

pub(crate) async fn run(args: Ls, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let roots = expand_all(client, &args.paths, &mut outcome).await?;
    let several = roots.len() > 1;
    let mut files = Vec::new();
    let mut folders = Vec::new();
    for root in roots {
        if root.is_dir && !args.directory { folders.push(root) } else { files.push(root) }
    }
    let mut all = Vec::new();
    let mut printed = !files.is_empty();
    if args.json {
        all.append(&mut files);
    } else {
        show(&files, &args, None)?;
    }
    for folder in folders {
        let entries = match below(client, &folder, args.recursive).await {
            Ok(entries) => entries,
            Err(error) => {
                outcome.note(error)?;
                continue;
            }
        };
        if args.json {
            all.extend(entries);
            continue;
        }
        if several {
            output::line(format!("{}{}:", if printed { "\n" } else { "" }, folder.path))?;
            printed = true;
        }
        // With -R show full paths, otherwise names in the folder.
        show(&entries, &args, (!args.recursive).then_some(()))?;
    }
    if args.json {
        output::json(&all)?;
    }
    Ok(outcome.code())
}

fn show(entries: &[FileStatus], args: &Ls, names_only: Option<()>) -> Result<()> {
    let name = |entry: &FileStatus| {
        let name = if names_only.is_some() { entry.path.name() } else { entry.path.as_str() };
        if entry.is_dir { format!("{}/", name.trim_end_matches('/')) } else { name.to_owned() }
    };
    if !args.long {
        return entries.iter().try_for_each(|entry| output::line(name(entry)));
    }
    let sizes = if args.human { Sizes::Human } else { Sizes::Exact };
    let mut table: Table = output::table(&[], &[]);
    for entry in entries {
        table.add_row([
            output::permissions(entry.is_dir, entry.mode),
            if entry.is_dir { "-".into() } else { entry.replication.to_string() },
            entry.owner.clone(),
            entry.group.clone(),
            if entry.is_dir { "-".into() } else { sizes.of(entry.length) },
            output::time(entry.modified_ms),
            name(entry) + if entry.open { " (being written)" } else { "" },
        ]);
    }
    output::align_right(&mut table, &[1, 4]);
    output::print_table(&table)
}
