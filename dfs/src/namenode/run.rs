//! Runs a NameNode: opens the folder, serves, ticks, makes snapshots, and stops in order.

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
use journal::{LogFailed, Recovery, SnapshotPolicy, log::RECORD_BYTES_MAX};
use proto::dfs::{block_reports_server::BlockReportsServer, name_node_server::NameNodeServer};
use replication::master::Journal;
use security::{Guard, Role, SecurityError};
use std::{io, pin::Pin, sync::Arc, time::Instant};
use tokio::sync::Semaphore;
use tonic_health::{ServingStatus, server::HealthReporter};

/// Why a NameNode ended.
#[derive(Debug, thiserror::Error)]
pub enum NameNodeError {
    /// The folder is in use by another process.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The contents of the folder cannot be used.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A credential, key or certificate cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// The address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The edit log failed.
    #[error(transparent)]
    Log(#[from] LogFailed),
    /// The server failed.
    #[error("cannot serve: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// An operation of the operating system failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

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
    let started = Instant::now();
    let settings = &config.namenode;
    let listener = daemon::listen::bind(&settings.listen, config)?;
    let guard = Guard::new(config, Role::NameNode)?;
    let _lock = FolderLock::acquire(&settings.dir, "namenode")?;
    let Storage { log, namespace, lost } = Storage::open(&settings.dir, recovery, settings)?;
    tracing::info!(
        records = log.last_seq(),
        seconds = started.elapsed().as_secs_f64(),
        cluster = namespace.cluster_id(),
        epoch = namespace.epoch(),
        "namespace loaded"
    );
    let state = State::new(Settings::from(settings), namespace, now_since(started));
    let driver = Arc::new(Driver::new(state, Journal::Single(log), started, settings));

    let addr = listener.local_addr()?;
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
        .add_service(NameNodeServer::new(service).max_decoding_message_size(RECORD_BYTES_MAX))
        .add_service(BlockReportsServer::new(DataNodeService {
            driver: driver.clone(),
            heartbeat_ms: settings.heartbeat.0.as_millis() as u64,
            blocks,
        }))
        .serve_with_incoming(incoming);

    args.write_ready(&addr.to_string())?;
    tracing::info!(%addr, dir = %settings.dir.display(), "NameNode is serving");
    tokio::select! {
        ended = server => ended?,
        failed = driver.journal().failed() => return Err(failed.into()),
        never = housekeeping(&driver, settings, health) => match never {},
        () = stop_signal() => {}
    }
    // All answered requests are durable. Clients retry the others.
    tracing::info!("NameNode is stopping");
    // Closing seals the log. An incomplete record at the next start then means that data was lost,
    // and not that a write was interrupted.
    Ok(driver.log().close()?)
}

/// Runs the periodic work forever, and starts a snapshot when there are enough edits since the last
/// one.
async fn housekeeping(
    driver: &Arc<Driver>,
    settings: &NameNodeConfig,
    health: HealthReporter,
) -> std::convert::Infallible {
    let mut writable = None;
    let retry_cache = settings.retry_cache;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut snapshots = SnapshotPolicy::new(settings.snapshot_bytes.0, settings.disk_reserve.0);
    loop {
        ticks.tick().await;
        if let Err(error) = driver.tick() {
            tracing::error!(%error, "the periodic work of the NameNode failed");
        }
        let now = !driver.in_safemode();
        if writable.replace(now) != Some(now) {
            let status = if now { ServingStatus::Serving } else { ServingStatus::NotServing };
            health.set_service_status(dfs_client::WRITABLE_SERVICE, status).await;
        }
        let snapshot_driver = driver.clone();
        snapshots.check(driver.log(), move || {
            storage::snapshot(snapshot_driver.log(), &snapshot_driver.cluster_id(), retry_cache)
        });
    }
}
