//! Starts and stops a JobTracker: opens the folder, replays the journal, serves, and stops.

use crate::{
    active_jobs,
    clock::Clock,
    driver::{Driver, DriverParts},
    files::Files,
    history::{Histories, HistoryWriter, Limits},
    link::LinkService,
    policy::{Policies, make_policies},
    server::{ClientService, HISTORY_READERS_MAX, SUBMISSIONS_MAX, WATCHERS_MAX},
    starts,
    storage::{self, HISTORY_FOLDER, Storage, StorageError},
    sweep,
};
use daemon::{
    config::{Config, ConfigError, JobTrackerConfig},
    lifecycle::{DaemonArgs, stop_signal},
    listen::ListenError,
    lock::{FolderLock, LockError},
};
use dfs_client::ClientOptions;
use journal::{LogFailed, Recovery, SnapshotPolicy};
use mrcore::{Event, JobTracker, Span, Time, history::Policy};
use proto::{
    master::master_server::MasterServer,
    mr::{job_tracker_server::JobTrackerServer, tracker_link_server::TrackerLinkServer},
};
use replication::master::Journal;
use security::{Credentials, Guard, Incoming, Role, SecurityError};
use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

/// Maximum size of a message from a tracker, the same as the limit of the gate. A tracker registers
/// with one message: up to 6 MiB for its attempts, and up to 20 bytes for each map output that it
/// stores. So it can store at least 500,000 map outputs of active jobs.
const TRACKER_MESSAGE_BYTES_MAX: usize = security::MESSAGE_BYTES_MAX;
/// How long a clean stop waits for the histories to be written.
const HISTORY_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a start waits until the NameNode has accepted it. It then continues without: no job is
/// accepted or committed and no file is deleted until the NameNode has answered.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between two checks whether the journal has grown enough for a snapshot.
const SNAPSHOT_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Why a JobTracker ended.
#[derive(Debug, thiserror::Error)]
pub enum JobTrackerError {
    /// The policy does not exist, or a parameter is invalid.
    #[error(transparent)]
    Scheduler(#[from] ConfigError),
    /// Another process uses the folder.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder or the journal cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The credentials or the access policy cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The address is not available.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The journal failed.
    #[error(transparent)]
    Log(#[from] LogFailed),
    /// Serving failed.
    #[error("cannot serve: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// The process cannot continue, for this reason.
    #[error("{0}")]
    Stopped(String),
    /// An error of the operating system.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A JobTracker in this process. It serves from `start` until it is dropped, and needs a tokio
/// runtime with I/O and time.
pub struct Daemon {
    addr: SocketAddr,
    driver: Arc<Driver>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    delivery: JoinHandle<()>,
    background_tasks: Vec<JoinHandle<()>>,
    _lock: FolderLock,
}

impl Daemon {
    /// Opens the folder, replays the journal and serves. Must be called within a runtime.
    pub fn start(config: &Config, recovery: Recovery) -> Result<Self, JobTrackerError> {
        let settings = config.jobtracker.clone();
        let Policies { policy, shadow, params, decision_times } = make_policies(&config.scheduler)?;
        let mut core = JobTracker::new(core_config(&settings), policy);
        if let Some(shadow) = shadow {
            core = core.with_shadow(shadow);
        }
        let listener = daemon::listen::bind(&settings.listen, config)?;
        let guard = Guard::new(config, Role::JobTracker)?;
        let credentials = Credentials::of_daemon(config, Role::JobTracker)?;
        let lock = FolderLock::acquire(&settings.dir, "jobtracker")?;
        let histories = settings.dir.join(HISTORY_FOLDER);
        let storage = Storage::open(&settings.dir, recovery)?;
        let cluster_id = storage.cluster_id.clone();
        let options = ClientOptions::new(&config.cluster.namenode, config.client.clone()).with(credentials);
        let policy = Policy { name: config.scheduler.name.clone(), params: params.clone() };
        let parts = replay_journal(storage, core, (&histories, policy), &settings, options)?;
        let (driver, outgoing) = Driver::new(parts);
        let driver = Arc::new(driver);
        let delivery = tokio::spawn(driver.clone().deliver(outgoing));
        driver.handle(Event::Start);
        let (snapshot_bytes, reserve) = (settings.snapshot_bytes.0, settings.disk_reserve.0);
        let background_tasks = vec![
            tokio::spawn(driver.clone().tick_loop()),
            tokio::spawn(driver.clone().fence()),
            tokio::spawn(sweep::sweep_loop(driver.clone())),
            tokio::spawn(active_jobs::report_loop(driver.clone())),
            tokio::spawn(driver.clone().watch_namenode()),
            tokio::spawn(snapshot_loop(driver.journal().clone(), snapshot_bytes, reserve)),
        ];
        let addr = listener.local_addr()?;
        let incoming = guard.incoming(listener)?;
        let queues = schedulers::queues(&config.scheduler.name, &params);
        let params = Arc::new(params);
        let permits = |max| Arc::new(tokio::sync::Semaphore::new(max));
        let service = ClientService {
            driver: driver.clone(),
            histories,
            cluster_id,
            params,
            decision_times,
            history_permits: permits(HISTORY_READERS_MAX),
            submission_permits: permits(SUBMISSIONS_MAX),
            backup_permit: permits(1),
            watch_permits: permits(WATCHERS_MAX),
            shared_statuses: Arc::default(),
            queues: Arc::new(queues),
        };
        let server = tokio::spawn(serve(guard, service, incoming));
        Ok(Self { addr, driver, server, delivery, background_tasks, _lock: lock })
    }

    /// Returns the address that the JobTracker listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops cleanly: no more calls are accepted, the journal is sealed and the histories are
    /// completed.
    async fn stop_cleanly(&self) {
        self.server.abort();
        self.background_tasks.iter().for_each(JoinHandle::abort);
        let driver = self.driver.clone();
        let sealing = tokio::task::spawn_blocking(move || driver.seal());
        let Ok((sealed, histories_written)) = sealing.await else { return self.abort() };
        if let Err(error) = sealed {
            tracing::error!(%error, "the journal could not be sealed");
        }
        if tokio::time::timeout(HISTORY_FLUSH_TIMEOUT, histories_written).await.is_err() {
            tracing::warn!("histories are not complete yet: the next start completes them");
        }
        self.delivery.abort();
    }

    /// Stops at once. Replies that were sent are durable. Clients repeat the calls that had no
    /// reply yet.
    fn abort(&self) {
        self.server.abort();
        self.delivery.abort();
        self.background_tasks.iter().for_each(JoinHandle::abort);
    }

    #[cfg(test)]
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Waits until the daemon cannot continue. Returns the reason.
    pub async fn failed(&mut self) -> JobTrackerError {
        tokio::select! {
            ended = &mut self.server => match ended {
                Ok(Ok(())) => JobTrackerError::Stopped("the server ended".into()),
                Ok(Err(error)) => error.into(),
                Err(error) => JobTrackerError::Stopped(error.to_string()),
            },
            failed = self.driver.journal().failed() => failed.into(),
            why = self.driver.failed() => JobTrackerError::Stopped(why),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Runs a JobTracker until it is stopped or cannot continue.
pub async fn run(config: &Config, args: &DaemonArgs, recovery: Recovery) -> Result<(), JobTrackerError> {
    run_until(config, args, recovery, stop_signal()).await
}

/// Runs a JobTracker until `stop` completes or it cannot continue.
pub(crate) async fn run_until(
    config: &Config,
    args: &DaemonArgs,
    recovery: Recovery,
    stop: impl Future<Output = ()>,
) -> Result<(), JobTrackerError> {
    let mut stop = std::pin::pin!(stop);
    let started = Instant::now();
    let mut daemon = Daemon::start(config, recovery)?;
    let addr = daemon.addr();
    // If the NameNode answers soon and refuses this start, the start fails.
    let driver = daemon.driver.clone();
    tokio::select! {
        failed = daemon.failed() => return Err(failed),
        _ = tokio::time::timeout(ACCEPT_TIMEOUT, driver.await_accepted()) => {}
        () = &mut stop => {
            tracing::info!("jobtracker stops before it serves");
            daemon.stop_cleanly().await;
            return Ok(());
        }
    }
    args.write_ready(&addr.to_string())?;
    let seconds = started.elapsed().as_secs_f64();
    let (dir, scheduler) = (config.jobtracker.dir.display(), config.scheduler.name.as_str());
    tracing::info!(%addr, seconds, %dir, scheduler, "jobtracker serves");
    tokio::select! {
        failed = daemon.failed() => return Err(failed),
        () = stop => {}
    }
    tracing::info!("jobtracker stops");
    daemon.stop_cleanly().await;
    Ok(())
}

async fn serve(
    guard: Guard,
    service: ClientService,
    incoming: Incoming,
) -> Result<(), tonic::transport::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<JobTrackerServer<ClientService>>().await;
    let link = TrackerLinkServer::new(LinkService { driver: service.driver.clone() })
        .max_decoding_message_size(TRACKER_MESSAGE_BYTES_MAX);
    guard
        .server()?
        .add_service(health_service)
        .add_service(MasterServer::new(service.clone()))
        .add_service(JobTrackerServer::new(service))
        .add_service(link)
        .serve_with_incoming(incoming)
        .await
}

/// Replays the journal into the core and the histories. Returns what the driver is made from.
pub(crate) fn replay_journal(
    storage: Storage,
    mut core: JobTracker,
    (folder, policy): (&Path, Policy),
    settings: &JobTrackerConfig,
    options: ClientOptions,
) -> Result<DriverParts, JobTrackerError> {
    let Storage { log, replay, cluster_id, lost, recovery_requested, recovering } = storage;
    let limits = Limits {
        count: settings.histories_kept,
        bytes: settings.history_bytes_max.0,
        user_bytes: settings.user_history_bytes_max.0,
        reserve: settings.disk_reserve.0,
    };
    let mut histories = Histories::open(folder, &cluster_id, limits, policy)
        .map_err(|source| StorageError::Io { path: folder.into(), source })?;
    let mut newest = Time(0);
    storage::read_entries(replay, |entry| {
        newest = newest.max(entry.at);
        histories.append(&entry);
        core.replay(&entry).map_err(|error| error.to_string())
    })?;
    histories.finish_replay();
    let accepted = || recovery_requested.then(|| "--recover accepts this journal as the newest".to_owned());
    let lost = lost.or_else(accepted).map(|lost| format!("{lost}: the last records may be lost"));
    if let Some(lost) = &lost {
        tracing::error!("{lost}");
        let entry = storage::skip_ids(&log, core.cluster(), newest, recovery_requested)?;
        newest = entry.at;
        let apply_error =
            |error: mrcore::cluster::ApplyError| StorageError::Record { seq: 0, why: error.to_string() };
        core.replay(&entry).map_err(apply_error)?;
    }
    if recovery_requested {
        starts::clear(&settings.dir).map_err(StorageError::from)?;
    }
    if let Some(recovering) = recovering {
        recovering.done().map_err(StorageError::from)?;
    }
    tracing::info!(records = log.last_seq(), cluster = cluster_id, "journal replayed");
    Ok(DriverParts {
        core,
        journal: Journal::Single(log),
        clock: Clock::start(newest),
        config: settings.clone(),
        files: Files::new(options, &cluster_id),
        history_writer: HistoryWriter::start(histories)?,
        notice: lost,
    })
}

pub(crate) fn core_config(settings: &JobTrackerConfig) -> mrcore::Config {
    let span = |period: daemon::Period| Span(period.0.as_micros() as u64);
    mrcore::Config {
        suspect_after: span(settings.suspect_after),
        lost_after: span(settings.lost_after),
        forget_after: span(settings.forget_after),
        launch_timeout: span(settings.launch_timeout),
        task_timeout: span(settings.task_timeout),
        preemption_timeout: span(settings.preemption_timeout),
        reduces_max: settings.reduces_max,
        maps_max: settings.maps_max,
        jobs_max: settings.jobs_max,
        user_jobs_max: settings.user_jobs_max,
        user_tasks_max: settings.user_tasks_max,
        disk_reserve_bytes: settings.disk_reserve.0,
        blacklist_after: settings.blacklist_after,
        blacklist_share: settings.blacklist_share,
        straggler_after: span(settings.straggler_after),
        jobs_kept: settings.jobs_kept,
        tasks_kept: settings.tasks_kept,
        ..mrcore::Config::default()
    }
}

/// Makes a snapshot whenever the journal has grown by `snapshot_bytes` since the last one.
async fn snapshot_loop(journal: Arc<Journal>, snapshot_bytes: u64, reserve: u64) {
    let mut snapshots = SnapshotPolicy::new(snapshot_bytes, reserve);
    loop {
        tokio::time::sleep(SNAPSHOT_CHECK_INTERVAL).await;
        let making = journal.clone();
        journal.check_snapshots(&mut snapshots, move || storage::snapshot(&making));
    }
}
