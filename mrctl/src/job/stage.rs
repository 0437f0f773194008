//! What a job's tasks need, put where they can fetch it.

use crate::output::Usage;
use anyhow::{Context, Result};
use dfs::{
    client::{Client, PutOptions, PutSource},
    path::DfsPath,
};
use proto::STAGING;
use std::path::Path;

/// A folder in the file system for one job's program and side files. The JobTracker removes it with the job.
pub(super) struct Stage<'a> {
    client: &'a Client,
    pub(super) folder: DfsPath,
    /// Whether anything may be in it.
    pub(super) used: bool,
    /// Whether the JobTracker has been told of it.
    pub(super) sent: bool,
}

impl<'a> Stage<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        let folder = format!("{STAGING}/{}", uuid::Uuid::new_v4());
        Self { client, folder: DfsPath::parse(&folder).expect("a plain path"), used: false, sent: false }
    }

    /// Uploads a local file under its own name.
    pub(super) async fn put(&mut self, file: &Path) -> Result<String> {
        let name = match file.file_name() {
            Some(name) if file.is_file() => name,
            _ if file.exists() => return Err(Usage(format!("{} is not a file", file.display())).into()),
            _ => return Err(Usage(format!("cannot find {}", file.display())).into()),
        };
        let source = PutSource::File(file.to_owned());
        let name = name.to_string_lossy();
        let to =
            self.put_as(&name, source).await.with_context(|| format!("cannot upload {}", file.display()))?;
        Ok(to.to_string())
    }

    /// Writes a small file.
    pub(super) async fn put_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<String> {
        let source = PutSource::Reader(Box::new(std::io::Cursor::new(bytes)));
        Ok(self.put_as(name, source).await?.to_string())
    }

    async fn put_as(&mut self, name: &str, source: PutSource) -> Result<DfsPath> {
        let to = self.folder.join(name)?;
        if !self.used {
            self.used = true;
            // Programs and side files are their user's.
            self.client.mkdir_with(&self.folder, true, 0o700).await?;
        }
        self.client.put(source, &to, PutOptions::default(), &()).await?;
        Ok(to)
    }

    /// Nothing came of it.
    pub(super) async fn discard(&self) {
        if self.used {
            let _ = self.client.delete(&self.folder, true).await;
        }
    }
}
