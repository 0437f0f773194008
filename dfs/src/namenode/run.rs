//! Runs a NameNode: opens the folder, serves, ticks, makes snapshots, and stops in order.

use super::{
    Settings,
    driver::{Driver, Environment, TICK},
    error::NameNodeError,
    group,
    namespace::Namespace,
    server::{ClientService, DataNodeService, MasterService},
    state::State,
    storage::{self, Storage},
};
use daemon::{
    config::{Config, NameNodeConfig},
    lifecycle::{DaemonArgs, stop_signal},
    lock::FolderLock,
};
use journal::{Recovery, SnapshotPolicy, log::RECORD_BYTES_MAX};
use peers::{
    group::Group,
    leader::{self, LowDisk},
    membership::Membership,
    requests::{RequestRuntime, Requests},
};
use proto::{
    dfs::{block_reports_server::BlockReportsServer, name_node_server::NameNodeServer},
    master::master_server::MasterServer,
};
use replication::master::Journal;
use security::{Guard, Role};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::Arc,
    time::Instant,
};
use tokio::{runtime::Handle, sync::Semaphore, task::JoinSet};
use tonic_health::{ServingStatus, server::HealthReporter};

/// Runs a NameNode until it is stopped or its log fails.
///
/// The future is boxed here, so that it is compiled in this crate and not in those that await it.
pub fn run<'a>(
    config: &'a Config,
    args: &'a DaemonArgs,
    recovery: Recovery,
) -> Pin<Box<dyn Future<Output = Result<(), NameNodeError>> + Send + 'a>> {
    Box::pin(serve(config, args, recovery))
}

async fn serve(config: &Config, args: &DaemonArgs, recovery: Recovery) -> Result<(), NameNodeError> {
    match Opened::open(config, recovery).await? {
        Some(opened) => opened.serve(config, args).await,
        None => Ok(()),
    }
}

/// A NameNode that is ready to serve.
struct Opened {
    driver: Arc<Driver>,
    /// Description of the records that were lost.
    lost: Option<String>,
    group: Option<Group>,
    listener: TcpListener,
    addr: SocketAddr,
    guard: Guard,
    lock: FolderLock,
}

impl Opened {
    /// Opens the folder. `None` if it was stopped while it waited for its group.
    async fn open(config: &Config, recovery: Recovery) -> Result<Option<Self>, NameNodeError> {
        let environment = Environment::of_machine();
        let settings = &config.namenode;
        let listener = daemon::listen::bind(&settings.listen, config)?;
        let guard = Guard::new(config, Role::NameNode)?;
        let lock = FolderLock::acquire(&settings.dir, "namenode")?;
        let addr = listener.local_addr()?;
        let (driver, lost, group) = if settings.member == 0 {
            group::leave_if_alone(config)?;
            let (driver, lost) = open_one(environment, settings, recovery)?;
            (driver, lost, None)
        } else {
            let address = leader::member_address(Role::NameNode, &settings.advertise, addr)?;
            let group = tokio::select! {
                opened = group::open(config, recovery, address) => opened?,
                () = stop_signal() => return Ok(None),
            };
            (open_member(&group, environment, settings).await?, group.lost.clone(), Some(group))
        };
        Ok(Some(Self { driver, lost, group, listener, addr, guard, lock }))
    }

    async fn serve(self, config: &Config, args: &DaemonArgs) -> Result<(), NameNodeError> {
        let Self { driver, lost, group, listener, addr, guard, lock: _lock } = self;
        let settings = &config.namenode;
        let requests = group.as_ref().map(|_| RequestRuntime::new()).transpose()?;
        let peers = group.as_ref().map(Group::service);
        let membership = group.as_ref().map(|group| group.membership.clone());
        let incoming = guard.incoming(listener)?;
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<NameNodeServer<ClientService>>().await;
        let blocks = guard.block_key();
        let lease_ms = settings.lease.0.as_millis() as u64;
        let (jobs, client_driver) = (guard.jobs(), driver.clone());
        let enforces = guard.enforces();
        let service = ClientService {
            driver: client_driver,
            lease_ms,
            blocks: blocks.clone(),
            jobs,
            enforces,
            lost_edits: lost,
            backup_permit: Arc::new(Semaphore::new(1)),
            retry_cache: settings.retry_cache,
            disk_reserve: settings.disk_reserve.0,
        };
        // A request may be as large as a record of the log, because the commit of a job with many
        // output files is one request.
        let server = guard
            .server()?
            .add_service(health_service)
            .add_service(Requests::of(
                NameNodeServer::new(service).max_decoding_message_size(RECORD_BYTES_MAX),
                requests.as_ref(),
            ))
            .add_service(Requests::of(
                MasterServer::new(MasterService { driver: driver.clone(), membership: membership.clone() }),
                requests.as_ref(),
            ))
            .add_service(Requests::of(
                BlockReportsServer::new(DataNodeService {
                    driver: driver.clone(),
                    heartbeat_ms: settings.heartbeat.0.as_millis() as u64,
                    blocks,
                }),
                requests.as_ref(),
            ))
            .add_optional_service(peers)
            .serve_with_incoming(incoming);
        let joining = group.map(|group| tokio::spawn(group.join()));

        args.write_ready(&addr.to_string())?;
        tracing::info!(%addr, dir = %settings.dir.display(), "NameNode is serving");
        let runtime = requests.as_ref().map_or_else(Handle::current, |requests| requests.handle().clone());
        let mut tasks = JoinSet::new();
        tasks.spawn_on(housekeeping(driver.clone(), settings.clone(), membership.clone(), health), &runtime);
        tokio::select! {
            ended = server => ended?,
            failed = driver.journal().failed() => return Err(failed.into()),
            Some(ended) = tasks.join_next() => match ended.map_err(io::Error::other)? {},
            () = async {
                stop_signal().await;
                hand_over(&driver, membership.as_ref(), "stops").await;
            } => {}
        }
        if let Some(joining) = joining {
            joining.abort();
        }
        // The periodic work appends edits.
        tasks.shutdown().await;
        // All answered requests are durable. Clients retry the others.
        tracing::info!("NameNode is stopping");
        // Closing seals the log. An incomplete record at the next start then means that data was lost,
        // and not that a write was interrupted.
        Ok(driver.journal().stop().await?)
    }
}

/// Opens the folder of one NameNode without a group. Returns its driver, and a description of the
/// records that were lost.
fn open_one(
    environment: Environment,
    settings: &NameNodeConfig,
    recovery: Recovery,
) -> Result<(Arc<Driver>, Option<String>), NameNodeError> {
    let started = environment.started;
    let Storage { log, namespace, lost } = Storage::open(&settings.dir, recovery, settings)?;
    tracing::info!(
        records = log.last_seq(),
        seconds = started.elapsed().as_secs_f64(),
        cluster = namespace.cluster_id(),
        epoch = namespace.epoch(),
        "namespace loaded"
    );
    let state = State::new(Settings::from(settings), namespace, environment.now());
    Ok((Arc::new(Driver::new(state, Journal::Single(log), environment, settings)), lost))
}

/// Starts a member of a group. Returns its driver.
async fn open_member(
    group: &Group,
    environment: Environment,
    settings: &NameNodeConfig,
) -> Result<Arc<Driver>, NameNodeError> {
    let started = environment.started;
    let namespace = Namespace::new(group.name.cluster_id.clone());
    let state = State::following(Settings::from(settings), namespace, environment.now());
    let journal = Journal::Group(group.member.clone());
    let driver = Arc::new(Driver::new(state, journal, environment, settings));
    group.start(driver.clone()).await?;
    tracing::info!(
        member = group.member.id(),
        entries = driver.journal().last_seq(),
        seconds = started.elapsed().as_secs_f64(),
        cluster = group.name.cluster_id,
        "namespace of the group loaded"
    );
    Ok(driver)
}

/// If this NameNode leads a group, lets another member lead, so that clients need not wait for an
/// election.
async fn hand_over(driver: &Driver, membership: Option<&Membership>, why: &str) {
    let (Some(membership), Some(member)) = (membership, driver.journal().member()) else { return };
    leader::hand_over(member, membership, || driver.pause(), why).await;
}

/// Runs the periodic work forever, and starts a snapshot when there are enough edits since the last
/// one.
async fn housekeeping(
    driver: Arc<Driver>,
    settings: NameNodeConfig,
    membership: Option<Membership>,
    health: HealthReporter,
) -> std::convert::Infallible {
    let mut writable = None;
    let retry_cache = settings.retry_cache;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut low_disk = LowDisk::new(Instant::now());
    let mut snapshots = SnapshotPolicy::new(settings.snapshot_bytes.0, settings.disk_reserve.0);
    loop {
        ticks.tick().await;
        if let Err(error) = driver.tick() {
            tracing::error!(%error, "the periodic work of the NameNode failed");
        }
        if low_disk.is_due(Instant::now(), driver.disk_of_leader_is_low()) {
            let (driver, membership) = (driver.clone(), membership.clone());
            tokio::spawn(async move {
                hand_over(&driver, membership.as_ref(), "has too little disk space").await;
            });
        }
        let now = driver.is_writable();
        if writable.replace(now) != Some(now) {
            let status = if now { ServingStatus::Serving } else { ServingStatus::NotServing };
            health.set_service_status(dfs_client::WRITABLE_SERVICE, status).await;
        }
        let making = driver.clone();
        driver.journal().check_snapshots(&mut snapshots, move || {
            storage::snapshot(making.journal(), making.cluster_id(), retry_cache)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use dfs_client::{Client, ClientOptions, path::DfsPath};
    use std::{thread, time::Duration};
    use tokio::{
        runtime::{Builder, Runtime},
        task::JoinHandle,
    };

    /// The requests that wait for the lock: more than a runtime has threads.
    const REQUESTS: usize = 16;
    /// How long the lock is held: longer than several elections.
    const HELD: Duration = Duration::from_secs(3);

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        daemon: DaemonArgs,
    }

    /// Starts a NameNode whose runtime has one thread. Returns its driver.
    fn start(config: Config) -> (Runtime, Arc<Driver>) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let opening = config.clone();
        let opening = runtime.spawn(async move { Opened::open(&opening, Recovery::Refuse).await });
        let opened = runtime.block_on(opening).unwrap().unwrap().unwrap();
        let driver = opened.driver.clone();
        let args = Args::parse_from(["namenode"]).daemon;
        runtime.spawn(async move { opened.serve(&config, &args).await.unwrap() });
        (runtime, driver)
    }

    /// Returns the member that leads in the newest term, and that term.
    fn leader(running: &[(Runtime, Arc<Driver>)]) -> Option<(usize, u64)> {
        let term = |driver: &Arc<Driver>| driver.journal().member().unwrap().leading();
        let leaders = running.iter().enumerate().filter_map(|(at, (_, driver))| Some((at, term(driver)?)));
        leaders.max_by_key(|(_, term)| *term)
    }

    #[test]
    fn requests_that_wait_for_the_lock_do_not_end_a_leadership() {
        let folder = tempfile::tempdir().unwrap();
        let free = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = free.map(|listener| listener.local_addr().unwrap().to_string());
        let mut running = Vec::new();
        for (id, address) in (1..).zip(&addresses) {
            let mut config = Config::default();
            config.cluster.namenode = addresses.join(",").into();
            config.namenode.listen.clone_from(address);
            config.namenode.dir = folder.path().join(address);
            config.namenode.member = id;
            if id > 1 {
                config.namenode.join = vec![addresses[0].clone()];
            }
            running.push(start(config));
        }
        let clients = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let until = Instant::now() + Duration::from_mins(1);
        let votes = |driver: &Arc<Driver>| {
            let status = driver.journal().member().unwrap().status();
            status.peers.iter().filter(|peer| peer.is_voter).count() == 3
        };
        while !running.iter().all(|(_, driver)| votes(driver)) {
            assert!(Instant::now() < until, "three members vote");
            thread::sleep(Duration::from_millis(10));
        }
        // A busy machine may delay heartbeats, too.
        let survives = |_| {
            let (at, term) = loop {
                if let Some(leader) = leader(&running) {
                    break leader;
                }
                assert!(Instant::now() < until, "a member leads");
                thread::sleep(Duration::from_millis(10));
            };
            let driver = running[at].1.clone();
            let options = ClientOptions::new(&addresses[at], Config::default().client);
            let client = clients.block_on(Client::connect(options)).unwrap();
            let state = driver.state.write();
            let call = || {
                let client = client.clone();
                clients.spawn(async move { client.stat(&DfsPath::root()).await })
            };
            let calls: Vec<_> = (0..REQUESTS).map(|_| call()).collect();
            thread::sleep(HELD);
            drop(state);
            calls.iter().for_each(JoinHandle::abort);
            leader(&running) == Some((at, term))
        };
        assert!((0..3).any(survives), "the leader loses its leadership while the lock is held");
    }
}
