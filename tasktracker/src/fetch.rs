//! What a job brings along, fetched from the file system once a job: its executable and its side files.
//!
//! A fetch that fails is tried again by the next attempt; one that finds a full disk goes on to another. Attempts of
//! one job wait for the same fetch.

use crate::{
    disks::{DiskError, Disks, says_full},
    ids::Job,
};
use daemon::config::ClientConfig;
use dfs::{
    client::{Client, ClientError, ClientOptions, GetOptions},
    path::{DfsPath, PathError},
};
use parking_lot::Mutex;
use proto::mr::{Program, TaskSpec, program};
use std::{
    collections::{HashMap, HashSet},
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::OnceCell;

/// Why a job's files are not here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// Not a path.
    #[error("{path:?} is not a file of the job: {why}")]
    Path {
        /// As the job says.
        path: String,
        /// What is wrong.
        why: PathError,
    },
    /// The file system would not.
    #[error("cannot fetch {path}: {source}")]
    Dfs {
        /// What.
        path: String,
        /// Why.
        source: ClientError,
    },
    /// Our disk would not.
    #[error("cannot put {path} in place: {source}")]
    Local {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no folder for it.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Two files want the same place.
    #[error("two side files are called {0:?}: rename one")]
    Twice(String),
    /// The program is of a kind that this build does not know.
    #[error("the task names no program")]
    NoProgram,
}

/// A job's files on this machine.
#[derive(Debug, Clone)]
pub(crate) struct JobFiles {
    /// None for a program that is built in.
    pub(crate) executable: Option<PathBuf>,
    /// Name in the attempt's folder, and where the file is.
    pub(crate) side: Vec<(String, PathBuf)>,
}

/// The files of all jobs.
#[derive(Debug)]
pub(crate) struct Fetcher {
    disks: Arc<Disks>,
    config: ClientConfig,
    jobs: Mutex<HashMap<Job, Arc<OnceCell<JobFiles>>>>,
}

impl Fetcher {
    /// Nothing is fetched yet.
    pub(crate) fn new(disks: Arc<Disks>, config: ClientConfig) -> Self {
        Self { disks, config, jobs: Mutex::default() }
    }

    /// The files of the job that `spec` is of.
    pub(crate) async fn files(&self, job: Job, spec: &TaskSpec) -> Result<JobFiles, FetchError> {
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

    /// The job's files are going to be deleted.
    pub(crate) fn forget(&self, job: Job) {
        self.jobs.lock().remove(&job);
    }

    async fn fetch(&self, job: Job, spec: &TaskSpec, program: &Program) -> Result<JobFiles, FetchError> {
        let mut options = ClientOptions::new(spec.namenode.clone(), self.config.clone());
        if !spec.user.is_empty() {
            options.user.clone_from(&spec.user);
        }
        let client = Client::connect(options).await.map_err(dfs_error(&spec.namenode))?;
        let mut others = self.disks.roots().count();
        loop {
            let disk = self.disks.choose()?;
            let fetched = fetch_to(&client, program, &self.disks.job_folder(disk, job)).await;
            others -= 1;
            let full = fetched.as_ref().is_err_and(|error| says_full(&error.to_string()));
            if others == 0 || !full {
                return fetched;
            }
            self.disks.shun(disk);
        }
    }
}

async fn fetch_to(client: &Client, program: &Program, folder: &Path) -> Result<JobFiles, FetchError> {
    let mut executable = None;
    if let Some(program::Kind::Executable(path)) = &program.kind {
        let file = get(client, path, &folder.join("program")).await?.1;
        fs::set_permissions(&file, Permissions::from_mode(0o755)).map_err(local(&file))?;
        executable = Some(file);
    }
    let mut side = Vec::new();
    let mut names = HashSet::new();
    for path in &program.files {
        let (name, file) = get(client, path, &folder.join("files")).await?;
        if !names.insert(name.clone()) {
            return Err(FetchError::Twice(name));
        }
        // Scripts are side files too.
        fs::set_permissions(&file, Permissions::from_mode(0o755)).map_err(local(&file))?;
        side.push((name, file));
    }
    Ok(JobFiles { executable, side })
}

async fn get(client: &Client, path: &str, folder: &Path) -> Result<(String, PathBuf), FetchError> {
    let from = DfsPath::parse(path).map_err(|why| FetchError::Path { path: path.into(), why })?;
    fs::create_dir_all(folder).map_err(local(folder))?;
    let to = folder.join(from.name());
    let options = GetOptions { overwrite: true };
    client.get(&from, &to, options, &()).await.map_err(dfs_error(path))?;
    Ok((from.name().into(), to))
}

fn dfs_error(path: &str) -> impl FnOnce(ClientError) -> FetchError + '_ {
    move |source| FetchError::Dfs { path: path.into(), source }
}

fn local(path: &Path) -> impl FnOnce(io::Error) -> FetchError + '_ {
    move |source| FetchError::Local { path: path.into(), source }
}
