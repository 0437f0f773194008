//! Files and folders: their attributes. Their contents are at `/webhdfs/v1`.

use super::{
    Answer, PAGE_DEFAULT, PAGE_MAX,
    error::{ApiError, ErrorReply},
    extract::Asked,
};
use crate::caller::Caller;
use axum::Json;
use dfs_client::{FileStatus, path::DfsPath};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which file or folder to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct FileQuery {
    /// The path in the file system.
    #[param(pattern = "^/")]
    path: String,
}

/// Which folder to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct FilesQuery {
    /// The path in the file system.
    #[param(pattern = "^/")]
    path: String,
    /// Number of entries, 100 if missing, at most 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The name to continue after: `next` of the page before.
    after: Option<String>,
}

/// A file or folder.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct File {
    path: String,
    is_dir: bool,
    /// The ID, which does not change when the file is renamed.
    file_id: u64,
    /// Length in bytes; 0 for a folder.
    length: u64,
    /// Wanted number of replicas; 0 for a folder.
    replication: u32,
    block_size: u64,
    owner: String,
    group: String,
    /// Permission bits.
    mode: u32,
    /// Time of the last modification, milliseconds since 1970.
    modified_ms: u64,
    /// Whether the file is open for writing.
    open: bool,
    blocks: u32,
}

impl From<FileStatus> for File {
    fn from(of: FileStatus) -> Self {
        Self {
            path: of.path.to_string(),
            is_dir: of.is_dir,
            file_id: of.file_id.0,
            length: of.length,
            replication: of.replication,
            block_size: of.block_size,
            owner: of.owner,
            group: of.group,
            mode: of.mode,
            modified_ms: of.modified_ms,
            open: of.open,
            blocks: of.blocks,
        }
    }
}

/// A page of a folder, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FilesPage {
    files: Vec<File>,
    /// The name to continue after; null at the end.
    next: Option<String>,
}

fn path(text: &str) -> Result<DfsPath, ApiError> {
    DfsPath::parse(text).map_err(|error| ApiError::invalid(error.to_string()))
}

/// Shows a file or folder.
#[utoipa::path(get, path = "/api/v1/files/status", params(FileQuery), responses(
    (status = 200, body = File), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn show(caller: Caller, Asked(query): Asked<FileQuery>) -> Answer<File> {
    Ok(Json(caller.files.stat(&path(&query.path)?).await?.into()))
}

/// Lists a folder. For a file, lists the file itself.
#[utoipa::path(get, path = "/api/v1/files", params(FilesQuery), responses(
    (status = 200, body = FilesPage), (status = "4XX", body = ErrorReply), (status = "5XX", body = ErrorReply)))]
pub(super) async fn list(caller: Caller, Asked(query): Asked<FilesQuery>) -> Answer<FilesPage> {
    let limit = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit={limit}: must be from 1 to {PAGE_MAX}")));
    }
    let after = query.after.as_deref().unwrap_or_default();
    let page = caller.files.list_page(&path(&query.path)?, after, limit as u32).await?;
    let next = page.entries.last().filter(|_| page.more).map(|last| last.path.name().to_owned());
    Ok(Json(FilesPage { files: page.entries.into_iter().map(File::from).collect(), next }))
}
