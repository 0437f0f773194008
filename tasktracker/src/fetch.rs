//! Fetches the executable and the side files of a job from the distributed file system, once per
//! job.
//!
//! If a fetch fails, the next attempt of the job tries it again. Attempts of one job wait for the
//! same fetch. The files are stored on the disk with the most space, or on another one if that disk
//! is full. All attempts of the job share the files, so they are read-only, and only the account of
//! tasks can read them.

use crate::{
    account::Account,
    disks::{DiskError, Disks, is_full, remove_tree},
};
use daemon::{Period, config::ClientConfig};
use dfs_client::{
    Client, ClientError, ClientOptions, GetOptions,
    path::{DfsPath, PathError},
};
use parking_lot::Mutex;
use proto::mr::{ClientSettings, Program, TaskSpec, program};
use security::{Credentials, SecurityError};
use std::{
    collections::{HashMap, HashSet},
    fs::{self, Permissions},
    io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::OnceCell;
use types::JobId;

/// Why the files of a job are not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The path is not valid.
    #[error("{path:?} is not a file of the job: {why}")]
    Path {
        /// Path as submitted with the job.
        path: String,
        /// What is wrong.
        why: PathError,
    },
    /// The distributed file system returned an error.
    #[error("cannot fetch {path}: {source}")]
    Dfs {
        /// Path of the file.
        path: String,
        /// Cause.
        source: ClientError,
    },
    /// The local disk returned an error.
    #[error("cannot put {path} in place: {source}")]
    Local {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// No disk has enough space.
    #[error("cannot fetch the files of {job}: {source}")]
    Disk {
        job: JobId,
        /// Cause.
        source: DiskError,
    },
    /// The token of the job cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// Two side files have the same name.
    #[error("two side files are called {0:?}: rename one")]
    DuplicateName(String),
    /// The program has a kind that this build does not know.
    #[error("the task has no program")]
    NoProgram,
}

/// The local files of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobFiles {
    /// Path of the executable; `None` for a built-in program.
    pub(crate) executable: Option<PathBuf>,
    /// The name of each side file in the working folder of an attempt, and its path.
    pub(crate) side_files: Vec<(String, PathBuf)>,
}

/// Fetches and remembers the files of all jobs.
#[derive(Debug)]
pub(crate) struct Fetcher {
    disks: Arc<Disks>,
    config: ClientConfig,
    /// Certificate authority of servers; empty without TLS.
    authority: Vec<u8>,
    jobs: Mutex<HashMap<JobId, Arc<OnceCell<JobFiles>>>>,
}

impl Fetcher {
    /// Creates a fetcher that has no files yet.
    pub(crate) fn new(disks: Arc<Disks>, config: ClientConfig, authority: Vec<u8>) -> Self {
        Self { disks, config, authority, jobs: Mutex::default() }
    }

    /// Returns the files of a job. Fetches them if no attempt of the job has done so.
    pub(crate) async fn files(&self, job: JobId, spec: &TaskSpec) -> Result<JobFiles, FetchError> {
        let program = spec.program.as_ref().ok_or(FetchError::NoProgram)?;
        match &program.kind {
            None => return Err(FetchError::NoProgram),
            Some(program::Kind::Builtin(_)) if program.files.is_empty() => {
                return Ok(JobFiles { executable: None, side_files: Vec::new() });
            }
            Some(_) => {}
        }
        let cell = self.jobs.lock().entry(job).or_default().clone();
        cell.get_or_try_init(|| self.fetch(job, spec, program)).await.cloned()
    }

    /// Returns the settings of file system clients for tasks, which are the same as those of the
    /// tracker.
    pub(crate) fn client_settings(&self) -> ClientSettings {
        let ms = |period: Period| period.0.as_millis() as u64;
        let ClientConfig { deadline, connect_timeout, parallel_blocks, short_circuit, .. } = self.config;
        ClientSettings {
            deadline_ms: ms(deadline),
            connect_timeout_ms: ms(connect_timeout),
            parallel_blocks: parallel_blocks as u32,
            short_circuit,
        }
    }

    /// Forgets the files of a job, which are going to be deleted.
    pub(crate) fn forget(&self, job: JobId) {
        self.jobs.lock().remove(&job);
    }

    async fn fetch(&self, job: JobId, spec: &TaskSpec, program: &Program) -> Result<JobFiles, FetchError> {
        // Fetch the files with the permissions of the user of the job, as its tasks read files.
        let credentials =
            Credentials::of_task(&spec.token, &self.authority, rustix::process::geteuid().as_raw())?;
        // Do not use short-circuit reads: a read error in a mapped block would kill the tracker,
        // and with it all attempts.
        let config = ClientConfig { short_circuit: false, ..self.config.clone() };
        let mut options = ClientOptions::new(spec.namenodes.as_slice(), config).with(credentials);
        if !spec.user.is_empty() {
            options.user.clone_from(&spec.user);
        }
        let client =
            Client::connect_with_retry(options).await.map_err(dfs_error(&spec.namenodes.join(",")))?;
        let client = &client;
        let account = self.disks.account();
        on_some_disk(&self.disks, job, |folder| fetch_to(client, program, folder, account)).await
    }
}

/// Names of the subfolders of a job for fetched files.
const FETCHED_SUBFOLDERS: [&str; 2] = ["program", "files"];

/// Calls `fetch` with the folder of the job on the best disk, and with other disks if that one is
/// full.
async fn on_some_disk<T, F: Future<Output = Result<T, FetchError>>>(
    disks: &Arc<Disks>,
    job: JobId,
    fetch: impl Fn(PathBuf) -> F,
) -> Result<T, FetchError> {
    let mut full = Vec::new();
    loop {
        let disk = disks.choose_except(&full).map_err(|source| FetchError::Disk { job, source })?;
        let folder = disks.job_folder(disk, job);
        let on = disks.clone();
        let made = in_background(move || {
            FETCHED_SUBFOLDERS.iter().try_for_each(|part| on.make_job_subfolder(disk, job, part).map(drop))
        });
        let done = match made.await {
            Ok(()) => fetch(folder.clone()).await,
            Err(error) => Err(local_error(&folder)(error)),
        };
        match done {
            Err(error) if error.is_full() => {
                tracing::warn!(disk = %disks.root(disk).display(), %error, "the disk is full: trying another disk");
                disks.avoid(disk);
                full.push(disk);
                // If this fails, the files are deleted with the job.
                let partial = FETCHED_SUBFOLDERS.map(|part| folder.join(part));
                in_background(move || partial.iter().try_for_each(|part| remove_tree(part))).await.ok();
            }
            other => return other,
        }
    }
}

async fn fetch_to(
    client: &Client,
    program: &Program,
    folder: PathBuf,
    account: Option<Account>,
) -> Result<JobFiles, FetchError> {
    let mut executable = None;
    if let Some(program::Kind::Executable(path)) = &program.kind {
        executable = Some(fetch_file(client, path, &folder.join("program"), account).await?.1);
    }
    let mut side_files = Vec::new();
    let mut names = HashSet::new();
    for path in &program.files {
        let (name, file) = fetch_file(client, path, &folder.join("files"), account).await?;
        if !names.insert(name.clone()) {
            return Err(FetchError::DuplicateName(name));
        }
        side_files.push((name, file));
    }
    Ok(JobFiles { executable, side_files })
}

impl FetchError {
    /// Returns whether the cause is that the distributed file system is unavailable.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Dfs { source, .. } if source.is_unavailable())
    }

    /// Returns whether the cause is that the local disk is full.
    fn is_full(&self) -> bool {
        match self {
            Self::Local { source, .. } => is_full(source),
            // The client reports errors of local files only as text.
            Self::Dfs { source: ClientError::Local { reason, .. }, .. } => {
                ["os error 28", "os error 122"].iter().any(|text| reason.contains(text))
            }
            _ => false,
        }
    }
}

/// Fetches one file into a folder. Returns its name and its path.
async fn fetch_file(
    client: &Client,
    path: &str,
    folder: &Path,
    account: Option<Account>,
) -> Result<(String, PathBuf), FetchError> {
    let from = DfsPath::parse(path).map_err(|why| FetchError::Path { path: path.into(), why })?;
    let to = folder.join(from.name());
    let options = GetOptions { overwrite: true };
    client.get(&from, &to, options, &()).await.map_err(dfs_error(path))?;
    let file = to.clone();
    in_background(move || make_readable_for_tasks(&file, account)).await.map_err(local_error(&to))?;
    Ok((from.name().into(), to))
}

/// Makes a file readable and executable for tasks (side files may be scripts). If tasks have their
/// own account, all accounts can enter the folder, so the file is made readable only for the group
/// of that account.
fn make_readable_for_tasks(file: &Path, account: Option<Account>) -> io::Result<()> {
    if let Some(account) = account {
        chown(file, None, Some(account.group))?;
    }
    fs::set_permissions(file, Permissions::from_mode(if account.is_some() { 0o550 } else { 0o555 }))
}

/// Runs a function that may block on a disk.
async fn in_background(act: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn dfs_error(path: &str) -> impl FnOnce(ClientError) -> FetchError + '_ {
    move |source| FetchError::Dfs { path: path.into(), source }
}

fn local_error(path: &Path) -> impl FnOnce(io::Error) -> FetchError + '_ {
    move |source| FetchError::Local { path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_full_error(path: &Path) -> FetchError {
        local_error(path)(io::Error::from_raw_os_error(28))
    }

    #[tokio::test]
    async fn another_disk_is_used_if_one_is_full_and_the_error_names_all_if_all_are() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().join("one"), dir.path().join("two")];
        let disks = Arc::new(Disks::open(&dirs, 0).unwrap().0);
        let full_disk = std::sync::Mutex::new(None);
        // The disk that is chosen first reports that it is full.
        let fetched = on_some_disk(&disks, JobId(1), |folder| {
            let first = full_disk.lock().unwrap().get_or_insert_with(|| folder.clone()).clone();
            std::future::ready(if first == folder { Err(disk_full_error(&folder)) } else { Ok(folder) })
        });
        let fetched = fetched.await.unwrap();
        let full_disk = full_disk.into_inner().unwrap().unwrap();
        assert_ne!(fetched, full_disk);
        assert!(!full_disk.join("files").exists() && fetched.join("files").exists());
        let failed = on_some_disk(&disks, JobId(1), |folder| {
            std::future::ready(Err::<(), _>(disk_full_error(&folder)))
        });
        let error = failed.await.unwrap_err().to_string();
        assert!(error.starts_with("cannot fetch the files of job_1: no space on "), "{error}");
        assert!(dirs.iter().all(|dir| error.contains(&*dir.to_string_lossy())), "{error}");
        // After other errors, no other disk is tried.
        let tries = std::sync::atomic::AtomicU32::new(0);
        let failed = on_some_disk(&disks, JobId(1), |_| {
            tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::ready(Err::<(), _>(FetchError::NoProgram))
        });
        failed.await.unwrap_err();
        assert_eq!(tries.into_inner(), 1);
    }
}
