//! Uploads the executable and side files of a job to its staging folder.

use crate::output::Usage;
use anyhow::{Context, Result};
use dfs_client::{Client, PutOptions, PutSource, path::DfsPath};
use proto::STAGING;
use std::path::Path;

/// The staging folder of one job. The JobTracker removes it when the job ends.
pub(super) struct Stage<'a> {
    client: &'a Client,
    pub(super) folder: DfsPath,
    /// Whether the folder may have been created.
    pub(super) used: bool,
    /// Whether the job was sent to the JobTracker.
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

    /// Uploads a small file with this content.
    pub(super) async fn put_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<String> {
        let source = PutSource::Reader(Box::new(std::io::Cursor::new(bytes)));
        Ok(self.put_as(name, source).await?.to_string())
    }

    async fn put_as(&mut self, name: &str, source: PutSource) -> Result<DfsPath> {
        let to = self.folder.join(name)?;
        if !self.used {
            self.used = true;
            // Only the user may read the executable and side files.
            self.client.mkdir_with(&self.folder, true, 0o700).await?;
        }
        self.client.put(source, &to, PutOptions::default(), &()).await?;
        Ok(to)
    }

    /// Removes the folder after a failed submission.
    pub(super) async fn discard(&self) {
        if self.used {
            let _ = self.client.delete(&self.folder, true).await;
        }
    }
}
