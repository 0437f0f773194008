//! A NameNode from start to stop: open the folder, serve, tick, snapshot, end in order.

use super::{
    Settings,
    driver::{Driver, TICK, now_since},
    server::{ClientService, DataNodeService},
    state::State,
    storage::{self, Storage, StorageError},
};
use daemon::{
    config::{Config, NameNodeConfig},
    lifecycle::{DaemonArgs, stop_signal},
    listen::ListenError,
    lock::{FolderLock, LockError},
};
use journal::{Log, LogFailed, Recovery};
use proto::dfs::{block_reports_server::BlockReportsServer, name_node_server::NameNodeServer};
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tonic::transport::server::TcpIncoming;

/// Streams a client may have open on one connection.
const STREAMS_MAX: u32 = 1024;

/// Why a NameNode ended.
#[derive(Debug, thiserror::Error)]
pub enum NameNodeError {
    /// The folder is in use.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The address cannot be served on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The edit log failed.
    #[error(transparent)]
    Log(#[from] LogFailed),
    /// Serving failed.
    #[error("cannot serve: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// The system would not.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Runs a NameNode until it is told to stop or its log fails.
pub async fn run(config: &Config, args: &DaemonArgs, recovery: Recovery) -> Result<(), NameNodeError> {
    let started = Instant::now();
    let settings = &config.namenode;
    let listener = daemon::listen::bind(&settings.listen, config.cluster.insecure)?;
    let _lock = FolderLock::acquire(&settings.dir, "namenode")?;
    let Storage { log, namespace } = Storage::open(&settings.dir, recovery, settings.retry_cache)?;
    tracing::info!(
        records = log.last_seq(),
        seconds = started.elapsed().as_secs_f64(),
        cluster = namespace.cluster_id(),
        "namespace loaded"
    );
    let state = State::new(Settings::from(settings), namespace, now_since(started));
    let driver = Arc::new(Driver::new(state, log, started, settings));

    let addr = listener.local_addr()?;
    let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?).with_nodelay(Some(true));
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<NameNodeServer<ClientService>>().await;
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .add_service(health_service)
        .add_service(NameNodeServer::new(ClientService {
            driver: driver.clone(),
            lease_ms: settings.lease.0.as_millis() as u64,
        }))
        .add_service(BlockReportsServer::new(DataNodeService {
            driver: driver.clone(),
            heartbeat_ms: settings.heartbeat.0.as_millis() as u64,
        }))
        .serve_with_incoming(incoming);

    args.write_ready(&addr.to_string())?;
    tracing::info!(%addr, dir = %settings.dir.display(), "namenode serves");
    tokio::select! {
        ended = server => ended?,
        failed = driver.log().failed() => return Err(failed.into()),
        never = housekeeping(&driver, settings) => match never {},
        () = stop_signal() => {}
    }
    // What was answered is durable; what is still in flight will be asked again.
    tracing::info!("namenode stops");
    Ok(())
}

/// Ticks for ever, and has a snapshot made whenever the edits since the last have grown.
async fn housekeeping(driver: &Arc<Driver>, settings: &NameNodeConfig) -> std::convert::Infallible {
    let snapshot_bytes = settings.snapshot_bytes.0;
    let answers = settings.retry_cache;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut snapshot: Option<tokio::task::JoinHandle<()>> = None;
    // After a failed attempt the next one waits for as many edits again, so that it does not spin.
    let mut due = snapshot_bytes;
    let mut room = SnapshotRoom { reserve: settings.disk_reserve.0, told: false };
    loop {
        ticks.tick().await;
        if let Err(error) = driver.tick() {
            tracing::error!(%error, "tick");
        }
        let grown = driver.log().bytes_since_snapshot();
        let idle = snapshot.as_ref().is_none_or(tokio::task::JoinHandle::is_finished);
        if idle && grown > due && room.is_there(driver.log()) {
            due = grown + snapshot_bytes;
            snapshot = Some(tokio::task::spawn_blocking({
                let driver = driver.clone();
                move || make_snapshot(&driver, answers)
            }));
        } else if grown < snapshot_bytes {
            due = snapshot_bytes;
        }
    }
}

/// Snapshots wait while they could fill the disk that the log needs.
struct SnapshotRoom {
    reserve: u64,
    /// It has been said that there is none.
    told: bool,
}

impl SnapshotRoom {
    fn is_there(&mut self, log: &Log) -> bool {
        let shortage = match storage::room_for_snapshot(log, self.reserve) {
            Ok(Ok(())) => None,
            Ok(Err((needed, free))) => Some(format!("it needs {needed} bytes and {free} are free")),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = &shortage
            && !self.told
        {
            tracing::warn!(why, "no snapshot until there is room: the edit log goes on and is kept whole");
        }
        self.told = shortage.is_some();
        shortage.is_none()
    }
}

fn make_snapshot(driver: &Driver, answers: usize) {
    if let Err(error) = storage::snapshot(driver.log(), &driver.cluster_id(), answers) {
        tracing::error!(%error, "no snapshot: the edit log goes on and is kept whole");
    }
}
