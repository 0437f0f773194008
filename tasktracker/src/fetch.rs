//! Fetches the executable and the side files of a job from the file system, once per job.
//!
//! A failed fetch is repeated by the next attempt. Attempts of one job wait for the same fetch.
//! Files go to the disk with the most space, and to another if that is full. All attempts of the
//! job share them, so they are read-only, and readable only by the account of tasks.

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
        /// Path in the job.
        path: String,
        /// What is wrong.
        why: PathError,
    },
    /// The file system returned an error.
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
        /// The job.
        job: JobId,
        /// Cause.
        source: DiskError,
    },
    /// The token of the job cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// Two files have the same name.
    #[error("two side files are called {0:?}: rename one")]
    Twice(String),
    /// The program has a kind that this build does not know.
    #[error("the task has no program")]
    NoProgram,
}

/// The local files of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobFiles {
    /// `None` for a built-in program.
    pub(crate) executable: Option<PathBuf>,
    /// Name in the folder of the attempt, and path of the file.
    pub(crate) side: Vec<(String, PathBuf)>,
}

/// The files of all jobs.
#[derive(Debug)]
pub(crate) struct Fetcher {
    disks: Arc<Disks>,
    config: ClientConfig,
    /// Certificate authority of servers; empty without TLS.
    authority: Vec<u8>,
    jobs: Mutex<HashMap<JobId, Arc<OnceCell<JobFiles>>>>,
}

impl Fetcher {
    /// A fetcher without files.
    pub(crate) fn new(disks: Arc<Disks>, config: ClientConfig, authority: Vec<u8>) -> Self {
        Self { disks, config, authority, jobs: Mutex::default() }
    }

    /// Returns the files of the job of `spec`.
    pub(crate) async fn files(&self, job: JobId, spec: &TaskSpec) -> Result<JobFiles, FetchError> {
        let program = spec.program.as_ref().ok_or(FetchError::NoProgram)?;
        match &program.kind {
            None => return Err(FetchError::NoProgram),
            Some(program::Kind::Builtin(_)) if program.files.is_empty() => {
                return Ok(JobFiles { executable: None, side: Vec::new() });
            }
            Some(_) => {}
        }
        let cell = self.jobs.lock().entry(job).or_default().clone();
        cell.get_or_try_init(|| self.fetch(job, spec, program)).await.cloned()
    }

    /// Returns the client settings for tasks, which are those of the tracker.
    pub(crate) fn client_settings(&self) -> ClientSettings {
        let ms = |period: Period| period.0.as_millis() as u64;
        let ClientConfig { deadline, connect_timeout, parallel_blocks, short_circuit } = self.config;
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
        // As the user of the job, like its tasks.
        let credentials =
            Credentials::of_task(&spec.token, &self.authority, rustix::process::geteuid().as_raw())?;
        // Without short-circuit reads: a read error in a mapped block would kill the tracker, and
        // with it all attempts.
        let config = ClientConfig { short_circuit: false, ..self.config.clone() };
        let mut options = ClientOptions::new(spec.namenode.clone(), config).with(credentials);
        if !spec.user.is_empty() {
            options.user.clone_from(&spec.user);
        }
        let client = Client::connect_with_retry(options).await.map_err(dfs_error(&spec.namenode))?;
        let client = &client;
        let account = self.disks.account();
        on_some_disk(&self.disks, job, |folder| fetch_to(client, program, folder, account)).await
    }
}

/// Subfolders of a job for fetched files.
const PARTS: [&str; 2] = ["program", "files"];

/// Runs `fetch` on the best disk, and on others if that is full.
async fn on_some_disk<T, F: Future<Output = Result<T, FetchError>>>(
    disks: &Arc<Disks>,
    job: JobId,
    act: impl Fn(PathBuf) -> F,
) -> Result<T, FetchError> {
    let mut full = Vec::new();
    loop {
        let disk = disks.choose_except(&full).map_err(|source| FetchError::Disk { job, source })?;
        let folder = disks.job_folder(disk, job);
        let on = disks.clone();
        let made =
            in_background(move || PARTS.iter().try_for_each(|part| on.make_part(disk, job, part).map(drop)));
        let done = match made.await {
            Ok(()) => act(folder.clone()).await,
            Err(error) => Err(local(&folder)(error)),
        };
        match done {
            Err(error) if error.is_full() => {
                tracing::warn!(disk = %disks.root(disk).display(), %error, "the disk is full: trying another disk");
                disks.avoid(disk);
                full.push(disk);
                // Remaining files are removed by the clean-up of the job.
                let left = PARTS.map(|part| folder.join(part));
                in_background(move || left.iter().try_for_each(|part| remove_tree(part))).await.ok();
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
        executable = Some(get(client, path, &folder.join("program"), account).await?.1);
    }
    let mut side = Vec::new();
    let mut names = HashSet::new();
    for path in &program.files {
        let (name, file) = get(client, path, &folder.join("files"), account).await?;
        if !names.insert(name.clone()) {
            return Err(FetchError::Twice(name));
        }
        side.push((name, file));
    }
    Ok(JobFiles { executable, side })
}

impl FetchError {
    /// Whether the file system is unavailable.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Dfs { source, .. } if source.is_unavailable())
    }

    /// Whether the local disk is full.
    fn is_full(&self) -> bool {
        match self {
            Self::Local { source, .. } => is_full(source),
            // The client reports errors of a local file as text.
            Self::Dfs { source: ClientError::Local { reason, .. }, .. } => {
                ["os error 28", "os error 122"].iter().any(|text| reason.contains(text))
            }
            _ => false,
        }
    }
}
async fn get(
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
    in_background(move || make_readable_for_tasks(&file, account)).await.map_err(local(&to))?;
    Ok((from.name().into(), to))
}

/// Makes a file readable and executable for tasks (side files may be scripts). If tasks have
/// another account, other accounts can enter the folder, so the file is readable only for the group
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

fn local(path: &Path) -> impl FnOnce(io::Error) -> FetchError + '_ {
    move |source| FetchError::Local { path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(path: &Path) -> FetchError {
        local(path)(io::Error::from_raw_os_error(28))
    }

    #[tokio::test]
    async fn a_full_disk_is_left_for_another_and_named_when_all_are() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().join("one"), dir.path().join("two")];
        let disks = Arc::new(Disks::open(&dirs, 0).unwrap().0);
        let bad = std::sync::Mutex::new(None);
        // The disk that is chosen first is full.
        let fetched = on_some_disk(&disks, JobId(1), |folder| {
            let first = bad.lock().unwrap().get_or_insert_with(|| folder.clone()).clone();
            std::future::ready(if first == folder { Err(full(&folder)) } else { Ok(folder) })
        });
        let fetched = fetched.await.unwrap();
        let bad = bad.into_inner().unwrap().unwrap();
        assert_ne!(fetched, bad);
        assert!(!bad.join("files").exists() && fetched.join("files").exists());
        let failed = on_some_disk(&disks, JobId(1), |folder| std::future::ready(Err::<(), _>(full(&folder))));
        let error = failed.await.unwrap_err().to_string();
        assert!(error.starts_with("cannot fetch the files of job_1: no space on "), "{error}");
        assert!(dirs.iter().all(|dir| error.contains(&*dir.to_string_lossy())), "{error}");
        // Other errors are not repeated.
        let tries = std::sync::atomic::AtomicU32::new(0);
        let failed = on_some_disk(&disks, JobId(1), |_| {
            tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::ready(Err::<(), _>(FetchError::NoProgram))
        });
        failed.await.unwrap_err();
        assert_eq!(tries.into_inner(), 1);
    }
}
