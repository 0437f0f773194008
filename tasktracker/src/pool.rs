//! Idle task processes, so that a small task starts in milliseconds. New processes can run any
//! built-in program for any job. Used processes wait for another attempt of the same job
//! (`idle_processes`).
//!
//! The pool of new processes is refilled in the background, one process at a time. If it is empty,
//! attempts start their own processes and report errors. Folders are created and removed on
//! blocking threads.

use crate::{
    disks::{AttemptFolders, DiskError, Disks, ProcessFolders, ProcessLogs, create_log_files},
    idle_processes::{IdleProcess, IdleProcesses},
    process::{Process, ProcessMessage, ProcessStart, Spawner},
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

/// A process that has not sent its first message within this time is killed.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after a failed attempt to fill the pool.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Why no process could be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// There is no folder for the process.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The operating system could not start the process.
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

/// A process that has no attempt yet. Its folders will become the folders of its attempt.
#[derive(Debug)]
pub(crate) struct UnassignedProcess {
    pub(crate) process: Process,
    /// Channel to the process; `None` before its first message.
    pub(crate) to_task: Option<mpsc::Sender<ToTask>>,
    /// Folders of the process.
    pub(crate) folders: ProcessFolders,
}

/// Limits of the pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolLimits {
    /// Number of new processes that are kept ready.
    pub(crate) new_processes: usize,
    /// Maximum number of used processes that wait for another attempt.
    pub(crate) used_processes: usize,
    /// A used process with more memory than this, in bytes, is not reused.
    pub(crate) reused_memory: u64,
}

/// The idle task processes.
#[derive(Debug)]
pub(crate) struct Pool {
    disks: Arc<Disks>,
    spawner: Spawner,
    program: PathBuf,
    limits: PoolLimits,
    new_processes: Mutex<VecDeque<UnassignedProcess>>,
    used_processes: IdleProcesses,
    /// Notified when a new process was taken and has to be replaced.
    process_taken: Notify,
}

impl Pool {
    /// Creates an empty pool. [`Self::fill_loop`] fills it.
    pub(crate) fn new(disks: Arc<Disks>, spawner: Spawner, program: PathBuf, limits: PoolLimits) -> Self {
        let (new_processes, used_processes) = (Mutex::default(), IdleProcesses::new(limits.used_processes));
        Self { disks, spawner, program, limits, new_processes, used_processes, process_taken: Notify::new() }
    }

    /// Returns a process that can run a built-in program: one that has run attempts of the same
    /// job, a new one from the pool, or one that is started now.
    pub(crate) async fn take(&self, job: JobId) -> Result<UnassignedProcess, StartError> {
        while let Some((IdleProcess { process, to_task }, process_logs)) = self.used_processes.take(job) {
            let disks = self.disks.clone();
            match in_background(move || Ok(disks.make_process_folders_with(process_logs)?)).await {
                Ok(folders) => return Ok(UnassignedProcess { process, to_task: Some(to_task), folders }),
                Err(error) => tracing::warn!(%error, "cannot reuse an idle process of the job"),
            }
        }
        loop {
            let Some(mut fresh) = self.new_processes.lock().pop_front() else { break };
            self.process_taken.notify_one();
            if fresh.process.is_usable() && self.disks.is_usable(fresh.folders.disk) {
                return Ok(fresh);
            }
            discard_in_background(fresh);
        }
        self.start().await
    }

    /// Keeps a process for the next attempt of the job, unless it uses too much memory. The memory
    /// would count towards the limit of the next attempt.
    pub(crate) fn keep_idle(&self, job: JobId, idle: IdleProcess, process_logs: ProcessLogs) {
        if system::private_memory(idle.process.handle.pid()) <= self.limits.reused_memory {
            self.used_processes.add(job, idle, process_logs);
        }
    }

    /// Kills the idle processes of a job that has ended.
    pub(crate) fn forget(&self, job: JobId) {
        self.used_processes.forget(job);
    }

    /// Starts an idle task process, which can run any built-in program.
    async fn start(&self) -> Result<UnassignedProcess, StartError> {
        let (disks, account, program) = (self.disks.clone(), self.spawner.account(), self.program.clone());
        let making = in_background(move || {
            let folders = disks.make_process_folders()?;
            match folders.process_logs.create_files(account) {
                Ok(logs) => Ok((folders, logs)),
                Err(source) => {
                    folders.discard();
                    Err(StartError::Spawn { program, source })
                }
            }
        });
        let (folders, logs) = making.await?;
        match self.spawn(ProcessStart { folder: folders.folder.clone(), logs, launch: None }).await {
            Ok(process) => Ok(UnassignedProcess { process, to_task: None, folders }),
            Err(error) => {
                tokio::task::spawn_blocking(move || folders.discard());
                Err(error)
            }
        }
    }

    /// Starts a process that sets its limits and then becomes the executable of a job, in the
    /// folders of its attempt.
    pub(crate) async fn launch(
        &self,
        program: &Path,
        work: &AttemptFolders,
        confinement: Option<Confinement>,
    ) -> Result<Process, StartError> {
        let launch = Some(LaunchProgram { program: program.to_string_lossy().into_owned(), confinement });
        let (logs, account, mrtask) = (work.logs.clone(), self.spawner.account(), self.program.clone());
        let logs = in_background(move || {
            create_log_files(&logs, account).map_err(|source| StartError::Spawn { program: mrtask, source })
        });
        self.spawn(ProcessStart { folder: work.working.clone(), logs: logs.await?, launch }).await
    }

    async fn spawn(&self, start: ProcessStart) -> Result<Process, StartError> {
        let program = self.program.clone();
        let started = self.spawner.spawn(&self.program, start).await;
        started.map_err(|source| StartError::Spawn { program, source })
    }

    /// Kills all idle processes, and waits until their folders are removed. Called when the tracker
    /// stops.
    pub(crate) fn clear(&self) {
        self.used_processes.clear();
        let new_processes = std::mem::take(&mut *self.new_processes.lock());
        new_processes.into_iter().for_each(UnassignedProcess::discard);
    }

    /// Returns the number of new processes that are ready.
    pub(crate) fn new_process_count(&self) -> usize {
        self.new_processes.lock().len()
    }

    /// Kills used processes that have been idle for too long. Never returns.
    pub(crate) async fn expire_loop(self: Arc<Self>) {
        self.used_processes.expire_loop().await;
    }

    /// Keeps the pool of new processes full. Never returns.
    pub(crate) async fn fill_loop(self: Arc<Self>) {
        loop {
            if self.new_process_count() >= self.limits.new_processes {
                self.process_taken.notified().await;
                continue;
            }
            match self.start_ready().await {
                Ok(fresh) => self.new_processes.lock().push_back(fresh),
                Err(why) => {
                    tracing::warn!(program = %self.program.display(), why, "cannot start an idle task process");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Starts a process and waits for its first message.
    async fn start_ready(&self) -> Result<UnassignedProcess, String> {
        let mut fresh = self.start().await.map_err(|error| error.to_string())?;
        match tokio::time::timeout(HELLO_TIMEOUT, fresh.process.messages.recv()).await {
            Ok(Some(ProcessMessage::Hello(to_task))) => {
                fresh.to_task = Some(to_task);
                Ok(fresh)
            }
            Ok(other) => {
                let why = format!("the first message was {other:?} instead of Hello");
                let error = in_background(move || {
                    let why = crate::process::with_stderr(&why, fresh.folders.process_logs.path());
                    fresh.discard();
                    Ok(why)
                });
                Err(error.await.unwrap_or_else(|error| error.to_string()))
            }
            Err(_) => {
                discard_in_background(fresh);
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
fn discard_in_background(fresh: UnassignedProcess) {
    fresh.process.handle.kill();
    tokio::task::spawn_blocking(move || fresh.discard());
}

impl UnassignedProcess {
    /// Kills the process and removes its folders.
    pub(crate) fn discard(self) {
        self.process.handle.kill();
        self.folders.discard();
    }
}
