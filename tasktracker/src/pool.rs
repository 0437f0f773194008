//! Idle task processes, so that a small task starts in milliseconds: new ones for any job, and used
//! ones for the same job (`idle_processes`).
//!
//! The pool is refilled in the background, one process at a time. If it cannot be filled, attempts
//! start their own processes and report the error. Folders are created and removed on blocking
//! threads.

use crate::{
    disks::{AttemptFolders, DiskError, Disks, ProcessFolders, ProcessLogs, log_files},
    idle_processes::{IdleProcess, IdleProcesses},
    process::{Process, ProcessMessage, Spawner, Start},
    system,
};
use parking_lot::Mutex;
use proto::mr::{Confinement, LaunchProgram, ToTask};
use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinError,
};
use types::JobId;

/// A process that has not sent its first message by then is broken.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after a failed attempt to fill the pool.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Why there is no process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// There is no folder for it.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The system returned an error.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// Program to start.
        program: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The thread that creates folders has panicked.
    #[error("internal error of the tracker: {0}")]
    Bug(#[from] JoinError),
}

/// A process without an attempt, in folders that will become those of its attempt.
#[derive(Debug)]
pub(crate) struct NewProcess {
    /// The process.
    pub(crate) process: Process,
    /// Channel to the process, after its first message.
    pub(crate) to_task: Option<mpsc::Sender<ToTask>>,
    /// Its folders.
    pub(crate) place: ProcessFolders,
}

/// Limits of the pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Number of new processes.
    pub(crate) idle: usize,
    /// Maximum number of idle processes between two attempts.
    pub(crate) idle_processes: usize,
    /// Maximum memory of such a process, in bytes.
    pub(crate) reused_memory: u64,
}

/// The idle processes.
#[derive(Debug)]
pub(crate) struct Pool {
    disks: Arc<Disks>,
    spawner: Spawner,
    program: PathBuf,
    sizes: Sizes,
    idle: Mutex<VecDeque<NewProcess>>,
    idle_processes: IdleProcesses,
    wanted: Notify,
}

impl Pool {
    /// An empty pool; `fill` fills it.
    pub(crate) fn new(disks: Arc<Disks>, spawner: Spawner, program: PathBuf, sizes: Sizes) -> Self {
        let (idle, idle_processes) = (Mutex::default(), IdleProcesses::new(sizes.idle_processes));
        Self { disks, spawner, program, sizes, idle, idle_processes, wanted: Notify::new() }
    }

    /// Returns a process of the built-in programs: one that has run attempts of the job, an idle
    /// one, or a new one.
    pub(crate) async fn take(&self, job: JobId) -> Result<NewProcess, StartError> {
        while let Some((IdleProcess { process, to_task }, process_logs)) = self.idle_processes.take(job) {
            let disks = self.disks.clone();
            match in_background(move || Ok(disks.make_process_folders_with(process_logs)?)).await {
                Ok(place) => return Ok(NewProcess { process, to_task: Some(to_task), place }),
                Err(error) => tracing::warn!(%error, "cannot reuse an idle process of the job"),
            }
        }
        loop {
            let Some(mut fresh) = self.idle.lock().pop_front() else { break };
            self.wanted.notify_one();
            if fresh.process.alive() && self.disks.usable(fresh.place.disk) {
                return Ok(fresh);
            }
            put_away(fresh);
        }
        self.start().await
    }

    /// Keeps a process for the next attempt of the job, unless it uses too much memory, which the
    /// next attempt would be charged for.
    pub(crate) fn keep_idle(&self, job: JobId, waiting: IdleProcess, process_logs: ProcessLogs) {
        if system::memory(waiting.process.handle.pid()) <= self.sizes.reused_memory {
            self.idle_processes.put(job, waiting, process_logs);
        }
    }

    /// Ends the idle processes of a job that has ended.
    pub(crate) fn forget(&self, job: JobId) {
        self.idle_processes.forget(job);
    }

    /// Starts a process of the built-in programs.
    async fn start(&self) -> Result<NewProcess, StartError> {
        let (disks, account, program) = (self.disks.clone(), self.spawner.account(), self.program.clone());
        let making = in_background(move || {
            let place = disks.make_process_folders()?;
            match place.process_logs.files(account) {
                Ok(logs) => Ok((place, logs)),
                Err(source) => {
                    place.discard();
                    Err(StartError::Spawn { program, source })
                }
            }
        });
        let (place, logs) = making.await?;
        match self.spawn(Start { folder: place.folder.clone(), logs, launch: None }).await {
            Ok(process) => Ok(NewProcess { process, to_task: None, place }),
            Err(error) => {
                tokio::task::spawn_blocking(move || place.discard());
                Err(error)
            }
        }
    }

    /// Starts a process that becomes the executable of a job, in the folders of its attempt, after
    /// the limits are set.
    pub(crate) async fn launch(
        &self,
        program: &Path,
        work: &AttemptFolders,
        confinement: Option<Confinement>,
    ) -> Result<Process, StartError> {
        let launch = Some(LaunchProgram { program: program.to_string_lossy().into_owned(), confinement });
        let (logs, account, own) = (work.logs.clone(), self.spawner.account(), self.program.clone());
        let logs = in_background(move || {
            log_files(&logs, account).map_err(|source| StartError::Spawn { program: own, source })
        });
        self.spawn(Start { folder: work.own.clone(), logs: logs.await?, launch }).await
    }

    async fn spawn(&self, start: Start) -> Result<Process, StartError> {
        let program = self.program.clone();
        let started = self.spawner.spawn(&self.program, start).await;
        started.map_err(|source| StartError::Spawn { program, source })
    }

    /// Ends the idle processes, and waits until their folders are removed, when the tracker stops.
    pub(crate) fn empty(&self) {
        self.idle_processes.clear();
        let idle = std::mem::take(&mut *self.idle.lock());
        idle.into_iter().for_each(NewProcess::discard);
    }

    /// Returns the number of idle processes.
    pub(crate) fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Ends processes that have been idle for too long, until dropped.
    pub(crate) async fn expire(self: Arc<Self>) {
        self.idle_processes.expire().await;
    }

    /// Keeps the pool full until dropped.
    pub(crate) async fn fill(self: Arc<Self>) {
        loop {
            if self.idle() >= self.sizes.idle {
                self.wanted.notified().await;
                continue;
            }
            match self.warm_up().await {
                Ok(fresh) => self.idle.lock().push_back(fresh),
                Err(why) => {
                    tracing::warn!(program = %self.program.display(), why, "cannot start an idle task process");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    async fn warm_up(&self) -> Result<NewProcess, String> {
        let mut fresh = self.start().await.map_err(|error| error.to_string())?;
        match tokio::time::timeout(HELLO_TIMEOUT, fresh.process.messages.recv()).await {
            Ok(Some(ProcessMessage::Hello(to_task))) => {
                fresh.to_task = Some(to_task);
                Ok(fresh)
            }
            Ok(other) => {
                let why = format!("the first message was {other:?} instead of Hello");
                let error = in_background(move || {
                    let why = crate::process::with_stderr(&why, fresh.place.process_logs.path());
                    fresh.discard();
                    Ok(why)
                });
                Err(error.await.unwrap_or_else(|error| error.to_string()))
            }
            Err(_) => {
                put_away(fresh);
                Err(format!("the task did not send its first message (Hello) within {HELLO_TIMEOUT:?}"))
            }
        }
    }
}

/// Runs a function that may block on a disk.
async fn in_background<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    tokio::task::spawn_blocking(act).await?
}

/// Kills a process, and removes its folders in the background.
fn put_away(fresh: NewProcess) {
    fresh.process.handle.kill();
    tokio::task::spawn_blocking(move || fresh.discard());
}

impl NewProcess {
    /// Kills the process and removes its folders, which are empty because it had no attempt.
    pub(crate) fn discard(self) {
        self.process.handle.kill();
        self.place.discard();
    }
}
