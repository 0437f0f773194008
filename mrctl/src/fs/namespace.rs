//! `mrctl fs mkdir`, `touch`, `rm`, `mv`, `concat`: commands that change only the namespace and move no
//! bytes.

use super::{
    MissingPaths, Outcome,
    dest::{self, Dest, Existing},
    expand, expand_all, is_absent, is_pattern, lookup, refuse_dir,
    trash::Trash,
};
use crate::output::{self, Usage};
use anyhow::{Context, Result, bail};
use clusters::locate::Target;
use dfs_client::{Attributes, Client, CreateOptions, FileStatus, path::DfsPath};
use std::process::ExitCode;

/// Create folders
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs mkdir /in\n  mrctl fs mkdir -p /in/2026/11")]
pub(crate) struct Mkdir {
    /// Folders
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Also create missing parent folders; succeed if a folder already exists
    #[arg(short, long)]
    parents: bool,
}

/// Delete files or folders, or move them to the trash
///
/// With the setting `client.trash_interval` they are moved to /user/NAME/.Trash, where they expire
/// after that time (see `mrctl fs expunge`); to get one back, move it. Otherwise they are deleted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs rm /old\n  mrctl fs rm -r /counts '/tmp/old-*'")]
pub(crate) struct Rm {
    /// Files, folders or patterns
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Delete folders and everything in them
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short, long)]
    force: bool,
    /// Delete permanently, also with a trash
    #[arg(long)]
    skip_trash: bool,
}

/// Move or rename files and folders, each in one atomic step
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mrctl fs mv [OPTIONS] <SRC>... <DST>",
    after_help = "Examples:\n  mrctl fs mv /a /b\n  mrctl fs mv '/in/*.log' /archive/"
)]
pub(crate) struct Mv {
    /// Sources or patterns, then the new name or a folder
    #[arg(value_name = "PATH", num_args = 2.., required = true)]
    paths: Vec<String>,
    /// Replace an existing file with the new name
    #[arg(short, long)]
    force: bool,
}

/// Create empty files, or set the time of existing ones to now
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs touch /in/_DONE")]
pub(crate) struct Touch {
    /// Files, or folders that exist
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Do not create files that do not exist
    #[arg(short = 'c', long)]
    no_create: bool,
}

/// Append files to another file without copying bytes
///
/// The blocks of the sources become the end of the target, and the sources no longer exist.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs concat /out/part-r-00000 '/out/part-*'     join all parts")]
pub(crate) struct Concat {
    /// File to append to
    target: String,
    /// Files or patterns to append, in this order
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<String>,
}

pub(crate) async fn mkdir(args: Mkdir, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    for text in &args.paths {
        let made = async { Ok(client.mkdir(&DfsPath::parse(text)?, args.parents).await?) };
        if let Err(error) = made.await {
            outcome.note(error)?;
        }
    }
    Ok(outcome.code())
}

pub(crate) async fn rm(args: Rm, client: &Client, target: &Target) -> Result<ExitCode> {
    let trash = if args.skip_trash { None } else { Trash::in_use(target)? };
    let mut outcome = Outcome::default();
    let mut missing = MissingPaths::default();
    for text in &args.paths {
        if let Err(error) = rm_one(&args, client, text, trash.as_ref()).await {
            missing.add(text, error, &mut outcome)?;
        }
    }
    missing.report(&mut outcome)?;
    if let Some(trash) = trash {
        trash.expire(client, false).await?;
    }
    Ok(outcome.code())
}

async fn rm_one(args: &Rm, client: &Client, text: &str, trash: Option<&Trash>) -> Result<()> {
    let found = match expand(client, text).await {
        Ok(found) => found,
        Err(error) if args.force && is_absent(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    for status in found {
        if status.path.is_root() {
            bail!(Usage("refusing to delete /, the complete file system: name its entries".into()));
        }
        if !args.recursive {
            refuse_dir(&status, "use -r to delete it and everything in it")?;
        }
        remove(client, &status, args.recursive, trash).await?;
    }
    Ok(())
}

/// Moves a file or folder to the trash and returns its new path, or deletes it.
pub(crate) async fn remove(
    client: &Client,
    status: &FileStatus,
    recursive: bool,
    trash: Option<&Trash>,
) -> Result<Option<DfsPath>> {
    if let Some(trash) = trash
        && let Some(taken) = trash.take(client, &status.path).await?
    {
        return Ok(Some(taken));
    }
    // It is not an error if the path was deleted in the meantime.
    client.delete(&status.path, recursive).await?;
    Ok(None)
}

pub(crate) async fn touch(args: Touch, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    for text in &args.paths {
        let touched = async {
            let path = DfsPath::parse(text)?;
            match lookup(client, &path).await? {
                Some(_) => {
                    let now = Attributes { modified_ms: Some(output::now_ms()), ..Attributes::default() };
                    client.set_attributes(&path, now).await?;
                }
                None if args.no_create => {}
                None => create_empty(client, &path).await?,
            }
            Ok(())
        };
        if let Err(error) = touched.await {
            outcome.note(error)?;
        }
    }
    Ok(outcome.code())
}

/// Creates an empty file. Its folder must exist.
pub(crate) async fn create_empty(client: &Client, path: &DfsPath) -> Result<()> {
    client.create(path, CreateOptions::default()).await?.close().await?;
    Ok(())
}

/// Returns what exists at a destination, for `dest::plan`.
pub(crate) fn existing_kind(status: Option<&FileStatus>) -> Existing {
    status.map_or(Existing::None, |status| if status.is_dir { Existing::Folder } else { Existing::File })
}

pub(crate) async fn mv(args: Mv, client: &Client) -> Result<ExitCode> {
    let (dst, sources) = args.paths.split_last().context("mv needs a source and a new name")?;
    let mut outcome = Outcome::default();
    let to = DfsPath::parse(dst)?;
    sources.iter().try_for_each(|source| refuse_into_itself(source, &to))?;
    let sources = expand_all(client, sources, &mut outcome).await?;
    if sources.is_empty() {
        return Ok(outcome.code());
    }
    let way = dest::plan(sources.len(), dst, existing_kind(lookup(client, &to).await?.as_ref()))?;
    if way == Dest::IntoNew {
        client.mkdir(&to, true).await?;
    }
    for source in sources {
        let moved = async {
            let target = if way == Dest::Exact { to.clone() } else { to.join(source.path.name())? };
            if target == source.path {
                bail!(Usage(format!("{target}: source and new name are the same")));
            }
            refuse_into_itself(source.path.as_str(), &target)?;
            Ok(client.rename(&source.path, &target, args.force).await?)
        };
        if let Err(error) = moved.await {
            outcome.note(error)?;
        }
    }
    Ok(outcome.code())
}

/// Fails if the destination is the source or lies below it, whether it exists or not. Ignores
/// patterns, which are checked after their expansion.
pub(super) fn refuse_into_itself(source: &str, to: &DfsPath) -> Result<()> {
    if is_pattern(source) {
        return Ok(());
    }
    let from = DfsPath::parse(source)?;
    if *to == from {
        bail!(Usage(format!("{from} and {to} are the same: choose another name")));
    }
    if to.is_within(&from) {
        bail!(Usage(format!("{from} cannot be moved to {to}, which is inside it")));
    }
    Ok(())
}

pub(crate) async fn concat(args: Concat, client: &Client) -> Result<ExitCode> {
    let target = DfsPath::parse(&args.target)?;
    let mut sources = Vec::new();
    for text in &args.sources {
        for status in expand(client, text).await? {
            refuse_dir(&status, "only files can be joined")?;
            sources.push(status.path);
        }
    }
    // A pattern in the folder of the target usually matches the target too.
    sources.retain(|source| *source != target);
    if sources.is_empty() {
        bail!(Usage(format!("nothing to append to {target}: name other files")));
    }
    let status = client.concat(&target, &sources).await?;
    let blocks = output::count(status.blocks.into(), "block");
    output::line(format!("{target}: {} in {blocks}", output::human(status.length)))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_into_itself_is_refused() {
        let refusal = |from: &str, to: &str| {
            let error = refuse_into_itself(from, &DfsPath::parse(to).unwrap()).unwrap_err();
            assert_eq!(output::exit_code(&error), 2, "{error}");
            error.to_string()
        };
        assert!(refusal("/a", "/a").contains("the same") && refusal("/a", "/a/").contains("the same"));
        assert!(refusal("/a", "/a/b").contains("inside it"));
        assert!(refusal("a", "/b").contains('a'));
        for (from, to) in [("/a", "/ab"), ("/a/b", "/a"), ("/a*", "/a/b")] {
            refuse_into_itself(from, &DfsPath::parse(to).unwrap()).unwrap();
        }
    }
}
