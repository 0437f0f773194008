//! Commands that change files and folders.

use super::{Item, SOME, SOURCES, Shell, options};
use crate::{
    fs::{
        attributes::{self, ModeChange, Ownership, parse_ownership},
        copy::{Newline, copy_tree, merge},
        dest::{self, Dest},
        get, namespace, put,
        trash::Trash,
    },
    hadoop::path,
    output::{self, Usage},
};
use anyhow::{Context, Result, bail};
use dfs_client::{Attributes, FileStatus, path::DfsPath};
use std::{fs, path::Path, time::Duration};
use tokio::io::AsyncReadExt;

/// How long `-setrep -w` waits for the copies. Hadoop waits without a limit.
const WAIT_MAX: Duration = Duration::from_hours(24 * 365);

impl Shell<'_> {
    pub(super) async fn mkdir(&mut self, args: &[String]) -> Result<()> {
        let (flags, paths) = options(args, &["p"], SOME)?;
        for text in paths {
            let made = async {
                let path = self.path(text)?.exact()?;
                anyhow::Ok(self.client.mkdir(&path, flags.contains("p")).await?)
            };
            if let Err(error) = made.await {
                self.note(text, &error);
            }
        }
        Ok(())
    }

    pub(super) async fn rm(&mut self, args: &[String], recursive: bool) -> Result<()> {
        let (flags, paths) = options(args, &["f", "r", "R", "skipTrash"], SOME)?;
        let recursive = recursive || flags.contains("r") || flags.contains("R");
        let trash = if flags.contains("skipTrash") { None } else { Trash::in_use(self.target)? };
        for text in paths {
            let from = self.path(text)?;
            let found = match crate::fs::expand(self.client, &from.path).await {
                Ok(found) => found,
                Err(error) if flags.contains("f") && crate::fs::is_absent(&error) => continue,
                Err(error) => {
                    self.note(text, &error);
                    continue;
                }
            };
            for status in found {
                let shown = from.show(&status.path);
                if status.is_dir && !recursive {
                    self.refuse(&shown, "Is a directory");
                } else if status.path.is_root() {
                    self.refuse(&shown, "Operation not permitted");
                } else {
                    match namespace::remove(self.client, &status, recursive, trash.as_ref()).await {
                        Ok(None) => output::line(format!("Deleted {shown}"))?,
                        Ok(Some(taken)) => {
                            let taken = from.show(&taken);
                            output::line(format!("Moved: '{shown}' to trash at: {taken}"))?;
                        }
                        Err(error) => self.note(&shown, &error),
                    }
                }
            }
        }
        match trash {
            Some(trash) => trash.expire(self.client, false).await,
            None => Ok(()),
        }
    }

    pub(super) async fn expunge(&mut self, args: &[String]) -> Result<()> {
        let (flags, _) = options(args, &["immediate"], (0, 0))?;
        crate::fs::trash::empty(self.client, self.target, flags.contains("immediate")).await
    }

    pub(super) async fn rmdir(&mut self, args: &[String]) -> Result<()> {
        let (flags, paths) = options(args, &["-ignore-fail-on-non-empty"], SOME)?;
        for item in self.expand(paths).await? {
            if !item.status.is_dir {
                self.refuse(&item.shown(), "Is not a directory");
                continue;
            }
            let entries = self.client.list_page(&item.status.path, "", 1).await;
            let is_empty = entries.as_ref().is_ok_and(|page| page.entries.is_empty());
            if !is_empty && entries.is_ok() && flags.contains("-ignore-fail-on-non-empty") {
                continue;
            }
            let deleted = match entries {
                Ok(_) if !is_empty => {
                    self.refuse(&item.shown(), "Directory is not empty");
                    continue;
                }
                Ok(_) => self.client.delete(&item.status.path, false).await,
                Err(error) => Err(error),
            };
            if let Err(error) = deleted {
                self.note(&item.shown(), &error.into());
            }
        }
        Ok(())
    }

    /// Returns the path of each source at the destination. Prints an error if there cannot be one.
    async fn targets(&mut self, paths: &[String]) -> Result<Vec<(Item, DfsPath)>> {
        let (dst, sources) = paths.split_last().context("two paths")?;
        let sources = self.expand(sources).await?;
        let to = self.path(dst)?.exact()?;
        let existing = self.lookup(&to).await?;
        let Ok(way) = dest::plan(sources.len(), to.as_str(), namespace::existing_kind(existing.as_ref()))
        else {
            let why = if existing.is_some() { "Is not a directory" } else { "No such file or directory" };
            self.refuse(dst, why);
            return Ok(Vec::new());
        };
        let target = |item: Item| {
            let target = if way == Dest::Exact { to.clone() } else { to.join(item.status.path.name())? };
            anyhow::Ok((item, target))
        };
        sources.into_iter().map(target).collect()
    }

    pub(super) async fn mv(&mut self, args: &[String]) -> Result<()> {
        let (_, paths) = options(args, &[], SOURCES)?;
        for (item, target) in self.targets(paths).await? {
            if self.lookup(&target).await?.is_some() {
                self.refuse(&item.from.show(&target), "File exists");
            } else if let Err(error) = self.client.rename(&item.status.path, &target, false).await {
                self.note(&item.shown(), &error.into());
            }
        }
        Ok(())
    }

    pub(super) async fn cp(&mut self, args: &[String]) -> Result<()> {
        let (flags, paths) = options(args, &["f", "p", "d"], SOURCES)?;
        let force = flags.contains("f");
        for (item, target) in self.targets(paths).await? {
            let exists = !force && !item.status.is_dir && self.lookup(&target).await?.is_some();
            if exists {
                self.refuse(&item.from.show(&target), "File exists");
            } else if let Err(error) = copy_tree(self.client, &item.status, &target, force).await {
                self.note(&item.shown(), &error);
            }
        }
        Ok(())
    }

    pub(super) async fn put(&mut self, args: &[String], moves: bool) -> Result<()> {
        let (flags, paths) = options(args, &["f", "p", "l", "d"], (1, usize::MAX))?;
        let (dst, sources) = match paths {
            [only] => (".", std::slice::from_ref(only)),
            [sources @ .., dst] => (dst.as_str(), sources),
            [] => bail!(Usage("Not enough arguments: expected 1 but got 0".into())),
        };
        let to = self.path(dst)?;
        let existing = self.lookup(&to.exact()?).await?;
        let is_folder = existing.as_ref().is_some_and(|status| status.is_dir);
        let mut locals = Vec::new();
        for source in sources {
            let Some(local) = path::local(source) else {
                bail!(Usage(format!("{source} is not a local file")))
            };
            let name = local.file_name().map(|name| name.to_string_lossy().into_owned());
            let target = match &name {
                Some(name) if is_folder => to.exact()?.join(name)?,
                _ => to.exact()?,
            };
            if source != "-" && !local.exists() {
                self.refuse(source, "No such file or directory");
            } else if !flags.contains("f") && !local.is_dir() && self.lookup(&target).await?.is_some() {
                self.refuse(&to.show(&target), "File exists");
            } else {
                locals.push(local.to_string_lossy().into_owned());
            }
        }
        if locals.is_empty() {
            return Ok(());
        }
        if locals.len() > 1 && !is_folder {
            let why = if existing.is_some() { "Is not a directory" } else { "No such file or directory" };
            self.refuse(dst, why);
            return Ok(());
        }
        let args = put::Put {
            paths: locals.iter().cloned().chain([to.path.clone()]).collect(),
            recursive: true,
            force: flags.contains("f"),
            append: false,
            replication: None,
            block_size: None,
            quiet: true,
            json: false,
        };
        self.failed |= put::copy_in(args, self.client).await?.code != 0;
        if moves && !self.failed {
            for local in locals {
                let removed = if Path::new(&local).is_dir() {
                    fs::remove_dir_all(&local)
                } else {
                    fs::remove_file(&local)
                };
                removed.with_context(|| format!("cannot delete {local}"))?;
            }
        }
        Ok(())
    }

    pub(super) async fn append(&mut self, args: &[String]) -> Result<()> {
        let (_, paths) = options(args, &[], SOURCES)?;
        let (dst, sources) = paths.split_last().context("two paths")?;
        let to = self.path(dst)?.exact()?;
        if self.lookup(&to).await?.is_none() {
            namespace::create_empty(self.client, &to).await?;
        }
        for source in sources {
            let mut reader: Box<dyn tokio::io::AsyncRead + Unpin + Send> = if source == "-" {
                Box::new(put::standard_input()?)
            } else {
                let Some(local) = path::local(source) else {
                    bail!(Usage(format!("{source} is not a local file")))
                };
                let Ok(file) = tokio::fs::File::open(&local).await else {
                    self.refuse(source, "No such file or directory");
                    continue;
                };
                Box::new(file)
            };
            let mut writer = self.client.append(&to).await?;
            let mut buffer = vec![0; 1 << 20];
            loop {
                let read = reader.read(&mut buffer).await.with_context(|| format!("cannot read {source}"))?;
                if read == 0 {
                    break;
                }
                writer.write(&buffer[..read]).await?;
            }
            writer.close().await?;
        }
        Ok(())
    }

    pub(super) async fn get(&mut self, args: &[String]) -> Result<()> {
        let (flags, paths) = options(args, &["f", "p", "ignoreCrc", "crc"], SOME)?;
        let (dst, sources) = match paths {
            [only] => (".", std::slice::from_ref(only)),
            [sources @ .., dst] => (dst.as_str(), sources),
            [] => bail!(Usage("Not enough arguments: expected 1 but got 0".into())),
        };
        let Some(local) = path::local(dst) else { bail!(Usage(format!("{dst} is not a local path"))) };
        let items = self.expand(sources).await?;
        if items.len() > 1 && !local.is_dir() {
            let why = if local.exists() { "Is not a directory" } else { "No such file or directory" };
            self.refuse(dst, why);
            return Ok(());
        }
        let force = flags.contains("f");
        let mut wanted = Vec::new();
        for item in items {
            let target = if local.is_dir() { local.join(item.status.path.name()) } else { local.clone() };
            if dst != "-" && !force && !item.status.is_dir && target.exists() {
                self.refuse(&target.display().to_string(), "File exists");
            } else {
                wanted.push(item.status.path.to_string());
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        wanted.push(local.to_string_lossy().into_owned());
        let args =
            get::Get { paths: wanted, recursive: true, force, skip_lost: false, quiet: true, json: false };
        self.failed |= get::copy_out_of(args, self.client).await?.code != 0;
        Ok(())
    }

    pub(super) async fn getmerge(&mut self, args: &[String]) -> Result<()> {
        let (flags, paths) = options(args, &["nl", "skip-empty-file"], SOURCES)?;
        let (dst, sources) = paths.split_last().context("two paths")?;
        let Some(local) = path::local(dst) else { bail!(Usage(format!("{dst} is not a local path"))) };
        let items = self.expand(sources).await?;
        if self.failed {
            return Ok(());
        }
        let newline = match (flags.contains("nl"), flags.contains("skip-empty-file")) {
            (false, _) => Newline::Never,
            (true, false) => Newline::Always,
            (true, true) => Newline::NotEmpty,
        };
        let roots: Vec<FileStatus> = items.into_iter().map(|item| item.status).collect();
        merge(self.client, &roots, &local, newline).await
    }

    pub(super) async fn touch(&mut self, args: &[String]) -> Result<()> {
        let (_, paths) = options(args, &[], SOME)?;
        for text in paths {
            let path = self.path(text)?.exact()?;
            let touched = match self.lookup(&path).await? {
                None => namespace::create_empty(self.client, &path).await,
                Some(status) if self.name == "touchz" && status.length > 0 => {
                    self.refuse(text, "Not a zero-length file");
                    continue;
                }
                Some(_) => {
                    let now = Attributes { modified_ms: Some(output::now_ms()), ..Attributes::default() };
                    self.client.set_attributes(&path, now).await.map_err(Into::into)
                }
            };
            if let Err(error) = touched {
                self.note(text, &error);
            }
        }
        Ok(())
    }

    async fn set(
        &mut self,
        paths: &[String],
        recursive: bool,
        change: impl Fn(&FileStatus) -> Attributes,
    ) -> Result<()> {
        for item in self.expand(paths).await? {
            if let Err(error) = attributes::set(self.client, item.status.clone(), recursive, &change).await {
                self.note(&item.shown(), &error);
            }
        }
        Ok(())
    }

    pub(super) async fn chmod(&mut self, args: &[String]) -> Result<()> {
        let (recursive, rest) = recursion(args);
        let [mode, paths @ ..] = rest else {
            bail!(Usage("Not enough arguments: expected 2 but got 0".into()))
        };
        if paths.is_empty() {
            bail!(Usage("Not enough arguments: expected 2 but got 1".into()));
        }
        let mode = ModeChange::parse(mode).map_err(Usage)?;
        let change =
            |status: &FileStatus| Attributes { mode: Some(mode.apply(status)), ..Attributes::default() };
        self.set(paths, recursive, change).await
    }

    pub(super) async fn chown(&mut self, args: &[String]) -> Result<()> {
        let (flags, rest) = options(args, &["R"], SOURCES)?;
        let [to, paths @ ..] = rest else {
            bail!(Usage("Not enough arguments: expected 2 but got 0".into()))
        };
        let to = if self.name == "chgrp" { format!(":{to}") } else { to.clone() };
        let Ownership { owner, group } = parse_ownership(&to).map_err(Usage)?;
        let attributes = Attributes { owner, group, ..Attributes::default() };
        self.set(paths, flags.contains("R"), |_| attributes.clone()).await
    }

    pub(super) async fn setrep(&mut self, args: &[String]) -> Result<()> {
        let (flags, rest) = options(args, &["R", "w"], SOURCES)?;
        let [number, paths @ ..] = rest else {
            bail!(Usage("Not enough arguments: expected 2 but got 0".into()))
        };
        let replication = attributes::parse_replicas(number).map_err(Usage)?;
        for item in self.expand(paths).await? {
            let set = async {
                for file in self.client.walk(&item.status.path).await?.into_iter().filter(|file| !file.is_dir)
                {
                    self.client.set_replication(&file.path, replication).await?;
                    output::line(format!("Replication {replication} set: {}", item.from.show(&file.path)))?;
                }
                if flags.contains("w") {
                    crate::fs::await_health(self.client, &item.status.path, WAIT_MAX).await?;
                }
                anyhow::Ok(())
            };
            if let Err(error) = set.await {
                self.note(&item.shown(), &error);
            }
        }
        Ok(())
    }
}

/// Takes the option `-R`. Other words that begin with a dash are modes.
fn recursion(args: &[String]) -> (bool, &[String]) {
    match args {
        [first, rest @ ..] if first == "-R" => (true, rest),
        rest => (false, rest),
    }
}
