//! Starts and stops a JobTracker: opens the folder, replays the journal, serves, and stops.

use crate::{
    blueprint::Blueprint,
    driver::{Driver, DriverParts, FIRST_STATE},
    end::JobTrackerError,
    files::Files,
    group,
    history::HistoryWriter,
    lead::lead_loop,
    link::LinkService,
    opened::Opened,
    policy::check_scheduler,
    server::{ClientService, HISTORY_READERS_MAX, MasterService, SUBMISSIONS_MAX, WATCHERS_MAX},
    storage,
};
use daemon::{
    config::Config,
    lifecycle::{DaemonArgs, stop_signal},
    lock::FolderLock,
};
use dfs_client::ClientOptions;
use journal::{Recovery, SnapshotPolicy};
use mrcore::Time;
use peers::{
    group::Group,
    leader::{self, LowDisk},
    membership::Membership,
    requests::{RequestRuntime, Requests},
    service::{PeerService, PeersServer},
};
use proto::{
    master::master_server::MasterServer,
    mr::{job_tracker_server::JobTrackerServer, tracker_link_server::TrackerLinkServer},
};
use replication::master::Journal;
use security::{Credentials, Guard, Incoming, Role};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, task::JoinHandle};

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
/// Time between two checks whether the disk of a leader is nearly full.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A JobTracker in this process. It serves from `start` until it is dropped, and needs a tokio
/// runtime with I/O and time.
pub struct Daemon {
    addr: SocketAddr,
    driver: Arc<Driver>,
    membership: Option<Membership>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    delivery: JoinHandle<()>,
    background_tasks: Vec<JoinHandle<()>>,
    /// The requests of clients and trackers run here if there is a group.
    _requests: Option<RequestRuntime>,
    _lock: FolderLock,
}

impl Daemon {
    /// Opens the folder, replays the journal and serves. Must be called within a runtime. A new
    /// member of a group waits for the leader of its group.
    pub async fn start(config: &Config, recovery: Recovery) -> Result<Self, JobTrackerError> {
        let settings = config.jobtracker.clone();
        check_scheduler(config)?;
        let listener = daemon::listen::bind(&settings.listen, config)?;
        let addr = listener.local_addr()?;
        let guard = Guard::new(config, Role::JobTracker)?;
        let credentials = Credentials::of_daemon(config, Role::JobTracker)?;
        let lock = FolderLock::acquire(&settings.dir, "jobtracker")?;
        let options = ClientOptions::new(&config.cluster.namenode, config.client.clone()).with(credentials);
        let (parts, group) = if settings.member == 0 {
            group::leave_if_alone(config)?;
            (Opened::open(config, recovery)?.into_parts(options)?, None)
        } else {
            let address = leader::member_address(Role::JobTracker, &settings.advertise, addr)?;
            let group = group::open(config, recovery, address).await?;
            (member_parts(config, &group, options)?, Some(group))
        };
        let requests = group.as_ref().map(|_| RequestRuntime::new()).transpose()?;
        let runtime = requests.as_ref().map_or_else(Handle::current, |requests| requests.handle().clone());
        let (driver, outgoing) = Driver::new(parts);
        let driver = Arc::new(driver);
        let delivery = runtime.spawn(driver.clone().deliver(outgoing));
        match &group {
            None => driver.start(),
            Some(group) => group.start(driver.clone()).await?,
        }
        let (snapshot_bytes, reserve) = (settings.snapshot_bytes.0, settings.disk_reserve.0);
        let membership = group.as_ref().map(|group| group.membership.clone());
        let leading = lead_loop(driver.clone());
        let mut background_tasks = vec![
            runtime.spawn(async move { match leading.await {} }),
            runtime.spawn(snapshot_loop(driver.journal().clone(), snapshot_bytes, reserve)),
        ];
        let incoming = guard.incoming(listener)?;
        let peers = group.as_ref().map(Group::service);
        if let (Some(group), Some(membership)) = (group, membership.clone()) {
            let watching = watch_disk(driver.clone(), membership);
            background_tasks.push(runtime.spawn(async move { match watching.await {} }));
            background_tasks.push(tokio::spawn(group.join()));
        }
        let master = MasterService { driver: driver.clone(), membership: membership.clone() };
        let services =
            Services { clients: client_service(config, &driver), master, requests: requests.as_ref() };
        let server = tokio::spawn(services.serve(&guard, peers, incoming)?);
        Ok(Self {
            addr,
            driver,
            membership,
            server,
            delivery,
            background_tasks,
            _requests: requests,
            _lock: lock,
        })
    }

    /// Returns the address that the JobTracker listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops cleanly: no more calls are accepted, the journal is sealed and the histories are
    /// completed. A leader of a group hands over before.
    async fn stop_cleanly(&self) {
        hand_over(&self.driver, self.membership.as_ref(), "stops").await;
        self.server.abort();
        self.background_tasks.iter().for_each(JoinHandle::abort);
        if self.driver.journal().member().is_some() {
            self.leave_group().await;
        } else {
            self.seal().await;
        }
        self.delivery.abort();
    }

    async fn seal(&self) {
        let driver = self.driver.clone();
        let sealing = tokio::task::spawn_blocking(move || driver.seal());
        let Ok((sealed, histories_written)) = sealing.await else { return self.abort() };
        if let Err(error) = sealed {
            tracing::error!(%error, "the journal could not be sealed");
        }
        if tokio::time::timeout(HISTORY_FLUSH_TIMEOUT, histories_written).await.is_err() {
            tracing::warn!("histories are not complete yet: the next start completes them");
        }
    }

    async fn leave_group(&self) {
        if let Err(error) = self.driver.journal().stop().await {
            tracing::error!(%error, "the journal could not be closed");
        }
        let flushed = self.driver.history_writer().flush();
        if tokio::time::timeout(HISTORY_FLUSH_TIMEOUT, flushed).await.is_err() {
            tracing::warn!("histories are not complete yet: the next start completes them");
        }
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
    let mut daemon = tokio::select! {
        biased;
        started = Daemon::start(config, recovery) => started?,
        // It waits for its group.
        () = &mut stop => return Ok(()),
    };
    let addr = daemon.addr();
    // If the NameNode answers soon and refuses this start, the start fails.
    let driver = daemon.driver.clone();
    tokio::select! {
        failed = daemon.failed() => return Err(failed),
        _ = tokio::time::timeout(ACCEPT_TIMEOUT, driver.await_accepted()), if daemon.membership.is_none() => {}
        () = std::future::ready(()), if daemon.membership.is_some() => {}
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

/// What is served.
struct Services<'a> {
    clients: ClientService,
    master: MasterService,
    requests: Option<&'a RequestRuntime>,
}

impl Services<'_> {
    /// Returns the future that serves.
    fn serve(
        self,
        guard: &Guard,
        peers: Option<PeersServer<PeerService>>,
        incoming: Incoming,
    ) -> Result<impl Future<Output = Result<(), tonic::transport::Error>> + Send + use<>, JobTrackerError>
    {
        let Self { clients, master, requests } = self;
        let (health, health_service) = tonic_health::server::health_reporter();
        let link = TrackerLinkServer::new(LinkService { driver: clients.driver.clone() })
            .max_decoding_message_size(TRACKER_MESSAGE_BYTES_MAX);
        let router = guard
            .server()?
            .add_service(health_service)
            .add_service(Requests::of(MasterServer::new(master), requests))
            .add_service(Requests::of(JobTrackerServer::new(clients), requests))
            .add_service(Requests::of(link, requests))
            .add_optional_service(peers);
        Ok(async move {
            health.set_serving::<JobTrackerServer<ClientService>>().await;
            router.serve_with_incoming(incoming).await
        })
    }
}

/// Returns the service for clients.
fn client_service(config: &Config, driver: &Arc<Driver>) -> ClientService {
    let Blueprint { params, decision_times, histories, cluster_id, .. } = driver.blueprint();
    let permits = |max| Arc::new(tokio::sync::Semaphore::new(max));
    ClientService {
        driver: driver.clone(),
        histories: histories.clone(),
        cluster_id: cluster_id.clone(),
        params: Arc::new(params.clone()),
        decision_times: decision_times.clone(),
        history_permits: permits(HISTORY_READERS_MAX),
        submission_permits: permits(SUBMISSIONS_MAX),
        backup_permit: permits(1),
        watch_permits: permits(WATCHERS_MAX),
        shared_statuses: Arc::default(),
        queues: Arc::new(schedulers::queues(&config.scheduler.name, params)),
    }
}

/// Returns what the driver of a member of a group is made from: the state has no facts until the
/// member is started.
fn member_parts(
    config: &Config,
    group: &Group,
    options: ClientOptions,
) -> Result<DriverParts, JobTrackerError> {
    let blueprint = Blueprint::new(config, group.name.cluster_id.clone())?;
    Ok(DriverParts {
        core: blueprint.core()?,
        journal: Journal::Group(group.member.clone()),
        newest: Time(0),
        files: Files::new(options, &blueprint.cluster_id),
        history_writer: HistoryWriter::start(FIRST_STATE, blueprint.open_histories()?)?,
        blueprint,
        notice: group.lost.clone(),
    })
}

/// If this JobTracker leads a group, lets another member lead, so that clients need not wait for an
/// election.
async fn hand_over(driver: &Driver, membership: Option<&Membership>, why: &str) {
    if let (Some(membership), Some(member)) = (membership, driver.journal().member()) {
        leader::hand_over(member, membership, || driver.pause(), why).await;
    }
}

/// Lets another member of the group lead when the disk of this one is nearly full. Never returns.
async fn watch_disk(driver: Arc<Driver>, membership: Membership) -> Infallible {
    let mut low_disk = LowDisk::new(Instant::now());
    loop {
        tokio::time::sleep(DISK_CHECK_INTERVAL).await;
        if low_disk.is_due(Instant::now(), driver.disk_of_leader_is_low()) {
            hand_over(&driver, Some(&membership), "has too little disk space").await;
        }
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
