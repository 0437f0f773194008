//! The operations on the namespace, and those on tokens.

use super::{
    Answer, Call, answers, boolean, empty,
    error::{Class, Exception},
    json,
};
use axum::{
    body::Body,
    http::{
        StatusCode,
        header::{self, HeaderValue},
    },
    response::Response,
};
use dfs_client::{Attributes, Client, ClientError, FileStatus, Quota, error::Kind, path::DfsPath};
use serde_json::{Value, json as value};
use std::{fmt::Write, io};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Number of entries in a page of a listing.
const PAGE_ENTRIES: u32 = 1000;

impl Call {
    pub(super) async fn get_file_status(&self) -> Answer {
        let status = self.caller.files.stat(&self.path).await?;
        Ok(json(&value!({ "FileStatus": answers::file_status(&status, "") })))
    }

    /// Lists a folder. The entries are sent page by page, so that a large folder needs no memory.
    pub(super) async fn list_status(self) -> Answer {
        let (first, mut more) = self.list_page("").await?;
        let mut text = String::from("{\"FileStatuses\":{\"FileStatus\":[");
        let mut after = last_suffix(&first);
        write_entries(&mut text, &first);
        if !more {
            text.push_str("]}}");
            return Ok(json_text(Body::from(text)));
        }
        let (pieces, receiver) = mpsc::channel::<io::Result<String>>(1);
        tokio::spawn(async move {
            while more && pieces.send(Ok(std::mem::take(&mut text))).await.is_ok() {
                match self.list_page(&after).await {
                    Ok((page, has_more)) => {
                        if !page.is_empty() {
                            text.push(',');
                        }
                        write_entries(&mut text, &page);
                        // A page without entries after a page with more cannot be continued.
                        more = has_more && !page.is_empty();
                        after = last_suffix(&page);
                    }
                    Err(error) => {
                        tracing::warn!(path = %self.path, why = error.message, "a listing was interrupted");
                        let _ = pieces.send(Err(io::Error::other(error.message))).await;
                        return;
                    }
                }
            }
            text.push_str("]}}");
            let _ = pieces.send(Ok(text)).await;
        });
        Ok(json_text(Body::from_stream(ReceiverStream::new(receiver))))
    }

    /// Returns the names and statuses of a page, and whether there are more. The name of a file that
    /// is listed itself is empty.
    async fn list_page(&self, after: &str) -> Result<(Vec<Value>, bool), Exception> {
        let page = self.caller.files.list_page(&self.path, after, PAGE_ENTRIES).await?;
        let entry = |status: &FileStatus| {
            let suffix = if status.path == self.path { "" } else { status.path.name() };
            answers::file_status(status, suffix)
        };
        Ok((page.entries.iter().map(entry).collect(), page.more))
    }

    /// Lists a page of a folder. `remainingEntries` is 1 if there are more, because the NameNode does
    /// not report their number.
    pub(super) async fn list_status_batch(&self) -> Answer {
        let after = self.params.text("startafter").unwrap_or_default();
        let (entries, more) = self.list_page(after).await?;
        Ok(json(&value!({ "DirectoryListing": {
            "partialListing": { "FileStatuses": { "FileStatus": entries } },
            "remainingEntries": u8::from(more),
        }})))
    }

    pub(super) async fn get_content_summary(&self) -> Answer {
        let status = self.caller.files.stat(&self.path).await?;
        let usage = self.caller.files.usage(&self.path).await?;
        Ok(json(&answers::content_summary(&status, &usage)))
    }

    pub(super) async fn get_quota_usage(&self) -> Answer {
        let status = self.caller.files.stat(&self.path).await?;
        let usage = self.caller.files.usage(&self.path).await?;
        Ok(json(&answers::quota_usage(&status, &usage)))
    }

    fn home(&self) -> String {
        format!("/user/{}", self.caller.name)
    }

    pub(super) fn get_home_directory(&self) -> Response {
        json(&value!({ "Path": self.home() }))
    }

    pub(super) fn get_trash_root(&self) -> Response {
        json(&value!({ "Path": format!("{}/.Trash", self.home()) }))
    }

    /// Lists the trash folder of the caller, if it exists.
    pub(super) async fn get_trash_roots(&self) -> Answer {
        let path = DfsPath::parse(&format!("{}/.Trash", self.home()))?;
        let roots: Vec<Value> = match self.caller.files.stat(&path).await {
            Ok(status) => {
                let mut root = answers::file_status(&status, "");
                root["path"] = path.as_str().into();
                vec![root]
            }
            Err(error) if error.is(Kind::NotFound) || error.is(Kind::NotDirectory) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(json(&value!({ "Paths": roots })))
    }

    pub(super) async fn check_access(&self) -> Answer {
        self.params.required("fsaction")?;
        let bits = self.params.action("fsaction")?.unwrap_or(0);
        self.caller.files.check_access(&self.path, bits).await?;
        Ok(empty(StatusCode::OK))
    }

    /// Returns what a new file gets, as the configuration of the gateway says.
    pub(super) fn get_server_defaults(&self) -> Response {
        let namenode = &self.service.config.namenode;
        json(&value!({ "FsServerDefaults": {
            "blockSize": namenode.block_size.0,
            "bytesPerChecksum": dfs_client::checksum::CHUNK_BYTES,
            "checksumType": 2,
            "defaultStoragePolicyId": 0,
            "encryptDataTransfer": "false",
            "fileBufferSize": 4096,
            "keyProviderUri": "",
            "replication": namenode.replication,
            "trashInterval": 0,
            "writePacketSize": dfs_client::bulk::PACKET_BYTES,
        }}))
    }

    pub(super) async fn get_file_block_locations(&self) -> Answer {
        let offset = self.params.number::<u64>("offset")?.unwrap_or(0);
        let length = self.params.number::<u64>("length")?.unwrap_or(u64::MAX - offset);
        let (status, blocks) = self.caller.files.locate(&self.path, offset, length).await?;
        if status.is_dir {
            return Err(Exception::new(Class::FileNotFound, format!("Path is not a file: {}", self.path)));
        }
        Ok(json(&answers::block_locations(&blocks)))
    }

    pub(super) async fn get_status(&self) -> Answer {
        let report = self.caller.files.report().await?;
        Ok(json(&value!({ "FsStatus": {
            "capacity": report.capacity, "remaining": report.free, "used": report.used,
        }})))
    }

    /// Returns the token that the caller has shown: another one could not have fewer rights, and the
    /// gateway cannot make one. An open cluster has none.
    pub(super) fn get_delegation_token(&self) -> Response {
        let token = self.caller.token.as_ref().map(|token| value!({ "urlString": token.text }));
        json(&value!({ "Token": token }))
    }

    /// Returns when the token expires. Its validity cannot be extended.
    pub(super) fn renew_delegation_token(&self) -> Answer {
        let named = self.params.required("token")?;
        match self.caller.token.as_ref().filter(|shown| shown.text == named) {
            Some(shown) => Ok(json(&value!({ "long": shown.expires.saturating_mul(1000) }))),
            None => Err(Exception::new(Class::AccessControl, "token is not the token of this request")),
        }
    }

    pub(super) async fn mkdirs(&self) -> Answer {
        let mode = self.params.mode("permission")?;
        let files = &self.caller.files;
        files.mkdir_with(&self.path, true, mode.unwrap_or(0)).await?;
        if mode == Some(0) {
            // In a request of the file system, 0 stands for the default.
            files.set_attributes(&self.path, Attributes { mode, ..Attributes::default() }).await?;
        }
        Ok(boolean(true))
    }

    /// Renames like Hadoop: into a destination that is a folder, and `false` for what cannot be
    /// renamed. With `renameoptions` it is an exception instead, and the destination is the new path.
    pub(super) async fn rename(&self) -> Answer {
        let to = DfsPath::parse(self.params.required("destination")?)?;
        let files = &self.caller.files;
        if let Some(options) = self.params.text("renameoptions") {
            let overwrite = match options.to_ascii_uppercase().as_str() {
                "NONE" => false,
                "OVERWRITE" => true,
                _ => {
                    let why = "Invalid value for webhdfs parameter \"renameoptions\": use NONE or OVERWRITE";
                    return Err(Exception::illegal(why));
                }
            };
            files.rename(&self.path, &to, overwrite).await?;
            return Ok(empty(StatusCode::OK));
        }
        let Some(to) = rename_target(files, &self.path, to).await? else { return Ok(boolean(false)) };
        match files.rename(&self.path, &to, false).await {
            Ok(()) => Ok(boolean(true)),
            Err(error) => match error.kind() {
                Some(
                    Kind::NotFound
                    | Kind::Exists
                    | Kind::NotDirectory
                    | Kind::IsDirectory
                    | Kind::Refused
                    | Kind::Invalid,
                ) => {
                    tracing::debug!(from = %self.path, %to, %error, "not renamed");
                    Ok(boolean(false))
                }
                _ => Err(error.into()),
            },
        }
    }

    pub(super) async fn delete(&self) -> Answer {
        let recursive = self.params.flag("recursive")?.unwrap_or(false);
        Ok(boolean(self.caller.files.delete(&self.path, recursive).await?))
    }

    pub(super) async fn set_permission(&self) -> Answer {
        let mode = Some(self.params.mode("permission")?.unwrap_or(0o755));
        self.set_attributes(Attributes { mode, ..Attributes::default() }).await
    }

    pub(super) async fn set_owner(&self) -> Answer {
        let text = |name| self.params.text(name).map(str::to_owned);
        let (owner, group) = (text("owner"), text("group"));
        if owner.is_none() && group.is_none() {
            return Err(Exception::illegal("Both owner and group are empty."));
        }
        self.set_attributes(Attributes { owner, group, ..Attributes::default() }).await
    }

    async fn set_attributes(&self, attributes: Attributes) -> Answer {
        self.caller.files.set_attributes(&self.path, attributes).await?;
        Ok(empty(StatusCode::OK))
    }

    pub(super) async fn set_replication(&self) -> Answer {
        self.params.required("replication")?;
        let replication = self.params.number::<u32>("replication")?.unwrap_or(1);
        if self.caller.files.stat(&self.path).await?.is_dir {
            return Ok(boolean(false));
        }
        self.caller.files.set_replication(&self.path, replication).await?;
        Ok(boolean(true))
    }

    /// Sets the time of the last modification. Times of accesses are not recorded; Hadoop refuses to
    /// set them in the same way if it is configured so.
    pub(super) async fn set_times(&self) -> Answer {
        let time = |name| -> Result<Option<u64>, Exception> {
            match self.params.number::<i64>(name)? {
                None | Some(-1) => Ok(None),
                Some(time) => u64::try_from(time).map(Some).map_err(|_| {
                    Exception::illegal(format!(
                        "Invalid value for webhdfs parameter \"{name}\": {time} is negative"
                    ))
                }),
            }
        };
        let modified_ms = time("modificationtime")?;
        if time("accesstime")?.is_some() {
            return Err(Exception::io("Access times are not recorded: omit accesstime, or set it to -1"));
        }
        self.set_attributes(Attributes { modified_ms, ..Attributes::default() }).await
    }

    /// Sets quotas. -1 removes a limit, and a missing parameter leaves it as it is.
    pub(super) async fn set_quota(&self) -> Answer {
        let limit = |name, before: Option<u64>| -> Result<Option<u64>, Exception> {
            match self.params.number::<i64>(name)? {
                None | Some(i64::MAX) => Ok(before),
                Some(-1) => Ok(None),
                Some(limit @ 1..) => Ok(Some(limit.unsigned_abs())),
                Some(other) => Err(Exception::illegal(format!(
                    "Invalid value for webhdfs parameter \"{name}\": {other} is neither positive nor -1"
                ))),
            }
        };
        let before = self.caller.files.stat(&self.path).await?.quota.unwrap_or_default();
        let files = limit("namespacequota", before.files)?;
        let space = limit("storagespacequota", before.space)?;
        self.caller.files.set_quota(&self.path, Quota { files, space }).await?;
        Ok(empty(StatusCode::OK))
    }

    pub(super) async fn concat(&self) -> Answer {
        let sources = self.params.required("sources")?.split(',');
        let sources: Vec<DfsPath> = sources.map(DfsPath::parse).collect::<Result<_, _>>()?;
        self.caller.files.concat(&self.path, &sources).await?;
        Ok(empty(StatusCode::OK))
    }
}

/// Returns the new path of a rename: below `to` if that is a folder. None if nothing can be renamed to
/// it.
async fn rename_target(files: &Client, from: &DfsPath, to: DfsPath) -> Result<Option<DfsPath>, ClientError> {
    let found = match files.stat(&to).await {
        Ok(found) => Some(found),
        Err(error) if error.is(Kind::NotFound) => None,
        Err(error) if error.is(Kind::NotDirectory) => return Ok(None),
        Err(error) => return Err(error),
    };
    match found {
        None => Ok(Some(to)),
        Some(_) if from.is_root() => Ok(None),
        Some(found) if found.is_dir => Ok(Some(to.join(from.name())?)),
        // A file that is renamed to itself stays where it is.
        Some(_) if *from == to => Ok(Some(to)),
        Some(_) => Ok(None),
    }
}

fn last_suffix(entries: &[Value]) -> String {
    let suffix = entries.last().and_then(|last| last["pathSuffix"].as_str());
    suffix.unwrap_or_default().to_owned()
}

fn write_entries(text: &mut String, entries: &[Value]) {
    for (at, entry) in entries.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{entry}");
    }
}

fn json_text(body: Body) -> Response {
    let mut answer = Response::new(body);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
