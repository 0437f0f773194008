//! Idle task processes, kept warm so that a small task starts in milliseconds: new ones for any job, and ones that
//! have done an attempt for another of the same job (`idle_processes`).
//!
//! Refilled one at a time, behind the backs of running attempts. A pool that cannot be filled harms nobody:
//! attempts then start processes of their own, and meet the error themselves. Folders are made and removed on threads that
//! may wait for a disk.

use crate::{
    disks::{AttemptFolders, DiskError, Disks, ProcessFolders, ProcessLogs, log_files},
    idle_processes::{IdleProcess, IdleProcesses},
    ids::Job,
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

/// A process that has not said hello by then is broken.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(30);
/// Between tries to fill a pool that cannot be filled.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Why there is no process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// No folder for it.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The system would not.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// What.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread that made folders ended before it was done.
    #[error("a bug of the tracker: {0}")]
    Bug(#[from] JoinError),
}

/// A process without an attempt, in folders that will be its attempt's.
#[derive(Debug)]
pub(crate) struct NewProcess {
    /// Itself.
    pub(crate) process: Process,
    /// The way to it, once it has said hello.
    pub(crate) to_task: Option<mpsc::Sender<ToTask>>,
    /// The folders.
    pub(crate) place: ProcessFolders,
}

/// How much is kept in hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// New processes.
    pub(crate) idle: usize,
    /// Processes between two attempts of their jobs.
    pub(crate) idle_processes: usize,
    /// Bytes of memory that one of those may hold.
    pub(crate) reused_memory: u64,
}

/// The idle ones.
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
    /// Empty; `fill` fills it.
    pub(crate) fn new(disks: Arc<Disks>, spawner: Spawner, program: PathBuf, sizes: Sizes) -> Self {
        let (idle, idle_processes) = (Mutex::default(), IdleProcesses::new(sizes.idle_processes));
        Self { disks, spawner, program, sizes, idle, idle_processes, wanted: Notify::new() }
    }

    /// A process of the built-in programs: one that has worked for the job, an idle one, or a new one.
    pub(crate) async fn take(&self, job: Job) -> Result<NewProcess, StartError> {
        while let Some((IdleProcess { process, to_task }, process_logs)) = self.idle_processes.take(job) {
            let disks = self.disks.clone();
            match checkpoint_dir(move || Ok(disks.make_process_folders_with(process_logs)?)).await {
                Ok(place) => return Ok(NewProcess { process, to_task: Some(to_task), place }),
                Err(error) => tracing::warn!(%error, "a process that worked for the job is of no use"),
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

    /// Keeps a process for the job's next attempt, unless it holds memory that the next would be blamed for.
    pub(crate) fn keep_idle(&self, job: Job, waiting: IdleProcess, process_logs: ProcessLogs) {
        if system::memory(waiting.process.handle.pid()) <= self.sizes.reused_memory {
            self.idle_processes.put(job, waiting, process_logs);
        }
    }

    /// Ends what is kept for a job: it is over.
    pub(crate) fn forget(&self, job: Job) {
        self.idle_processes.forget(job);
    }

    /// A new process of the built-in programs.
    async fn start(&self) -> Result<NewProcess, StartError> {
        let (disks, account, program) = (self.disks.clone(), self.spawner.account(), self.program.clone());
        let making = checkpoint_dir(move || {
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

    /// A new process that becomes a job's executable, in the folders of its attempt, once it has the attempt's limits.
    pub(crate) async fn launch(
        &self,
        program: &Path,
        work: &AttemptFolders,
        confinement: Option<Confinement>,
    ) -> Result<Process, StartError> {
        let launch = Some(LaunchProgram { program: program.to_string_lossy().into_owned(), confinement });
        let (logs, account, own) = (work.logs.clone(), self.spawner.account(), self.program.clone());
        let logs = checkpoint_dir(move || {
            log_files(&logs, account).map_err(|source| StartError::Spawn { program: own, source })
        });
        self.spawn(Start { folder: work.own.clone(), logs: logs.await?, launch }).await
    }

    async fn spawn(&self, start: Start) -> Result<Process, StartError> {
        let program = self.program.clone();
        let started = self.spawner.spawn(&self.program, start).await;
        started.map_err(|source| StartError::Spawn { program, source })
    }

    /// Ends the idle ones, and waits until their folders are gone: the tracker stops.
    pub(crate) fn empty(&self) {
        self.idle_processes.clear();
        let idle = std::mem::take(&mut *self.idle.lock());
        idle.into_iter().for_each(NewProcess::discard);
    }

    /// How many are idle.
    pub(crate) fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Ends processes that have waited too long for their job, until dropped.
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
                    tracing::warn!(program = %self.program.display(), why, "no idle task process");
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
                let why = format!("{other:?} instead of hello");
                let warned = checkpoint_dir(move || {
                    let why = crate::process::with_stderr(why, fresh.place.process_logs.path());
                    fresh.discard();
                    Ok(why)
                });
                Err(warned.await.unwrap_or_else(|error| error.to_string()))
            }
            Err(_) => {
                put_away(fresh);
                Err(format!("it did not say hello within {HELLO_TIMEOUT:?}"))
            }
        }
    }
}

/// Does what may wait for a disk.
async fn checkpoint_dir<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    tokio::task::spawn_blocking(act).await?
}

/// Ends one, and removes its folders when the disk will.
fn put_away(fresh: NewProcess) {
    fresh.process.handle.kill();
    tokio::task::spawn_blocking(move || fresh.discard());
}

impl NewProcess {
    /// Ends it and removes its folders. It has no attempt yet, so it has nothing to write there.
    pub(crate) fn discard(self) {
        self.process.handle.kill();
        self.place.discard();
    }
}
