//! `hadoop fs` and `hdfs dfs`: the commands of Hadoop's file system shell, with their options,
//! output and exit codes, over the functions of `mrctl fs`.
//!
//! Exit codes: 0; 1 after an error; 255 for a usage error. An error is one line on standard error,
//! `COMMAND: TEXT`, and the command continues with the next path. Deliberately absent: access
//! control lists, extended attributes, snapshots and everything else that the NameNode does not
//! have. They are refused by name.

mod change;
mod show;

use super::path::ClusterPath;
use crate::{
    fs::{self, NoMatch},
    output::{self, Usage},
};
use anyhow::{Result, bail};
use clusters::locate::Target;
use dfs_client::{Client, ClientError, FileStatus, error::Kind, path::DfsPath};
use std::{collections::BTreeSet, process::ExitCode};

/// The exit code of a usage error: -1.
const USAGE: u8 = 255;

/// The commands, and their arguments.
const COMMANDS: [(&str, &str); 35] = [
    ("appendToFile", "<localsrc> ... <dst>"),
    ("cat", "[-ignoreCrc] <src> ..."),
    ("chgrp", "[-R] GROUP PATH..."),
    ("chmod", "[-R] <MODE[,MODE]... | OCTALMODE> PATH..."),
    ("chown", "[-R] [OWNER][:[GROUP]] PATH..."),
    ("copyFromLocal", "[-f] [-p] [-l] [-d] <localsrc> ... <dst>"),
    ("copyToLocal", "[-f] [-p] [-ignoreCrc] [-crc] <src> ... <localdst>"),
    ("count", "[-q] [-h] [-v] <path> ..."),
    ("cp", "[-f] [-p] [-d] <src> ... <dst>"),
    ("du", "[-s] [-h] [-v] [-x] <path> ..."),
    ("dus", "<path> ..."),
    ("expunge", "[-immediate]"),
    ("find", "<path> ... <expression> ..."),
    ("get", "[-f] [-p] [-ignoreCrc] [-crc] <src> ... <localdst>"),
    ("getmerge", "[-nl] [-skip-empty-file] <src> <localdst>"),
    ("head", "<file>"),
    ("help", "[cmd ...]"),
    ("ls", "[-C] [-d] [-h] [-q] [-R] [-t] [-S] [-r] [-u] [<path> ...]"),
    ("lsr", "[<path> ...]"),
    ("mkdir", "[-p] <path> ..."),
    ("moveFromLocal", "[-f] [-p] [-l] [-d] <localsrc> ... <dst>"),
    ("mv", "<src> ... <dst>"),
    ("put", "[-f] [-p] [-l] [-d] <localsrc> ... <dst>"),
    ("rm", "[-f] [-r|-R] [-skipTrash] <src> ..."),
    ("rmdir", "[--ignore-fail-on-non-empty] <dir> ..."),
    ("rmr", "[-skipTrash] <src> ..."),
    ("setrep", "[-R] [-w] <rep> <path> ..."),
    ("stat", "[format] <path> ..."),
    ("tail", "<file>"),
    ("test", "-[defsz] <path>"),
    ("text", "[-ignoreCrc] <src> ..."),
    ("touch", "<path> ..."),
    ("touchz", "<path> ..."),
    ("truncate", ""),
    ("usage", "[cmd ...]"),
];

/// One command and what it needs.
struct Shell<'a> {
    client: &'a Client,
    target: &'a Target,
    /// The user, whose home folder relative paths begin with.
    user: &'a str,
    /// The command, without its dash.
    name: &'a str,
    failed: bool,
}

/// A file or folder that a path of the command line names.
#[derive(Debug, Clone)]
struct Item {
    from: ClusterPath,
    status: FileStatus,
}

impl Item {
    fn shown(&self) -> String {
        self.from.show(&self.status.path)
    }
}

/// Runs a command, such as `-ls /`.
pub(super) async fn run(args: &[String], target: &Target, user: &str) -> Result<ExitCode> {
    let Some((name, rest)) = without_generic_options(args) else {
        eprintln!("{}", usage());
        return Ok(ExitCode::from(USAGE));
    };
    let name = name.strip_prefix('-').unwrap_or(name);
    if matches!(name, "help" | "usage") {
        output::line(usage())?;
        return Ok(ExitCode::SUCCESS);
    }
    if !COMMANDS.iter().any(|(known, _)| *known == name) {
        eprintln!("{name}: Unknown command\n{}", usage());
        return Ok(ExitCode::from(USAGE));
    }
    let client = target.connect_as(None).await?;
    let mut shell = Shell { client: &client, target, user, name, failed: false };
    let result = Box::pin(shell.run(rest)).await;
    client.wait_closed(fs::CLEANUP_TIMEOUT).await;
    match result {
        Ok(code) => Ok(code),
        Err(error) if error.is::<Usage>() => {
            eprintln!("-{name}: {error}\nUsage: hadoop fs [generic options] {}", usage_of(name));
            Ok(ExitCode::from(USAGE))
        }
        Err(error) if error.downcast_ref().is_some_and(is_closed) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            shell.note("", &error);
            Ok(ExitCode::FAILURE)
        }
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::BrokenPipe
}

/// Skips the options that every command of Hadoop has. Returns the command and its arguments.
fn without_generic_options(mut args: &[String]) -> Option<(&String, &[String])> {
    loop {
        args = match args {
            [option, _, rest @ ..] if matches!(option.as_str(), "-D" | "-conf" | "-fs" | "-jt") => rest,
            [option, rest @ ..] if option.starts_with("-D") && option.contains('=') => rest,
            _ => return args.split_first(),
        }
    }
}

fn usage() -> String {
    let lines = COMMANDS.iter().map(|(name, _)| format!("\t[{}]", usage_of(name)));
    format!("Usage: hadoop fs [generic options]\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn usage_of(name: &str) -> String {
    let found = COMMANDS.iter().find(|(known, _)| *known == name);
    found.map_or_else(String::new, |(name, args)| format!("-{name} {args}").trim_end().to_owned())
}

/// Takes the options before the first argument. Fails for an option that is not in `known`, and if
/// there are less than `min` arguments or more than `max`.
fn options<'a>(
    args: &'a [String],
    known: &[&str],
    (min, max): (usize, usize),
) -> Result<(BTreeSet<&'a str>, &'a [String])> {
    let mut found = BTreeSet::new();
    let mut rest = args;
    while let [first, after @ ..] = rest
        && let Some(option) = first.strip_prefix('-').filter(|option| !option.is_empty())
    {
        rest = after;
        if option == "-" {
            break;
        }
        if !known.contains(&option) {
            bail!(Usage(format!("Illegal option -{option}")));
        }
        found.insert(option);
    }
    if rest.len() < min {
        bail!(Usage(format!("Not enough arguments: expected {min} but got {}", rest.len())));
    }
    if rest.len() > max {
        bail!(Usage(format!("Too many arguments: expected {max} but got {}", rest.len())));
    }
    Ok((found, rest))
}

/// Any number of arguments, at least one.
const SOME: (usize, usize) = (1, usize::MAX);
/// A source and a destination, or more sources.
const SOURCES: (usize, usize) = (2, usize::MAX);

impl Shell<'_> {
    async fn run(&mut self, args: &[String]) -> Result<ExitCode> {
        match self.name {
            "ls" => self.ls(args, false).await?,
            "lsr" => self.ls(args, true).await?,
            "cat" => self.cat(args).await?,
            "text" => self.text(args).await?,
            "head" => self.head(args).await?,
            "tail" => self.tail(args).await?,
            "du" => self.du(args, false).await?,
            "dus" => self.du(args, true).await?,
            "count" => self.count(args).await?,
            "stat" => self.stat(args).await?,
            "find" => self.find(args).await?,
            "test" => return self.test(args).await,
            "mkdir" => self.mkdir(args).await?,
            "rm" => self.rm(args, false).await?,
            "rmr" => self.rm(args, true).await?,
            "rmdir" => self.rmdir(args).await?,
            "mv" => self.mv(args).await?,
            "cp" => self.cp(args).await?,
            "put" | "copyFromLocal" => self.put(args, false).await?,
            "moveFromLocal" => self.put(args, true).await?,
            "appendToFile" => self.append(args).await?,
            "get" | "copyToLocal" => self.get(args).await?,
            "getmerge" => self.getmerge(args).await?,
            "touchz" | "touch" => self.touch(args).await?,
            "chmod" => self.chmod(args).await?,
            "chown" | "chgrp" => self.chown(args).await?,
            "setrep" => self.setrep(args).await?,
            "expunge" => self.expunge(args).await?,
            other => bail!("{other} is not possible: files cannot be shortened"),
        }
        Ok(if self.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Prints an error about a path.
    fn note(&mut self, shown: &str, error: &anyhow::Error) {
        self.failed = true;
        let refused = error.downcast_ref::<ClientError>().and_then(ClientError::kind);
        let kind = if error.is::<NoMatch>() { Some(Kind::NotFound) } else { refused };
        let why = match kind {
            Some(Kind::NotFound) => "No such file or directory",
            Some(Kind::Exists) => "File exists",
            Some(Kind::IsDirectory) => "Is a directory",
            Some(Kind::NotDirectory) => "Is not a directory",
            Some(Kind::NotEmpty) => "Directory is not empty",
            Some(Kind::Denied) => {
                eprintln!("{}: Permission denied: {}", self.name, output::chain(error));
                return;
            }
            _ => {
                eprintln!("{}: {}", self.name, output::chain(error));
                return;
            }
        };
        self.refuse(shown, why);
    }

    /// Prints that something is wrong with a path.
    fn refuse(&mut self, shown: &str, why: &str) {
        self.failed = true;
        eprintln!("{}: `{shown}': {why}", self.name);
    }

    fn path(&self, text: &str) -> Result<ClusterPath> {
        ClusterPath::parse(text, self.user)
    }

    /// Returns what the paths and patterns name. Prints an error for each that names nothing.
    async fn expand(&mut self, texts: &[String]) -> Result<Vec<Item>> {
        let mut all = Vec::new();
        for text in texts {
            let from = self.path(text)?;
            match fs::expand(self.client, &from.path).await {
                Ok(found) => all.extend(found.into_iter().map(|status| Item { from: from.clone(), status })),
                Err(error) => self.note(text, &error),
            }
        }
        Ok(all)
    }

    async fn lookup(&self, path: &DfsPath) -> Result<Option<FileStatus>> {
        fs::lookup(self.client, path).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_come_before_the_arguments() {
        let args = words("-R -h /a -x");
        let (found, rest) = options(&args, &["R", "h"], SOME).unwrap();
        assert_eq!(found, BTreeSet::from(["R", "h"]));
        assert_eq!(rest, words("/a -x"));
        let args = words("-f - /a");
        assert_eq!(options(&args, &["f"], SOURCES).unwrap().1, words("- /a"));
        let args = words("-- -a");
        assert_eq!(options(&args, &[], SOME).unwrap().1, words("-a"));
        for (text, why) in
            [("-x /a", "Illegal option -x"), ("", "Not enough arguments: expected 1 but got 0")]
        {
            assert_eq!(options(&words(text), &["f"], SOME).unwrap_err().to_string(), why);
        }
        assert!(options(&words("a b"), &[], (1, 1)).unwrap_err().to_string().contains("Too many arguments"));
    }

    #[test]
    fn generic_options_are_skipped() {
        let args = words("-D a=b -Dc=d -fs hdfs://x -ls /");
        assert_eq!(without_generic_options(&args).unwrap().0, "-ls");
        assert!(without_generic_options(&words("-D a=b")).is_none());
    }

    #[test]
    fn each_command_has_a_usage_line_and_the_list_is_sorted() {
        assert!(COMMANDS.is_sorted_by_key(|(name, _)| name.to_lowercase()));
        assert_eq!(usage_of("lsr"), "-lsr [<path> ...]");
        assert!(usage().contains("\t[-mkdir [-p] <path> ...]"));
    }
}
