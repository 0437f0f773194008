//! The environment of a task in a task process: file system, scratch folders and the connection to
//! the tracker.

use super::{AttemptRun, umbilical::Umbilical};
use crate::{
    dfs_error::dfs_error,
    execution::{OutputSink, Progress, TaskIo},
    input::{ByteSource, DfsFile, Pin},
    output::{PieceWriter, RecordWriter, Target},
    process,
    scratch::Scratch,
    settings::output_replication,
    task_conf::{conf_of, part_name_of},
};
use daemon::{Period, config::ClientConfig};
use dfs_client::{Client, ClientOptions, path::DfsPath};
use mrlib_api::{Liveness, OutputFormat, TaskControl, TaskError};
use proto::mr::{ClientSettings, TaskSpec, TaskStart};
use security::{Connector, Credentials, Role};
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::runtime::{Builder, Handle, Runtime};

/// Number of threads of the runtime for the client. Heavy work runs on blocking threads.
const RUNTIME_THREADS: usize = 1;

/// The file system client, shared by all attempts of this process, which belong to one job. It is
/// created when first used, because some tasks need no file.
pub(super) struct Dfs {
    config: ClientConfig,
    connection: OnceLock<(Client, Runtime)>,
}

impl Dfs {
    /// Prepares a client with the client settings of the tracker.
    pub(super) fn new(settings: Option<&ClientSettings>) -> Self {
        let mut config = ClientConfig::default();
        if let Some(&ClientSettings { deadline_ms, connect_timeout_ms, parallel_blocks, short_circuit }) =
            settings
        {
            config = ClientConfig {
                deadline: Period(Duration::from_millis(deadline_ms)),
                connect_timeout: Period(Duration::from_millis(connect_timeout_ms)),
                parallel_blocks: parallel_blocks as usize,
                short_circuit,
                ..config
            };
        }
        Self { config, connection: OnceLock::new() }
    }

    /// Returns the client, which connects when it is first needed, and the handle of its runtime.
    fn connect(&self, spec: &TaskSpec, credentials: &Credentials) -> Result<(Client, Handle), TaskError> {
        if self.connection.get().is_none() {
            let runtime = Builder::new_multi_thread()
                .worker_threads(RUNTIME_THREADS)
                .enable_all()
                .build()
                .map_err(TaskError::io("start the threads of the client"))?;
            let options = ClientOptions::new(spec.namenodes.as_slice(), self.config.clone());
            let mut options = options.with(credentials.clone());
            if !spec.user.is_empty() {
                options.user.clone_from(&spec.user);
            }
            let client = runtime.block_on(Client::connect_with_retry(options)).map_err(dfs_error)?;
            // Only one attempt runs at a time.
            self.connection.set((client, runtime)).ok();
        }
        let (client, runtime) = self.connection.get().expect("connected above");
        Ok((client.clone(), runtime.handle().clone()))
    }
}

/// The environment of one attempt.
pub(super) struct ProcessIo {
    umbilical: Arc<Umbilical>,
    spec: TaskSpec,
    scratch: Scratch,
    memory_bytes: u64,
    dfs: Arc<Dfs>,
    /// CPU time of the process before this attempt, in milliseconds.
    cpu_before: u64,
    credentials: Credentials,
}

impl ProcessIo {
    pub(super) fn new(
        umbilical: Arc<Umbilical>,
        start: &TaskStart,
        spec: &TaskSpec,
        of: &AttemptRun,
    ) -> Result<Self, TaskError> {
        let mut dirs: Vec<PathBuf> = start.scratch_dirs.iter().map(PathBuf::from).collect();
        if dirs.is_empty() {
            dirs.push(PathBuf::from(&start.work_dir));
        }
        let memory_bytes = start.memory_bytes;
        let (dfs, cpu_before) = (of.dfs.clone(), of.cpu_before);
        let tracker =
            umbilical.tracker_account().map_err(TaskError::io("read the account of the tracker"))?;
        let credentials = Credentials::of_task(&spec.token, &start.authority, tracker)
            .map_err(|error| TaskError::Program(error.to_string()))?;
        let (spec, scratch) = (spec.clone(), Scratch::new(dirs));
        Ok(Self { umbilical, spec, scratch, memory_bytes, dfs, cpu_before, credentials })
    }
}

fn dfs_path(path: &str) -> Result<DfsPath, TaskError> {
    DfsPath::parse(path).map_err(|error| TaskError::Program(format!("{path:?}: {error}")))
}

impl TaskIo for ProcessIo {
    fn progress(&mut self, progress: &Progress) {
        self.umbilical.progress(progress);
    }

    fn liveness(&self) -> Liveness {
        self.umbilical.liveness()
    }

    fn control(&self) -> TaskControl {
        self.umbilical.control()
    }

    fn scratch(&self) -> Scratch {
        self.scratch.clone()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn open_input(&mut self, path: &str) -> Result<Box<dyn ByteSource>, TaskError> {
        let path = dfs_path(path)?;
        let (client, runtime) = self.dfs.connect(&self.spec, &self.credentials)?;
        Ok(Box::new(DfsFile::open(client, runtime, path)?))
    }

    fn open_split(&mut self, path: &str, pin: Option<Pin>) -> Result<Box<dyn ByteSource>, TaskError> {
        let path = dfs_path(path)?;
        let (client, runtime) = self.dfs.connect(&self.spec, &self.credentials)?;
        Ok(Box::new(DfsFile::open_pinned(client, runtime, path, pin)?))
    }

    fn open_output(
        &mut self,
        format: OutputFormat,
        earlier_pieces: Vec<String>,
    ) -> Result<Box<dyn OutputSink>, TaskError> {
        let target = if self.spec.work_output.is_empty() {
            Target::None
        } else {
            let folder = dfs_path(&self.spec.work_output)?;
            let replication = output_replication(&conf_of(&self.spec)?)?;
            let (client, runtime) = self.dfs.connect(&self.spec, &self.credentials)?;
            Target::Dfs { client, runtime, folder, part: part_name_of(&self.spec.attempt)?, replication }
        };
        Ok(Box::new(RecordWriter::new(format, PieceWriter::continue_after(earlier_pieces, target))))
    }

    fn connector(&self) -> Connector {
        self.credentials.connector(Role::TaskTracker)
    }

    fn cpu_milliseconds(&self) -> u64 {
        process::cpu_milliseconds().saturating_sub(self.cpu_before)
    }
}
