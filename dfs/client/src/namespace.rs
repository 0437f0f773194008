//! Calls on the namespace: stat, list, glob, walk, mkdir, rename, delete, attributes, quotas,
//! concat, fenced commits.

use super::call::Operation;
use super::glob::{self, Segment};
use super::rpc;
use super::wire;
use super::{
    Attributes, Client, ClientError, Commit, FileStatus, ListPage, LocatedBlock, Quota, Result, Usage,
};
use crate::error::{Error, Kind};
use crate::ids::{RequestId, Start};
use crate::path::DfsPath;
use proto::dfs as pb;

/// Number of entries per page.
const PAGE_ENTRIES: u32 = 1000;

/// Returns a new random request ID, encoded for a message.
pub(super) fn request_id() -> Vec<u8> {
    RequestId::random().0.to_be_bytes().to_vec()
}

/// Reads a folder page by page.
pub(super) struct Pages<'a> {
    client: &'a Client,
    folder: &'a DfsPath,
    /// The last name that was read.
    after: String,
    at_end: bool,
}

impl Pages<'_> {
    /// Returns the next page; None after the last one.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<FileStatus>>> {
        if self.at_end {
            return Ok(None);
        }
        let ListPage { entries, more } =
            self.client.list_page(self.folder, &self.after, PAGE_ENTRIES).await?;
        let last = entries.last().map_or("", |last| last.path.name());
        if more && last <= self.after.as_str() {
            let what = Operation("list", self.folder.as_str());
            return Err(what.bad_reply("a page does not continue after the previous one"));
        }
        (self.after, self.at_end) = (last.to_owned(), !more);
        Ok(Some(entries))
    }
}

impl Client {
    /// Returns the status of a file or folder.
    pub async fn stat(&self, path: &DfsPath) -> Result<FileStatus> {
        let what = Operation("stat", path.as_str());
        self.stat_inner(what, pb::StatRequest { path: path.to_string(), ..<_>::default() }).await
    }

    /// Returns the status of a file or folder if the caller has these permissions on it: 4 to read, 2
    /// to write, 1 to execute a file or enter a folder, or a sum of them. Else the error is of kind
    /// `Denied`.
    pub async fn check_access(&self, path: &DfsPath, bits: u32) -> Result<FileStatus> {
        let what = Operation("check the access to", path.as_str());
        let request = pb::StatRequest { path: path.to_string(), access: bits, ..<_>::default() };
        self.stat_inner(what, request).await
    }

    /// Returns the status of a path at which the caller is going to create files. If the path does
    /// not exist, the error is of kind `Denied` if this user may not create it, and of kind `Quota`
    /// if a quota does not allow `entries` more files and folders.
    pub async fn stat_for_create(&self, path: &DfsPath, entries: u64) -> Result<FileStatus> {
        let what = Operation("stat", path.as_str());
        let request = pb::StatRequest { path: path.to_string(), for_create: true, entries, ..<_>::default() };
        self.stat_inner(what, request).await
    }

    async fn stat_inner(&self, what: Operation<'_>, request: pb::StatRequest) -> Result<FileStatus> {
        let reply = self.call(what, request, rpc::stat).await?;
        wire::file_status(reply.status).map_err(|reason| what.bad_reply(reason))
    }

    /// Returns whether a file or folder exists at `path`.
    pub async fn exists(&self, path: &DfsPath) -> Result<bool> {
        Ok(self.stat_opt(path).await?.is_some())
    }

    pub(super) async fn stat_opt(&self, path: &DfsPath) -> Result<Option<FileStatus>> {
        match self.stat(path).await {
            Ok(status) => Ok(Some(status)),
            // A path below a file does not exist.
            Err(error) if error.is(Kind::NotFound) || error.is(Kind::NotDirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the entries of a folder, sorted by name. For a file, returns the file itself.
    pub async fn list(&self, path: &DfsPath) -> Result<Vec<FileStatus>> {
        let mut entries: Vec<FileStatus> = Vec::new();
        let mut pages = self.pages(path);
        while let Some(page) = pages.next().await? {
            entries.extend(page);
        }
        Ok(entries)
    }

    /// Returns the pages of a folder, for callers that do not keep all entries.
    pub(super) fn pages<'a>(&'a self, folder: &'a DfsPath) -> Pages<'a> {
        Pages { client: self, folder, after: String::new(), at_end: false }
    }

    /// Returns a page of a folder: at most `limit` entries after the name `start_after`. A limit of
    /// 0 is the default of the server.
    pub async fn list_page(&self, path: &DfsPath, start_after: &str, limit: u32) -> Result<ListPage> {
        let what = Operation("list", path.as_str());
        let request = pb::ListRequest { path: path.to_string(), start_after: start_after.to_owned(), limit };
        let reply = self.call(what, request, rpc::list).await?;
        let entries = reply.entries.into_iter().map(|entry| wire::file_status(Some(entry)));
        let entries = entries.collect::<wire::WireResult<_>>().map_err(|reason| what.bad_reply(reason))?;
        Ok(ListPage { entries, more: reply.more })
    }

    /// Returns the sorted matches of a pattern with `*`, `?`, `[..]`, `{a,b}`. The list is empty if
    /// nothing matches.
    pub async fn glob(&self, pattern: &str) -> Result<Vec<FileStatus>> {
        Ok(self.glob_at_most(pattern, usize::MAX).await?.unwrap_or_default())
    }

    /// Does the same as [`Client::glob`]. Returns None if a part of the pattern has more than `max`
    /// matches.
    pub(super) async fn glob_at_most(&self, pattern: &str, max: usize) -> Result<Option<Vec<FileStatus>>> {
        let mut found = Vec::new();
        for segments in glob::parse(pattern)? {
            let Some(matches) = self.glob_segments(&segments, max).await? else { return Ok(None) };
            found.extend(matches);
            if found.len() > max {
                return Ok(None);
            }
        }
        found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        found.dedup_by(|a, b| a.path == b.path);
        Ok(Some(found))
    }

    async fn glob_segments(&self, segments: &[Segment], max: usize) -> Result<Option<Vec<FileStatus>>> {
        let mut level = vec![DfsPath::root()];
        for (index, segment) in segments.iter().enumerate() {
            let last = index + 1 == segments.len();
            let mut next = Vec::new();
            for folder in level {
                match segment {
                    Segment::Literal(name) => next.push(folder.join(name)?),
                    Segment::Pattern(pattern) => {
                        let fits =
                            |entry: &FileStatus| pattern.matches(entry.path.name()) && (last || entry.is_dir);
                        self.add_matches(&folder, fits, &mut next, max).await?;
                    }
                }
                if next.len() > max {
                    return Ok(None);
                }
            }
            level = next;
        }
        let mut found = Vec::new();
        for path in level {
            found.extend(self.stat_opt(&path).await?);
        }
        Ok(Some(found))
    }

    /// Adds the paths of the entries of `folder` that fit, until there are more than `max` paths. A
    /// file has no entries.
    async fn add_matches(
        &self,
        folder: &DfsPath,
        fits: impl Fn(&FileStatus) -> bool,
        paths: &mut Vec<DfsPath>,
        max: usize,
    ) -> Result<()> {
        if !self.stat_opt(folder).await?.is_some_and(|status| status.is_dir) {
            return Ok(());
        }
        let mut pages = self.pages(folder);
        while paths.len() <= max {
            match pages.next().await {
                Ok(Some(page)) => paths.extend(page.into_iter().filter(&fits).map(|entry| entry.path)),
                Ok(None) => break,
                // The folder was deleted after the first call.
                Err(error) if error.is(Kind::NotFound) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns all files below `path`, depth first and sorted. For a file, returns the file itself.
    pub async fn walk(&self, path: &DfsPath) -> Result<Vec<FileStatus>> {
        let status = self.stat(path).await?;
        if !status.is_dir {
            return Ok(vec![status]);
        }
        let mut files = Vec::new();
        // Entries that are not visited yet, in reverse order.
        let mut stack = self.list(path).await?;
        stack.reverse();
        while let Some(entry) = stack.pop() {
            if entry.is_dir {
                let children = self.list(&entry.path).await?;
                stack.extend(children.into_iter().rev());
            } else {
                files.push(entry);
            }
        }
        Ok(files)
    }

    /// Creates a folder. With `parents`, also creates missing parents, and succeeds if the folder
    /// already exists.
    pub async fn mkdir(&self, path: &DfsPath, parents: bool) -> Result<()> {
        self.mkdir_with(path, parents, 0).await
    }

    /// Creates a folder like [`Client::mkdir`], with these permission bits. A mode of 0 is the
    /// default of the NameNode.
    pub async fn mkdir_with(&self, path: &DfsPath, parents: bool, mode: u32) -> Result<()> {
        let request = pb::MkdirRequest { request_id: request_id(), path: path.to_string(), parents, mode };
        let what = Operation("mkdir", path.as_str());
        self.call(what, request, rpc::mkdir).await?;
        Ok(())
    }

    /// Moves a file or folder to another path.
    pub async fn rename(&self, from: &DfsPath, to: &DfsPath, overwrite: bool) -> Result<()> {
        let request = pb::RenameRequest {
            request_id: request_id(),
            from: from.to_string(),
            to: to.to_string(),
            overwrite,
        };
        let what = Operation("rename", from.as_str());
        self.call(what, request, rpc::rename).await?;
        Ok(())
    }

    /// Deletes a file or folder. Returns whether it existed.
    pub async fn delete(&self, path: &DfsPath, recursive: bool) -> Result<bool> {
        let request = pb::DeleteRequest { request_id: request_id(), path: path.to_string(), recursive };
        let what = Operation("delete", path.as_str());
        let reply = self.call(what, request, rpc::delete).await?;
        Ok(reply.existed)
    }

    /// Sets the wanted number of replicas of a file.
    pub async fn set_replication(&self, path: &DfsPath, replication: u32) -> Result<()> {
        let attributes = Attributes { replication: Some(replication), ..Attributes::default() };
        self.set_attributes(path, attributes).await
    }

    /// Changes the attributes that are given.
    pub async fn set_attributes(&self, path: &DfsPath, attributes: Attributes) -> Result<()> {
        let Attributes { replication, mode, owner, group, modified_ms } = attributes;
        let request = pb::SetAttributesRequest {
            request_id: request_id(),
            path: path.to_string(),
            replication,
            mode,
            owner,
            group,
            modified_ms,
        };
        let what = Operation("set attributes of", path.as_str());
        self.call(what, request, rpc::set_attributes).await?;
        Ok(())
    }

    /// Sets the quota of a folder. A `None` removes that limit.
    pub async fn set_quota(&self, path: &DfsPath, quota: Quota) -> Result<()> {
        let quota = Some(pb::Quota { files: quota.files, space: quota.space });
        let request = pb::SetQuotaRequest { request_id: request_id(), path: path.to_string(), quota };
        let what = Operation("set the quota of", path.as_str());
        self.call(what, request, rpc::set_quota).await?;
        Ok(())
    }

    /// Returns the size of the file or of the contents of the folder.
    pub async fn usage(&self, path: &DfsPath) -> Result<Usage> {
        let request = pb::UsageRequest { path: path.to_string() };
        let what = Operation("measure", path.as_str());
        let reply = self.call(what, request, rpc::usage).await?;
        Ok(wire::usage(&reply))
    }

    /// Appends the blocks of `sources` to `target`. This changes only metadata; the sources are
    /// removed.
    pub async fn concat(&self, target: &DfsPath, sources: &[DfsPath]) -> Result<FileStatus> {
        let request = pb::ConcatRequest {
            request_id: request_id(),
            target: target.to_string(),
            sources: sources.iter().map(ToString::to_string).collect(),
        };
        let what = Operation("concat", target.as_str());
        let reply = self.call(what, request, rpc::concat).await?;
        wire::file_status(reply.status).map_err(|reason| what.bad_reply(reason))
    }

    /// Sets the fence of `scope` to `start`: commits of the scope with a lower epoch, or with the
    /// same epoch and another ID, are refused from now on. `earlier` are the starts of the same
    /// journal before `start`, ordered by epoch. The call is refused if they show that the caller
    /// uses an older copy of the journal.
    pub async fn fence(&self, scope: &str, start: Start, earlier: &[Start]) -> Result<()> {
        let earlier = earlier.iter().map(|one| pb::EarlierStart { epoch: one.epoch, start_id: one.id.0 });
        let request = pb::FenceRequest {
            request_id: request_id(),
            scope: scope.to_owned(),
            epoch: start.epoch,
            start_id: start.id.0,
            earlier: earlier.collect(),
        };
        self.call(Operation("fence", scope), request, rpc::fence).await?;
        Ok(())
    }

    /// Reports the active jobs of a scope: the IDs in `live`, and all IDs from `next` on, which are
    /// not assigned yet. The tokens of tasks of other jobs become invalid.
    pub async fn report_active_jobs(
        &self,
        scope: &str,
        start: Start,
        next: u64,
        live: Vec<u64>,
    ) -> Result<()> {
        let (epoch, start_id) = (start.epoch, start.id.0);
        let request = pb::ReportActiveJobsRequest { scope: scope.to_owned(), epoch, next, live, start_id };
        self.call(Operation("report the active jobs of", scope), request, rpc::report_active_jobs).await?;
        Ok(())
    }

    /// Does an atomic commit. Returns whether the commit had already been done.
    pub async fn commit(&self, commit: Commit) -> Result<bool> {
        let texts = |paths: &[DfsPath]| paths.iter().map(ToString::to_string).collect();
        let moves = commit.moves.iter();
        let request = pb::CommitRequest {
            request_id: request_id(),
            scope: commit.scope,
            epoch: commit.start.epoch,
            start_id: commit.start.id.0,
            commit_id: commit.commit_id.clone(),
            moves: moves
                .map(|one| pb::CommitMove { pieces: texts(&one.pieces), to: one.to.to_string() })
                .collect(),
            deletes: texts(&commit.deletes),
        };
        let what = Operation("commit", &commit.commit_id);
        let reply = self.call(what, request, rpc::commit).await?;
        Ok(reply.already_done)
    }

    /// Returns the status of a file and all of its blocks in `offset..offset + length`. The number
    /// of blocks per reply is limited, so this may take several calls.
    pub async fn locate(
        &self,
        path: &DfsPath,
        offset: u64,
        length: u64,
    ) -> Result<(FileStatus, Vec<LocatedBlock>)> {
        let (status, mut blocks) = self.locate_range(path, offset, length).await?;
        let end = offset.saturating_add(length).min(status.length);
        while let Some(at) = blocks.last().map(|last| last.offset + last.length)
            && at < end
        {
            let (now, more) = self.locate_range(path, at, end - at).await?;
            if now.file_id != status.file_id || more.is_empty() {
                let message = format!("{path} was replaced or truncated during the call: try again");
                return Err(Error::new(Kind::NotFound, message).into());
            }
            blocks.extend(more);
        }
        Ok((status, blocks))
    }

    async fn locate_range(
        &self,
        path: &DfsPath,
        offset: u64,
        length: u64,
    ) -> Result<(FileStatus, Vec<LocatedBlock>)> {
        let what = Operation("locate", path.as_str());
        let reader_host = self.inner.options.host.clone();
        let request = pb::LocateRequest { path: path.to_string(), offset, length, reader_host };
        let reply = self.call(what, request, rpc::locate).await?;
        let bad = |reason: String| -> ClientError { what.bad_reply(reason) };
        let status = wire::file_status(reply.status).map_err(bad)?;
        let blocks = wire::located_blocks(reply.blocks).map_err(bad)?;
        Ok((status, blocks))
    }
}
