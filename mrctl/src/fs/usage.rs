//! `mrctl fs du` and `quota`.

use super::{Outcome, expand_all};
use crate::output::{self, Sizes, Usage};
use anyhow::{Result, bail};
use daemon::Bytes;
use dfs_client::{self, Client, path::DfsPath};
use serde::Serialize;
use std::process::ExitCode;

/// Show the size of everything below a path
///
/// SIZE counts the bytes of the files, SPACE the bytes of all replicas.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  mrctl fs du /          all entries of /\n  mrctl fs du -s -h /data"
)]
pub(crate) struct Du {
    /// Folders, files or patterns
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<String>,
    /// Show one line per path instead of one per entry of a folder
    #[arg(short, long)]
    summarize: bool,
    /// Show sizes with units
    #[arg(short = 'h', short_alias = 'H', long)]
    human: bool,
    /// Print JSON: one array
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Show or set the limits of a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl fs quota /user/ada                              show the limits\n  \
    mrctl fs quota /user/ada --files 10000 --space 1TiB\n  \
    mrctl fs quota /user/ada --space none                 remove a limit")]
pub(crate) struct Quota {
    /// Folder
    #[arg(allow_negative_numbers = true)]
    path: String,
    /// Largest number of files and folders, including the folder itself; or `none`
    #[arg(long, value_name = "N|none", allow_negative_numbers = true, value_parser = parse_limit::<FileCount>)]
    files: Option<Limit>,
    /// Largest number of bytes, including all replicas; or `none`
    #[arg(long, value_name = "SIZE|none", allow_negative_numbers = true, value_parser = parse_limit::<Bytes>)]
    space: Option<Limit>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The limit that a flag sets; None removes the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit(Option<u64>);

fn parse_limit<T: std::str::FromStr<Err: std::fmt::Display> + Into<LimitValue>>(
    text: &str,
) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let value: T = text.parse().map_err(|error| format!("{error}, or none"))?;
    Ok(Limit(Some(value.into().0)))
}

/// A number of files, parsed from a flag.
struct FileCount(u64);

impl std::str::FromStr for FileCount {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("{text:?} is not a whole number"))
    }
}

/// The value of a limit, in files or in bytes.
struct LimitValue(u64);

impl From<FileCount> for LimitValue {
    fn from(value: FileCount) -> Self {
        Self(value.0)
    }
}

impl From<Bytes> for LimitValue {
    fn from(value: Bytes) -> Self {
        Self(value.0)
    }
}

#[derive(Debug, Serialize)]
struct UsageEntry {
    path: DfsPath,
    #[serde(flatten)]
    usage: dfs_client::Usage,
}

pub(crate) async fn du(args: Du, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let mut paths = Vec::new();
    for root in expand_all(client, &args.paths, &mut outcome).await? {
        if root.is_dir && !args.summarize {
            paths.extend(client.list(&root.path).await?.into_iter().map(|entry| entry.path));
        } else {
            paths.push(root.path);
        }
    }
    let mut entries = Vec::new();
    for path in paths {
        match client.usage(&path).await {
            Ok(usage) => entries.push(UsageEntry { path, usage }),
            Err(error) => outcome.note(error.into())?,
        }
    }
    if args.json {
        output::json(&entries)?;
        return Ok(outcome.code());
    }
    let sizes = if args.human { Sizes::Human } else { Sizes::Exact };
    let mut table = output::table(&["SIZE", "SPACE", "FILES", "PATH"], &[0, 1, 2]);
    for UsageEntry { path, usage } in &entries {
        let size = sizes.of(usage.bytes);
        table.add_row([size, sizes.of(usage.space), usage.files.to_string(), path.to_string()]);
    }
    // After an error, do not print a header without rows.
    if !entries.is_empty() || outcome.code == 0 {
        output::print_table(&table)?;
    }
    Ok(outcome.code())
}

pub(crate) async fn quota(args: Quota, client: &Client) -> Result<ExitCode> {
    let path = DfsPath::parse(&args.path)?;
    if args.files.is_some_and(|limit| limit.0 == Some(0)) {
        bail!(Usage("--files 0: the folder itself counts, so the limit must be at least 1".into()));
    }
    if !client.stat(&path).await?.is_dir {
        bail!("{path} is a file: only folders have limits");
    }
    let usage = client.usage(&path).await?;
    if args.files.is_some() || args.space.is_some() {
        let new = with_limits(usage.quota.unwrap_or_default(), args.files, args.space);
        client.set_quota(&path, new).await?;
    }
    let usage = client.usage(&path).await?;
    if args.json {
        output::json(&UsageEntry { path, usage })?;
        return Ok(ExitCode::SUCCESS);
    }
    let limits = usage.quota.unwrap_or_default();
    let none = || "no limit".to_owned();
    let mut table = output::table(&["", "USED", "LIMIT"], &[1, 2]);
    // The folder itself counts.
    let used = usage.files + usage.dirs + 1;
    let files = limits.files.map_or_else(none, |limit| limit.to_string());
    table.add_row(["files and folders".into(), used.to_string(), files]);
    let space = limits.space.map_or_else(none, output::human);
    table.add_row(["space".into(), output::human(usage.space), space]);
    output::print_table(&table)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the new limits: those of the flags, otherwise the current ones.
fn with_limits(now: dfs_client::Quota, files: Option<Limit>, space: Option<Limit>) -> dfs_client::Quota {
    dfs_client::Quota {
        files: files.map_or(now.files, |limit| limit.0),
        space: space.map_or(now.space, |limit| limit.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_a_number_a_size_or_none() {
        assert_eq!(parse_limit::<FileCount>("10"), Ok(Limit(Some(10))));
        assert_eq!(parse_limit::<Bytes>("1KiB"), Ok(Limit(Some(1024))));
        assert_eq!(parse_limit::<Bytes>("none"), Ok(Limit(None)));
        for wrong in ["many", "-1"] {
            assert_eq!(
                parse_limit::<FileCount>(wrong),
                Err(format!("\"{wrong}\" is not a whole number, or none"))
            );
        }
        let error = parse_limit::<Bytes>("-1").unwrap_err();
        assert!(error.starts_with("\"-1\" is not a size") && error.ends_with(", or none"), "{error}");
    }

    #[test]
    fn limit_without_a_flag_is_unchanged() {
        let now = dfs_client::Quota { files: Some(5), space: Some(6) };
        let new = with_limits(now, None, Some(Limit(None)));
        assert_eq!(new, dfs_client::Quota { files: Some(5), space: None });
    }
}
