//! `mrctl fs`: files in the cluster, with commands like those of coreutils and `hdfs dfs`.
//!
//! There is one module per command or group of commands. This module contains what the commands
//! share: expanding patterns, continuing with the next path after an error, and copying to standard
//! output.

pub(crate) mod attributes;
mod check;
pub(crate) mod copy;
pub(crate) mod dest;
pub(crate) mod find;
pub(crate) mod get;
mod ls;
pub(crate) mod namespace;
pub(crate) mod overview;
pub(crate) mod put;
pub(crate) mod query;
mod read;
pub(crate) mod trash;
mod usage;

pub(crate) use check::await_health;
pub(crate) use overview::print_nodes;
pub(crate) use read::{print, print_text};

use crate::output;
use anyhow::{Result, bail};
use clusters::locate::Target;
use dfs_client::{Client, ClientError, FileReader, FileStatus, LostRange, error::Kind, path::DfsPath};
use std::{fmt::Display, io::Write, process::ExitCode, time::Duration};

/// How long a command waits for the removal of unfinished files before it exits.
pub(crate) const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Subcommand)]
#[command(
    after_help = "Paths start with /. Patterns (* ? [..] {a,b}) are matched in the cluster:\nquote them, or your shell matches them with local files."
)]
pub(crate) enum FsCommand {
    // The help text of each command is the doc comment of its type.
    Ls(ls::Ls),
    Put(put::Put),
    Get(get::Get),
    Cat(read::Cat),
    Head(read::Head),
    Tail(read::Tail),
    Find(find::Find),
    Test(query::Test),
    Count(query::Count),
    Mkdir(namespace::Mkdir),
    Touch(namespace::Touch),
    Rm(namespace::Rm),
    Expunge(trash::Expunge),
    Mv(namespace::Mv),
    Cp(copy::Cp),
    Getmerge(copy::Getmerge),
    Concat(namespace::Concat),
    Stat(overview::Stat),
    Du(usage::Du),
    Quota(usage::Quota),
    Setrep(attributes::Setrep),
    Chmod(attributes::Chmod),
    Chown(attributes::Chown),
    Fsck(check::Fsck),
    Report(overview::Report),
    Safemode(check::Safemode),
}

pub(crate) async fn run(command: FsCommand, target: &Target) -> Result<ExitCode> {
    let client = target.connect().await?;
    let result = dispatch(command, &client, target).await;
    // Wait until unfinished files are removed before this process ends.
    client.wait_closed(CLEANUP_TIMEOUT).await;
    result
}

async fn dispatch(command: FsCommand, client: &Client, target: &Target) -> Result<ExitCode> {
    match command {
        FsCommand::Ls(args) => ls::run(args, client).await,
        FsCommand::Put(args) => put::run(args, client).await,
        FsCommand::Get(args) => get::run(args, client).await,
        FsCommand::Cat(args) => read::cat(args, client).await,
        FsCommand::Head(args) => read::head(args, client).await,
        FsCommand::Tail(args) => read::tail(args, client).await,
        FsCommand::Find(args) => find::run(args, client).await,
        FsCommand::Test(args) => query::test(args, client).await,
        FsCommand::Count(args) => query::count(args, client).await,
        FsCommand::Touch(args) => namespace::touch(args, client).await,
        FsCommand::Mkdir(args) => namespace::mkdir(args, client).await,
        FsCommand::Rm(args) => namespace::rm(args, client, target).await,
        FsCommand::Expunge(args) => trash::expunge(args, client, target).await,
        FsCommand::Mv(args) => namespace::mv(args, client).await,
        FsCommand::Cp(args) => copy::cp(args, client).await,
        FsCommand::Getmerge(args) => copy::getmerge(args, client).await,
        FsCommand::Concat(args) => namespace::concat(args, client).await,
        FsCommand::Stat(args) => overview::stat(args, client).await,
        FsCommand::Du(args) => usage::du(args, client).await,
        FsCommand::Quota(args) => usage::quota(args, client).await,
        FsCommand::Setrep(args) => attributes::setrep(args, client).await,
        FsCommand::Chmod(args) => attributes::chmod(args, client).await,
        FsCommand::Chown(args) => attributes::chown(args, client).await,
        FsCommand::Fsck(args) => check::fsck(args, client).await,
        FsCommand::Report(args) => overview::report(args, client).await,
        FsCommand::Safemode(args) => check::safemode(args, client).await,
    }
}

/// The result of a command over several paths.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The highest exit code of all failures.
    pub(crate) code: u8,
}

impl Outcome {
    /// Records a failure that has already been printed.
    fn fail(&mut self) {
        self.code = self.code.max(1);
    }

    /// Prints the error, so that the command can continue with the next path. Returns the error,
    /// which ends the command, if standard output is closed or the NameNode does not answer.
    fn note(&mut self, error: anyhow::Error) -> Result<()> {
        let closed = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
        let is_silent = matches!(error.downcast_ref(), Some(ClientError::Deadline { kind: None, .. }));
        if is_silent || error.downcast_ref().is_some_and(closed) {
            return Err(error);
        }
        eprintln!("mrctl: {}{}", output::chain(&error), read::advice(&error));
        self.code = self.code.max(output::exit_code(&error));
        Ok(())
    }

    fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// A pattern without a match.
#[derive(Debug)]
pub(crate) struct NoMatch(String);

impl Display for NoMatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nothing in the file system matches {}", self.0)
    }
}

impl std::error::Error for NoMatch {}

/// Returns whether the error means that the path does not exist.
pub(crate) fn is_absent(error: &anyhow::Error) -> bool {
    error.is::<NoMatch>() || error.downcast_ref::<ClientError>().is_some_and(|error| error.is(Kind::NotFound))
}

/// Returns whether `text` contains pattern characters.
fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Returns the file or folder at a path, or all matches of a pattern. Fails if nothing matches.
pub(crate) async fn expand(client: &Client, text: &str) -> Result<Vec<FileStatus>> {
    if !is_pattern(text) {
        return Ok(vec![client.stat(&DfsPath::parse(text)?).await?]);
    }
    let matches = client.glob(text).await?;
    if !matches.is_empty() {
        return Ok(matches);
    }
    // The name of a file may itself contain pattern characters.
    match client.stat(&DfsPath::parse(text)?).await {
        Ok(status) => Ok(vec![status]),
        Err(error) if error.is(Kind::NotFound) => Err(NoMatch(text.to_owned()).into()),
        Err(error) => Err(error.into()),
    }
}

/// Returns all files and folders that match the paths and patterns, in order. Prints an error for
/// each path that fails, and omits that path.
async fn expand_all(client: &Client, texts: &[String], outcome: &mut Outcome) -> Result<Vec<FileStatus>> {
    let mut all = Vec::new();
    let mut missing = MissingPaths::default();
    for text in texts {
        match expand(client, text).await {
            Ok(found) => all.extend(found),
            Err(error) => missing.add(text, error, outcome)?,
        }
    }
    missing.report(outcome)?;
    Ok(all)
}

/// Paths that do not exist in the cluster. If there are several such paths and all of them exist on
/// this machine, the shell has probably expanded a pattern that was meant for the cluster. Then one
/// error explains that, instead of one error per path.
#[derive(Debug, Default)]
struct MissingPaths {
    paths: Vec<(String, anyhow::Error)>,
}

impl MissingPaths {
    /// Adds a path that failed. An error other than "missing in the cluster, but exists locally" is
    /// printed at once.
    fn add(&mut self, text: &str, error: anyhow::Error, outcome: &mut Outcome) -> Result<()> {
        if is_absent(&error) && std::path::Path::new(text).exists() {
            self.paths.push((text.to_owned(), error));
            return Ok(());
        }
        outcome.note(error)
    }

    /// Prints the collected errors.
    fn report(mut self, outcome: &mut Outcome) -> Result<()> {
        if self.paths.len() < 2 {
            return self.paths.pop().map_or(Ok(()), |(_, error)| outcome.note(error));
        }
        let (number, first) = (self.paths.len(), &self.paths[0].0);
        outcome.note(anyhow::anyhow!(
            "{number} paths ({first}, ...) are on this machine but not in the file system: {}",
            output::QUOTING_ADVICE
        ))
    }
}

/// Returns the status of `path`; None if it does not exist.
pub(crate) async fn lookup(client: &Client, path: &DfsPath) -> Result<Option<FileStatus>> {
    match client.stat(path).await {
        Ok(status) => Ok(Some(status)),
        Err(error) if error.is(Kind::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns `root` and everything below it, sorted; a folder comes before its entries.
pub(crate) async fn tree(client: &Client, root: FileStatus) -> Result<Vec<FileStatus>> {
    let mut all = Vec::new();
    let mut left = vec![root];
    while let Some(next) = left.pop() {
        if next.is_dir {
            left.extend(client.list(&next.path).await?.into_iter().rev());
        }
        all.push(next);
    }
    Ok(all)
}

/// Returns the entries of a folder, or everything below it.
pub(crate) async fn below(client: &Client, folder: &FileStatus, recursive: bool) -> Result<Vec<FileStatus>> {
    if !recursive {
        return Ok(client.list(&folder.path).await?);
    }
    let mut all = tree(client, folder.clone()).await?;
    all.remove(0);
    Ok(all)
}

/// Prints which bytes of a file could not be read and were replaced by zeros. Returns whether there
/// are any.
fn report_lost(path: &DfsPath, lost: &[LostRange]) -> bool {
    for LostRange { block, offset, length, why } in lost {
        eprintln!(
            "mrctl: {path}: {} from byte {offset} on could not be read ({block}: {why}) and were replaced by zeros",
            output::count(*length, "byte")
        );
    }
    !lost.is_empty()
}

/// Copies the remainder of a file to standard output.
async fn copy_out(reader: &mut FileReader) -> Result<()> {
    let mut out = output::stdout();
    while let Some(bytes) = reader.next().await? {
        out.write_all(&bytes)?;
    }
    out.flush()?;
    Ok(())
}

/// Fails if `status` is a folder. The error says `what_to_do`.
fn refuse_dir(status: &FileStatus, what_to_do: impl Display) -> Result<()> {
    if status.is_dir {
        bail!("{} is a folder: {what_to_do}", status.path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_expanded_pattern_is_reported_once() {
        let absent = |text: &str| anyhow::Error::from(NoMatch(text.to_owned()));
        let mut outcome = Outcome::default();
        let mut missing = MissingPaths::default();
        for text in ["/", "/proc", "/no such place"] {
            missing.add(text, absent(text), &mut outcome).unwrap();
        }
        assert_eq!(missing.paths.len(), 2, "only paths that exist locally");
        missing.report(&mut outcome).unwrap();
        assert_eq!(outcome.code, 1);
    }

    #[test]
    fn only_names_with_pattern_characters_are_patterns() {
        assert!(["/a/*", "/a?", "/[ab]", "/{a,b}"].into_iter().all(is_pattern));
        assert!(!is_pattern("/a/b-c.d"));
    }
}
