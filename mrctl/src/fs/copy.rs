//! `mrctl fs cp` and `getmerge`: copies within the cluster, and several files into a local one.

use super::{
    Outcome,
    dest::{self, Dest},
    expand_all, lookup,
    namespace::{existing_kind, refuse_into_itself},
    refuse_dir, tree,
};
use crate::output::Usage;
use anyhow::{Context, Result, bail};
use dfs_client::{Client, CreateOptions, FileStatus, OnAbandon, path::DfsPath};
use std::{fs, io::Write, os::unix::fs::PermissionsExt, path::Path, process::ExitCode};

/// Copy files or folders within the cluster
///
/// A file appears completely or not at all. The bytes pass through this machine.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mrctl fs cp [OPTIONS] <SRC>... <DST>",
    after_help = "Examples:\n  mrctl fs cp /in/a /in/b\n  mrctl fs cp -r /in '/more/*' /archive/"
)]
pub(crate) struct Cp {
    /// Sources or patterns, then the new name or a folder
    #[arg(value_name = "PATH", num_args = 2.., required = true)]
    paths: Vec<String>,
    /// Copy folders and everything in them
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Replace existing files
    #[arg(short, long)]
    force: bool,
}

/// Join files of the cluster into one local file
///
/// Of a folder, its files are joined, sorted by name, without its subfolders.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mrctl fs getmerge [OPTIONS] <PATH>... <LOCAL>",
    after_help = "Examples:\n  mrctl fs getmerge /out result.txt\n  mrctl fs getmerge '/out/part-*' result.txt"
)]
pub(crate) struct Getmerge {
    /// Folders, files or patterns in the cluster, then the local file, which is replaced
    #[arg(value_name = "PATH", num_args = 2.., required = true)]
    paths: Vec<String>,
    /// Write a line end after each file
    #[arg(long)]
    newline: bool,
}

pub(crate) async fn cp(args: Cp, client: &Client) -> Result<ExitCode> {
    let (dst, sources) = args.paths.split_last().context("cp needs a source and a destination")?;
    let mut outcome = Outcome::default();
    let to = DfsPath::parse(dst)?;
    let sources = expand_all(client, sources, &mut outcome).await?;
    if sources.is_empty() {
        return Ok(outcome.code());
    }
    let way = dest::plan(sources.len(), dst, existing_kind(lookup(client, &to).await?.as_ref()))?;
    if way == Dest::IntoNew {
        client.mkdir(&to, true).await?;
    }
    for source in sources {
        let copied = async {
            if !args.recursive {
                refuse_dir(&source, "use -r to copy it and everything in it")?;
            }
            let target = if way == Dest::Exact { to.clone() } else { to.join(source.path.name())? };
            copy_tree(client, &source, &target, args.force).await
        };
        if let Err(error) = copied.await {
            outcome.note(error)?;
        }
    }
    Ok(outcome.code())
}

/// Copies a file, or a folder with everything in it, to the path `to`.
pub(crate) async fn copy_tree(
    client: &Client,
    from: &FileStatus,
    to: &DfsPath,
    overwrite: bool,
) -> Result<()> {
    refuse_into_itself(from.path.as_str(), to)?;
    for status in tree(client, from.clone()).await? {
        let rest = status.path.as_str().strip_prefix(from.path.as_str()).unwrap_or_default();
        let target = DfsPath::parse(&format!("{to}/{rest}"))?;
        if status.is_dir {
            client.mkdir(&target, true).await?;
        } else {
            copy_file(client, &status.path, &target, overwrite).await?;
        }
    }
    Ok(())
}

/// Copies a file. The copy has a hidden name until it is complete.
pub(crate) async fn copy_file(client: &Client, from: &DfsPath, to: &DfsPath, overwrite: bool) -> Result<()> {
    if !overwrite && client.exists(to).await? {
        bail!("{to} exists: replace it with --force, or choose another name");
    }
    let Some((folder, _)) = to.split_last() else { bail!(Usage("/ is a folder: name a file".into())) };
    let hidden = folder.join(&format!(".copy-{}", uuid::Uuid::new_v4().simple()))?;
    let mut reader = client.open(from).await?;
    let options = CreateOptions { on_abandon: OnAbandon::Delete, ..CreateOptions::default() };
    let mut writer = client.create(&hidden, options).await?;
    let copied: Result<()> = async {
        while let Some(bytes) = reader.next().await? {
            writer.write(&bytes).await?;
        }
        Ok(())
    }
    .await;
    if let Err(error) = copied {
        // The error of the copy explains more than one of the removal.
        let _ = writer.abort().await;
        return Err(error);
    }
    writer.close().await?;
    let renamed = client.rename(&hidden, to, overwrite).await;
    if renamed.is_err() {
        let _ = client.delete(&hidden, false).await;
    }
    Ok(renamed?)
}

pub(crate) async fn getmerge(args: Getmerge, client: &Client) -> Result<ExitCode> {
    let (local, sources) = args.paths.split_last().context("getmerge needs a path and a local file")?;
    let mut outcome = Outcome::default();
    let roots = expand_all(client, sources, &mut outcome).await?;
    if roots.is_empty() || outcome.code != 0 {
        return Ok(outcome.code());
    }
    merge(client, &roots, Path::new(local), if args.newline { Newline::Always } else { Newline::Never })
        .await?;
    Ok(ExitCode::SUCCESS)
}

/// After which files `merge` writes a line end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Newline {
    Never,
    Always,
    /// After all files that are not empty.
    NotEmpty,
}

/// Writes the files, and the files of the folders, into the local file `to`, which appears complete.
pub(crate) async fn merge(client: &Client, roots: &[FileStatus], to: &Path, newline: Newline) -> Result<()> {
    let failed = || format!("cannot write {}", to.display());
    // A link stays one.
    let to = &fs::canonicalize(to).unwrap_or_else(|_| to.to_owned());
    if fs::metadata(to).is_ok_and(|about| !about.is_file()) {
        bail!("{} exists and is no file: give another name", to.display());
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = fs::Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().permissions(mode).tempfile_in(folder).with_context(failed)?;
    for root in roots {
        let files = if root.is_dir { client.list(&root.path).await? } else { vec![root.clone()] };
        for status in files.into_iter().filter(|status| !status.is_dir) {
            let mut reader = client.open(&status.path).await?;
            while let Some(bytes) = reader.next().await? {
                file.write_all(&bytes).with_context(failed)?;
            }
            if newline == Newline::Always || (newline == Newline::NotEmpty && status.length > 0) {
                file.write_all(b"\n").with_context(failed)?;
            }
        }
    }
    file.as_file().sync_all().with_context(failed)?;
    file.persist(to).with_context(failed)?;
    Ok(())
}
