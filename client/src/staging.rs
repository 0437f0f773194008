//! Uploads the executable and side files of a job to its staging folder.

use crate::{Error, Result, Submission};
use dfs_client::{
    Client, ClientError, PutOptions, PutSource,
    error::{Error as DfsError, Kind},
    path::DfsPath,
};
use proto::STAGING;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// How long to wait for the staging area of a closed cluster. The JobTracker creates it at its start,
/// and again within ten seconds if it is deleted.
const AREA_TIMEOUT: Duration = Duration::from_secs(30);

/// The staging folder of one job. The JobTracker removes it when the job ends.
pub struct StagingFolder<'a> {
    client: &'a Client,
    folder: DfsPath,
    /// Whether the folder may have been created.
    may_exist: bool,
}

impl<'a> StagingFolder<'a> {
    /// Chooses a new name. The folder is created when the first file is uploaded.
    pub fn new(client: &'a Client) -> Self {
        let folder = format!("{STAGING}/{}", uuid::Uuid::new_v4());
        Self { client, folder: DfsPath::parse(&folder).expect("a plain path"), may_exist: false }
    }

    /// The client that uploads.
    #[cfg(feature = "programs")]
    pub(crate) fn client(&self) -> &Client {
        self.client
    }

    /// Uploads a local file. Returns its path in the file system.
    pub async fn put(&mut self, file: &Path) -> Result<String> {
        let name = match file.file_name() {
            Some(name) if file.is_file() => name,
            _ if file.exists() => return Err(Error::Invalid(format!("{} is not a file", file.display()))),
            _ => return Err(Error::Invalid(format!("{}: there is no such local file", file.display()))),
        };
        let Some(name) = name.to_str() else {
            return Err(Error::Invalid(format!("{}: the name is not UTF-8: rename it", file.display())));
        };
        self.put_named(file, name).await
    }

    /// Uploads a local file under another name. Returns its path in the file system.
    pub async fn put_named(&mut self, file: &Path, name: &str) -> Result<String> {
        let upload = self.put_as(name, PutSource::File(file.to_owned())).await;
        let path = upload.map_err(|source| Error::Upload { file: file.to_owned(), source })?;
        Ok(path.to_string())
    }

    /// Creates a file `name` with these bytes. Returns its path in the file system.
    pub async fn put_bytes(&mut self, name: &str, bytes: Vec<u8>) -> Result<String> {
        let source = PutSource::Reader(Box::new(std::io::Cursor::new(bytes)));
        Ok(self.put_as(name, source).await.map_err(Error::Files)?.to_string())
    }

    async fn put_as(&mut self, name: &str, source: PutSource) -> Result<DfsPath, ClientError> {
        let to = self.folder.join(name)?;
        if !self.may_exist {
            self.may_exist = true;
            self.create().await?;
        }
        self.client.put(source, &to, PutOptions::default(), &()).await?;
        Ok(to)
    }

    /// Creates the folder. In a closed cluster only the JobTracker creates the staging area, because
    /// the owner of the area could replace the files of all users.
    async fn create(&self) -> Result<(), ClientError> {
        let began = Instant::now();
        loop {
            let created = self.client.mkdir_with(&self.folder, !self.client.is_closed(), 0o700).await;
            match created {
                Err(error) if error.is(Kind::NotFound) && began.elapsed() < AREA_TIMEOUT => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) if error.is(Kind::NotFound) => {
                    let message = format!(
                        "{STAGING} does not exist: the JobTracker creates it; start it, or see its log for the reason"
                    );
                    return Err(ClientError::Refused(DfsError::new(Kind::NotFound, message)));
                }
                created => return created,
            }
        }
    }

    /// Adds the folder to a submission, so that the JobTracker removes it when the job ends.
    pub fn add_to(&self, submission: &mut Submission) {
        if self.may_exist {
            submission.staging = self.folder.to_string();
        }
    }

    /// Deletes the folder. Only for a job that was not submitted; otherwise the JobTracker deletes
    /// it.
    pub async fn discard(&self) {
        if self.may_exist {
            let _ = self.client.delete(&self.folder, true).await;
        }
    }
}
