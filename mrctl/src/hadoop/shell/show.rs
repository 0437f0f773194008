//! Commands that show files and folders.

use super::{Item, SOME, Shell, options};
use crate::output::Usage;
use crate::{
    fs::{self, find::Expression},
    output,
};
use anyhow::{Result, bail};
use dfs_client::{FileStatus, path::DfsPath};
use std::{cmp::Reverse, io::Write, process::ExitCode};

/// The bytes that `head` and `tail` print.
const END_BYTES: u64 = 1024;

/// Formats a size with a unit if `human` is set.
fn size(bytes: u64, human: bool) -> String {
    if !human || bytes < 1024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64;
    let units = ["K", "M", "G", "T", "P", "E"].into_iter().take_while(|_| {
        let large = value >= 1024.0;
        value /= if large { 1024.0 } else { 1.0 };
        large
    });
    let unit = units.last().unwrap_or_default();
    format!("{value:.1} {unit}")
}

/// The sort order of `-ls`.
fn sort(entries: &mut [Item], flags: &std::collections::BTreeSet<&str>) {
    if flags.contains("t") {
        entries.sort_by_key(|item| Reverse(item.status.modified_ms));
    } else if flags.contains("S") {
        entries.sort_by_key(|item| Reverse(item.status.length));
    }
    if flags.contains("r") {
        entries.reverse();
    }
}

/// Formats a listing, with columns of equal width.
fn listing(entries: &[Item], human: bool) -> Vec<String> {
    let rows: Vec<[String; 5]> = entries
        .iter()
        .map(|Item { status, .. }| {
            let replicas = if status.is_dir { "-".into() } else { status.replication.to_string() };
            [
                output::permissions(status.is_dir, status.mode),
                replicas,
                status.owner.clone(),
                status.group.clone(),
                size(status.length, human),
            ]
        })
        .collect();
    let width =
        |column: usize, min: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0).max(min);
    let (replicas, owner, group, length) = (width(1, 3), width(2, 0), width(3, 0), width(4, 10));
    let line = |(row, item): (&[String; 5], &Item)| {
        let [permissions, replica, name, of_group, bytes] = row;
        let time = output::time(item.status.modified_ms);
        let minute = time.get(..16).unwrap_or(&time);
        format!(
            "{permissions} {replica:>replicas$} {name:owner$} {of_group:group$} {bytes:>length$} {minute} {}",
            item.shown()
        )
    };
    rows.iter().zip(entries).map(line).collect()
}

/// Formats the attributes of a file for `-stat`.
fn describe(format: &str, status: &FileStatus) -> String {
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(one) = characters.next() {
        if one != '%' {
            text.push(one);
            continue;
        }
        let permissions = output::permissions(status.is_dir, status.mode);
        let value = match characters.next() {
            Some('a') => format!("{:o}", status.mode),
            Some('A') => permissions[1..].to_owned(),
            Some('b') => status.length.to_string(),
            Some('F') if status.is_dir => "directory".into(),
            Some('F') => "regular file".into(),
            Some('g') => status.group.clone(),
            Some('n') => status.path.name().to_owned(),
            Some('o') => status.block_size.to_string(),
            Some('r') => status.replication.to_string(),
            Some('u') => status.owner.clone(),
            Some('x') => output::time(status.accessed_ms),
            Some('X') => status.accessed_ms.to_string(),
            Some('y') => output::time(status.modified_ms),
            Some('Y') => status.modified_ms.to_string(),
            Some('%') | None => "%".into(),
            Some(other) => other.to_string(),
        };
        text.push_str(&value);
    }
    text
}

impl Shell<'_> {
    pub(super) async fn ls(&mut self, args: &[String], recursive: bool) -> Result<()> {
        let (flags, paths) = options(args, &["C", "d", "h", "q", "R", "t", "S", "r", "u"], (0, usize::MAX))?;
        let recursive = recursive || flags.contains("R");
        let home = [".".to_owned()];
        let paths = if paths.is_empty() { &home[..] } else { paths };
        for item in self.expand(paths).await? {
            let whole = !item.status.is_dir || flags.contains("d");
            let found = if whole {
                Ok(vec![item.status.clone()])
            } else {
                fs::below(self.client, &item.status, recursive).await
            };
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    self.note(&item.shown(), &error);
                    continue;
                }
            };
            let as_items = found.into_iter().map(|status| Item { status, from: item.from.clone() });
            let mut entries: Vec<Item> = as_items.collect();
            if !whole && !recursive && !entries.is_empty() && !flags.contains("C") {
                output::line(format!("Found {} items", entries.len()))?;
            }
            if !recursive {
                sort(&mut entries, &flags);
            }
            if flags.contains("C") {
                entries.iter().try_for_each(|entry| output::line(entry.shown()))?;
            } else {
                listing(&entries, flags.contains("h")).into_iter().try_for_each(output::line)?;
            }
        }
        Ok(())
    }

    /// Passes each file to `print`; a folder is an error.
    async fn each_file(
        &mut self,
        paths: &[String],
        print: impl AsyncFn(&Self, &FileStatus) -> Result<()>,
    ) -> Result<()> {
        for item in self.expand(paths).await? {
            if item.status.is_dir {
                self.refuse(&item.shown(), "Is a directory");
            } else if let Err(error) = print(self, &item.status).await {
                if error.downcast_ref().is_some_and(super::is_closed) {
                    return Err(error);
                }
                self.note(&item.shown(), &error);
            }
        }
        Ok(())
    }

    pub(super) async fn cat(&mut self, args: &[String]) -> Result<()> {
        let (_, paths) = options(args, &["ignoreCrc"], SOME)?;
        let print = async |shell: &Self, file: &FileStatus| fs::print(shell.client, &file.path, None).await;
        self.each_file(paths, print).await
    }

    pub(super) async fn text(&mut self, args: &[String]) -> Result<()> {
        let (_, paths) = options(args, &["ignoreCrc"], SOME)?;
        let print = async |shell: &Self, file: &FileStatus| fs::print_text(shell.client, &file.path).await;
        self.each_file(paths, print).await
    }

    pub(super) async fn head(&mut self, args: &[String]) -> Result<()> {
        let (_, paths) = options(args, &[], (1, 1))?;
        let range = |file: &FileStatus| Some((0, file.length.min(END_BYTES)));
        let print =
            async |shell: &Self, file: &FileStatus| fs::print(shell.client, &file.path, range(file)).await;
        self.each_file(paths, print).await
    }

    pub(super) async fn tail(&mut self, args: &[String]) -> Result<()> {
        if args.first().is_some_and(|first| first == "-f" || first == "-s") {
            bail!(Usage("-f is not possible: a file is visible when it is complete".into()));
        }
        let (_, paths) = options(args, &[], (1, 1))?;
        let range = |file: &FileStatus| {
            let length = file.length.min(END_BYTES);
            Some((file.length - length, length))
        };
        let print =
            async |shell: &Self, file: &FileStatus| fs::print(shell.client, &file.path, range(file)).await;
        self.each_file(paths, print).await
    }

    pub(super) async fn du(&mut self, args: &[String], summary: bool) -> Result<()> {
        let (flags, paths) = options(args, &["s", "h", "v", "x"], (0, usize::MAX))?;
        let (summary, human) = (summary || flags.contains("s"), flags.contains("h"));
        let home = [".".to_owned()];
        let mut rows = Vec::new();
        for item in self.expand(if paths.is_empty() { &home[..] } else { paths }).await? {
            let measured = async {
                let below = item.status.is_dir && !summary;
                let paths: Vec<DfsPath> = if below {
                    self.client.list(&item.status.path).await?.into_iter().map(|entry| entry.path).collect()
                } else {
                    vec![item.status.path.clone()]
                };
                let mut rows = Vec::new();
                for path in paths {
                    let usage = self.client.usage(&path).await?;
                    rows.push([size(usage.bytes, human), size(usage.space, human), item.from.show(&path)]);
                }
                anyhow::Ok(rows)
            };
            match measured.await {
                Ok(measured) => rows.extend(measured),
                Err(error) => self.note(&item.shown(), &error),
            }
        }
        if flags.contains("v") && !rows.is_empty() {
            rows.insert(
                0,
                ["SIZE", "DISK_SPACE_CONSUMED_WITH_ALL_REPLICAS", "FULL_PATH_NAME"].map(str::to_owned),
            );
        }
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let (bytes, space) = (width(0), width(1));
        rows.iter()
            .try_for_each(|[one, two, path]| output::line(format!("{one:bytes$}  {two:space$}  {path}")))
    }

    pub(super) async fn count(&mut self, args: &[String]) -> Result<()> {
        let (flags, paths) = options(args, &["q", "h", "v"], SOME)?;
        let (quota, human) = (flags.contains("q"), flags.contains("h"));
        if flags.contains("v") {
            let quotas = "       QUOTA       REM_QUOTA     SPACE_QUOTA REM_SPACE_QUOTA";
            let before = if quota { quotas } else { "" };
            output::line(format!(
                "{before}{:>12} {:>12} {:>18} PATHNAME",
                "DIR_COUNT", "FILE_COUNT", "CONTENT_SIZE"
            ))?;
        }
        for item in self.expand(paths).await? {
            let usage = match self.client.usage(&item.status.path).await {
                Ok(usage) => usage,
                Err(error) => {
                    self.note(&item.shown(), &error.into());
                    continue;
                }
            };
            let dirs = usage.dirs + u64::from(item.status.is_dir);
            let limits = usage.quota.unwrap_or_default();
            let quotas = [
                limits.files.map_or("none".into(), |limit| limit.to_string()),
                limits
                    .files
                    .map_or("inf".into(), |limit| limit.saturating_sub(usage.files + dirs).to_string()),
                limits.space.map_or("none".into(), |limit| size(limit, human)),
                limits.space.map_or("inf".into(), |limit| size(limit.saturating_sub(usage.space), human)),
            ];
            let before = if quota {
                let [files, files_left, space, space_left] = quotas;
                format!("{files:>12} {files_left:>15} {space:>15} {space_left:>15} ")
            } else {
                String::new()
            };
            output::line(format!(
                "{before}{dirs:>12} {:>12} {:>18} {}",
                usage.files,
                size(usage.bytes, human),
                item.shown()
            ))?;
        }
        Ok(())
    }

    pub(super) async fn stat(&mut self, args: &[String]) -> Result<()> {
        let (_, rest) = options(args, &[], SOME)?;
        let (format, paths) = match rest {
            [format, paths @ ..] if format.contains('%') => (format.as_str(), paths),
            paths => ("%y", paths),
        };
        if paths.is_empty() {
            bail!(Usage("Not enough arguments: expected 1 but got 0".into()));
        }
        for item in self.expand(paths).await? {
            output::line(describe(format, &item.status))?;
        }
        Ok(())
    }

    pub(super) async fn find(&mut self, args: &[String]) -> Result<()> {
        let paths = args.iter().take_while(|arg| !arg.starts_with('-')).count();
        let (paths, rest) = args.split_at(paths);
        let home = [".".to_owned()];
        let paths = if paths.is_empty() { &home[..] } else { paths };
        let mut expression = Expression::default();
        let mut end = '\n';
        let mut words = rest.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-name" | "-iname" => {
                    let Some(pattern) = words.next() else { bail!(Usage(format!("{word} needs a pattern"))) };
                    expression.add_name(pattern, word == "-iname")?;
                }
                "-print" | "-a" | "-and" => {}
                "-print0" => end = '\0',
                other => bail!(Usage(format!("Unexpected argument: {other}"))),
            }
        }
        for item in self.expand(paths).await? {
            match fs::find::find(self.client, &item.status, &expression).await {
                Ok(found) => {
                    for status in found {
                        write!(output::stdout(), "{}{end}", item.from.show(&status.path))?;
                    }
                }
                Err(error) => self.note(&item.shown(), &error),
            }
        }
        Ok(())
    }

    pub(super) async fn test(&mut self, args: &[String]) -> Result<ExitCode> {
        let (flags, paths) = options(args, &["d", "e", "f", "s", "w", "r", "z"], (1, 1))?;
        let (1, Some(flag)) = (flags.len(), flags.first()) else {
            bail!(Usage("exactly one test is needed".into()));
        };
        let path = self.path(&paths[0])?;
        let status = self.lookup(&path.exact()?).await?;
        let holds = match status {
            None => false,
            Some(status) => fs::query::holds(self.client, &status, flag).await?,
        };
        Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, length: u64) -> FileStatus {
        FileStatus {
            path: DfsPath::parse(path).unwrap(),
            is_dir: false,
            file_id: dfs_client::ids::FileId(1),
            length,
            replication: 3,
            block_size: 1 << 20,
            owner: "ada".into(),
            group: "staff".into(),
            mode: 0o644,
            modified_ms: 0,
            accessed_ms: 0,
            open: false,
            blocks: 1,
            quota: None,
        }
    }

    #[test]
    fn listing_has_the_columns_of_hadoop() {
        let from = super::super::ClusterPath::parse("hdfs:///in", "ada").unwrap();
        let folder = FileStatus { is_dir: true, mode: 0o755, ..file("/in/b", 0) };
        let items: Vec<Item> = [file("/in/a b", 3276), folder]
            .into_iter()
            .map(|status| Item { status, from: from.clone() })
            .collect();
        assert_eq!(
            listing(&items, false),
            [
                "-rw-r--r--   3 ada staff       3276 1970-01-01 00:00 hdfs:///in/a b",
                "drwxr-xr-x   - ada staff          0 1970-01-01 00:00 hdfs:///in/b"
            ]
        );
        assert!(listing(&items, true)[0].contains("     3.2 K 1970"));
    }

    #[test]
    fn attributes_are_formatted() {
        assert_eq!(
            describe("%n %b %r %F %a %A %u:%g %% %y", &file("/in/a", 7)),
            "a 7 3 regular file 644 rw-r--r-- ada:staff % 1970-01-01 00:00:00"
        );
        assert_eq!(size(1536, true), "1.5 K");
        assert_eq!(size(1023, true), "1023");
        assert_eq!(size(3 << 30, true), "3.0 G");
    }
}
