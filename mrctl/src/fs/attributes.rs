//! `mrctl fs setrep`, `chmod`, `chown`.

use super::{
    Outcome,
    check::{await_health, files_with_missing_replicas},
    expand_all, refuse_dir, tree,
};
use crate::output::{self, Usage};
use anyhow::{Result, bail};
use daemon::Period;
use dfs_client::{Attributes, Client, FileStatus, Health};
use std::process::ExitCode;

/// Set the number of replicas of files
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl fs setrep 3 /important\n  \
    mrctl fs setrep 1 -r --wait 60s /scratch")]
pub(crate) struct Setrep {
    /// Number of replicas
    #[arg(value_name = "N", allow_negative_numbers = true, value_parser = parse_replicas)]
    replication: u32,
    /// Files, folders or patterns
    #[arg(value_name = "PATH", required_unless_present = "wait")]
    paths: Vec<String>,
    /// Include all files below folders
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Wait up to this long until all replicas exist [default without a time: 10m]
    #[arg(short, long, value_name = "TIME", num_args = 0..=1, default_missing_value = "10m", value_parser = parse_wait)]
    wait: Option<Wait>,
}

/// The value of `--wait`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wait {
    /// How long to wait.
    For(Period),
    /// A path that follows `--wait` without a time. A path begins with `/`, a time never does.
    Path(String),
}

/// How long `--wait` without a time waits.
const WAIT_DEFAULT: Period = Period::secs(600);

fn parse_wait(text: &str) -> Result<Wait, String> {
    if text.starts_with('/') {
        return Ok(Wait::Path(text.to_owned()));
    }
    text.parse().map(Wait::For).map_err(|error| format!("{error}"))
}

/// Set permission bits
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs chmod 600 /private\n  mrctl fs chmod -R g+rX,o-rwx /shared")]
pub(crate) struct Chmod {
    /// Permission bits in octal, such as 644, or changes, such as u=rw,go-w
    #[arg(value_name = "MODE", value_parser = ModeChange::parse, allow_hyphen_values = true)]
    mode: ModeChange,
    /// Files, folders or patterns
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Include everything below folders
    #[arg(short = 'R', long, short_alias = 'r')]
    recursive: bool,
}

/// Set owner and group
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs chown ada /in\n  mrctl fs chown -R ada:staff /in")]
pub(crate) struct Chown {
    /// OWNER, OWNER:GROUP or :GROUP
    #[arg(value_name = "OWNER[:GROUP]", value_parser = parse_ownership)]
    to: Ownership,
    /// Files, folders or patterns
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Include everything below folders
    #[arg(short = 'R', long, short_alias = 'r')]
    recursive: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ownership {
    pub(crate) owner: Option<String>,
    pub(crate) group: Option<String>,
}

/// New permission bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModeChange {
    Bits(u32),
    /// Changes of the existing bits, in order.
    Changes(Vec<BitChange>),
}

/// A change such as `go-w`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitChange {
    /// The bits of the classes that change, each with its read, write and execute bit.
    classes: u32,
    operator: char,
    /// The bits, for all classes.
    bits: u32,
    /// Whether execute bits are for folders, and for files that have one already.
    execute_if: bool,
}

/// The sticky bit.
const STICKY: u32 = 0o1000;

impl ModeChange {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with(|one: char| one.is_ascii_digit()) {
            return parse_mode(text).map(Self::Bits);
        }
        let wrong = || format!("{text:?}: write bits in octal, such as 644, or changes such as u=rw,go-w");
        let change = |clause: &str| {
            let at = clause.find(['+', '-', '=']).ok_or_else(wrong)?;
            let (who, rest) = clause.split_at(at);
            let (operator, letters) = rest.split_at(1);
            let classes = who.chars().try_fold(0, |bits, one| {
                Some(
                    bits | match one {
                        'u' => 0o700,
                        'g' => 0o070,
                        'o' => 0o007,
                        'a' => 0o777,
                        _ => return None,
                    },
                )
            });
            let bits = letters.chars().try_fold(0, |bits, one| {
                Some(
                    bits | match one {
                        'r' => 0o444,
                        'w' => 0o222,
                        'x' | 'X' => 0o111,
                        't' => STICKY,
                        _ => return None,
                    },
                )
            });
            let (classes, bits) = classes.zip(bits).ok_or_else(wrong)?;
            Ok(BitChange {
                classes: if who.is_empty() { 0o777 } else { classes },
                operator: operator.chars().next().unwrap_or('='),
                bits,
                execute_if: letters.contains('X'),
            })
        };
        text.split(',').map(change).collect::<Result<_, String>>().map(Self::Changes)
    }

    /// Returns the new bits of a file or folder.
    pub(crate) fn apply(&self, status: &FileStatus) -> u32 {
        self.bits(status.mode, status.is_dir)
    }

    fn bits(&self, mode: u32, is_dir: bool) -> u32 {
        let changes = match self {
            Self::Bits(bits) => return *bits,
            Self::Changes(changes) => changes,
        };
        changes.iter().fold(mode, |mode, change| {
            let skip = change.execute_if && !is_dir && mode & 0o111 == 0;
            let bits = change.bits & (change.classes | STICKY) & if skip { !0o111 } else { !0 };
            match change.operator {
                '+' => mode | bits,
                '-' => mode & !bits,
                _ => (mode & !change.classes) | bits,
            }
        })
    }
}

/// Parses a number of replicas. The NameNode refuses more replicas than it has DataNodes.
pub(crate) fn parse_replicas(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "write a number from 1 to the number of DataNodes".into())
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o1777 => Ok(mode),
        _ => Err("write permission bits in octal, such as 644, 755 or, with the sticky bit, 1777".into()),
    }
}

pub(crate) fn parse_ownership(text: &str) -> Result<Ownership, String> {
    let (owner, group) = text.split_once(':').unwrap_or((text, ""));
    let some = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let found = Ownership { owner: some(owner), group: some(group) };
    if found.owner.is_none() && found.group.is_none() {
        return Err("write OWNER, OWNER:GROUP or :GROUP".into());
    }
    Ok(found)
}

pub(crate) async fn setrep(args: Setrep, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let (mut paths, wait) = (args.paths, args.wait);
    let wait = wait.map(|wait| match wait {
        Wait::For(time) => time,
        Wait::Path(path) => {
            paths.push(path);
            WAIT_DEFAULT
        }
    });
    if paths.is_empty() {
        bail!(Usage("setrep: name at least one path".into()));
    }
    let roots = expand_all(client, &paths, &mut outcome).await?;
    for root in &roots {
        let set = async {
            if !args.recursive {
                refuse_dir(root, "use -r for all files below it")?;
            }
            for file in client.walk(&root.path).await?.into_iter().filter(|file| !file.is_dir) {
                client.set_replication(&file.path, args.replication).await?;
            }
            Ok(())
        };
        if let Err(error) = set.await {
            outcome.note(error)?;
        }
    }
    if let Some(wait) = wait {
        for root in &roots {
            let fsck = await_health(client, &root.path, wait.0).await?;
            if fsck.status != Health::Healthy {
                let (path, files) = (&root.path, files_with_missing_replicas(&fsck).len() as u64);
                let files = output::count(files, "file");
                bail!("{path}: {files} with too few replicas after {wait}; the copies continue");
            }
        }
    }
    Ok(outcome.code())
}

pub(crate) async fn chmod(args: Chmod, client: &Client) -> Result<ExitCode> {
    let change =
        |status: &FileStatus| Attributes { mode: Some(args.mode.apply(status)), ..Attributes::default() };
    apply(client, &args.paths, args.recursive, change).await
}

pub(crate) async fn chown(args: Chown, client: &Client) -> Result<ExitCode> {
    let Ownership { owner, group } = args.to;
    let attributes = Attributes { owner, group, ..Attributes::default() };
    apply(client, &args.paths, args.recursive, |_| attributes.clone()).await
}

async fn apply(
    client: &Client,
    paths: &[String],
    recursive: bool,
    change: impl Fn(&FileStatus) -> Attributes,
) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    for root in expand_all(client, paths, &mut outcome).await? {
        if let Err(error) = set(client, root, recursive, &change).await {
            outcome.note(error)?;
        }
    }
    Ok(outcome.code())
}

/// Changes the attributes of a file or folder and, if `recursive`, of everything below it.
pub(crate) async fn set(
    client: &Client,
    root: FileStatus,
    recursive: bool,
    change: impl Fn(&FileStatus) -> Attributes,
) -> Result<()> {
    for status in if recursive { tree(client, root).await? } else { vec![root] } {
        client.set_attributes(&status.path, change(&status)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_replicas_and_negative_numbers_are_refused_with_the_range() {
        assert_eq!(parse_replicas("3"), Ok(3));
        for text in ["0", "-1", "two", ""] {
            assert_eq!(parse_replicas(text).unwrap_err(), "write a number from 1 to the number of DataNodes");
        }
    }

    #[test]
    fn modes_are_octal_up_to_1777() {
        assert_eq!(parse_mode("755"), Ok(0o755));
        assert_eq!(parse_mode("0644"), Ok(0o644));
        assert_eq!(parse_mode("1777"), Ok(0o1777));
        for text in ["rwx", "888", "2777", ""] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn changes_of_modes_are_applied_in_order() {
        for (text, before, is_dir, after) in [
            ("u+x", 0o644, false, 0o744),
            ("go-r,u=rwx", 0o644, false, 0o700),
            ("+w", 0o444, false, 0o666),
            ("a=r", 0o1777, true, 0o1444),
            ("+t", 0o755, true, 0o1755),
            ("g+rX", 0o600, false, 0o640),
            ("g+rX", 0o700, false, 0o750),
            ("g+rX", 0o600, true, 0o650),
        ] {
            assert_eq!(ModeChange::parse(text).unwrap().bits(before, is_dir), after, "{text}");
        }
        assert_eq!(ModeChange::parse("0755"), Ok(ModeChange::Bits(0o755)));
        for text in ["", "u", "z+x", "u+q", "u+x,", "888"] {
            assert!(ModeChange::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn wait_takes_a_time_or_leaves_a_path() {
        assert_eq!(parse_wait("5s"), Ok(Wait::For(Period::secs(5))));
        assert_eq!(parse_wait("/a"), Ok(Wait::Path("/a".into())));
        assert!(parse_wait("soon").is_err());
    }

    #[test]
    fn owner_or_group_may_be_omitted() {
        let parts = |text| parse_ownership(text).map(|found| (found.owner, found.group));
        assert_eq!(parts("ada"), Ok((Some("ada".into()), None)));
        assert_eq!(parts("ada:staff"), Ok((Some("ada".into()), Some("staff".into()))));
        assert_eq!(parts(":staff"), Ok((None, Some("staff".into()))));
        assert!(parse_ownership(":").is_err());
    }
}
