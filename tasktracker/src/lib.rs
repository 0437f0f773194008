//! The TaskTracker daemon: slots, task processes, shuffle server.
//!
//! ```text
//! JobTracker ◄─► link ◄─► driver ◄─► agent             pure: orders in, reports out
//!                           │
//!                         child ─ fetch                 one task an attempt
//!                           │  └─ pool ─ process        warm processes; start, kill, reap
//!                       umbilical ◄─► task processes ◄─ guard
//!
//! reduces ◄── shuffle ── held ── disks                  map output, and where everything lies
//! mrctl logs ◄── logs
//! ```
//!
//! What holds: an attempt touches only its own folders; its end is reported when its process group is dead;
//! killing the tracker kills its tasks; nothing runs that the JobTracker has not ordered. Deliberately absent:
//! any opinion on what should run.

pub mod agent;
mod child;
mod disks;
mod driver;
mod error;
mod fetch;
pub mod guard;
mod held;
pub mod ids;
mod index;
mod link;
mod logs;
mod pool;
mod process;
mod shuffle;
mod umbilical;
mod wire;

pub use error::TrackerError;

use agent::{Agent, Slots};
use daemon::{
    config::{Config, ConfigError, TaskTrackerConfig},
    lifecycle::DaemonArgs,
};
use disks::{Disks, Found};
use error::folder;
use guard::Guard;
use pool::Pool;
use process::{Spawner, Surroundings};
use proto::mr::tracker_logs_server::TrackerLogsServer;
use std::{
    collections::HashMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc, watch},
    task::JoinHandle,
    time::Instant,
};
use wire::Identity;

/// How long killed processes may take to go when the tracker stops.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Events that wait for the driver; whoever has more waits.
const EVENTS_MAX: usize = 1024;

/// A TaskTracker in this process: serves from `start` until `stop`, or until dropped. Needs a tokio runtime with
/// I/O and time.
#[derive(Debug)]
pub struct TaskTracker {
    who: Identity,
    ready: watch::Receiver<bool>,
    alarm: Mutex<mpsc::UnboundedReceiver<TrackerError>>,
    tasks: Vec<JoinHandle<()>>,
    spawner: Spawner,
    pool: Arc<Pool>,
    shuffle: Arc<shuffle::Shuffle>,
    _disks: Arc<Disks>,
    _socket: umbilical::Socket,
}

impl TaskTracker {
    /// Opens the folders, binds the addresses, serves, and begins to look for the JobTracker. `mrtask` is the
    /// program that holds the built-in jobs; without it, the one beside this executable.
    pub async fn start(config: &Config, mrtask: Option<&Path>) -> Result<Self, TrackerError> {
        // A guard is the tracker's own program, which whoever embeds a tracker is not.
        Self::start_guarded(config, mrtask, Guard::default()).await
    }

    async fn start_guarded(
        config: &Config,
        mrtask: Option<&Path>,
        guard: Guard,
    ) -> Result<Self, TrackerError> {
        let settings = &config.tasktracker;
        check(settings)?;
        let program = program(mrtask)?;
        let (listener, shuffle_at) = listen(&settings.listen, config.cluster.insecure)?;
        let host_part = settings.listen.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
        let (logs_listener, logs_at) = listen(&format!("{host_part}:0"), config.cluster.insecure)?;
        let (dirs, reserve) = (settings.dirs.clone(), settings.reserve.0);
        let opening = tokio::task::spawn_blocking(move || Disks::open(&dirs, reserve));
        let (disks, found) = opening.await.expect("opening does not panic")?;
        let disks = Arc::new(disks);
        let first = disks.root(0).to_owned();
        let (umbilical, socket) =
            umbilical::Socket::bind(&first).map_err(folder("make a socket in", &first))?;
        let umbilical =
            tokio::net::UnixListener::from_std(umbilical).map_err(folder("make a socket in", &first))?;
        let surroundings = Surroundings {
            umbilical: socket.path.clone(),
            memory_max: settings.task_memory_max.0,
            files_max: settings.task_files_max,
        };
        let spawner = Spawner::start(surroundings, guard).map_err(TrackerError::Thread)?;
        let pool = Pool::new(disks.clone(), spawner.clone(), program, settings.warm_tasks as usize);
        let pool = Arc::new(pool);
        let who = identity(settings, shuffle_at, logs_at);
        let (driver, alarms, ready) = assemble(config, &who, found, &disks, &pool);
        let (driver, held, events) = driver;
        let shuffle = Arc::new(shuffle::Shuffle::new(held));
        let (news, from_link) = mpsc::channel(64);
        let link = link::Link::new(&config.cluster.jobtracker, news)?;
        let tasks = vec![
            tokio::spawn(umbilical::serve(umbilical, spawner.clone())),
            tokio::spawn(shuffle.clone().accept(listener)),
            tokio::spawn(serve_logs(logs_listener, disks.clone())),
            tokio::spawn(driver.run(events, from_link)),
            tokio::spawn(link.run()),
            tokio::spawn(pool.clone().fill()),
        ];
        tracing::info!(node = who.name, shuffle = who.shuffle_addr, logs = who.logs_addr, "tracking tasks");
        let alarm = Mutex::new(alarms);
        Ok(Self { who, ready, alarm, tasks, spawner, pool, shuffle, _disks: disks, _socket: socket })
    }

    /// Waits until the JobTracker has taken the registration.
    pub async fn ready(&self) -> Result<(), TrackerError> {
        let mut ready = self.ready.clone();
        tokio::select! {
            Ok(_) = ready.wait_for(|ready| *ready) => Ok(()),
            error = self.failed() => Err(error),
        }
    }

    /// Where map output is fetched, as others are told: `host:port`.
    pub fn shuffle_addr(&self) -> &str {
        &self.who.shuffle_addr
    }

    /// Where logs are read, as others are told: `host:port`.
    pub fn logs_addr(&self) -> &str {
        &self.who.logs_addr
    }

    /// Task processes that live, idle ones included.
    pub fn processes(&self) -> usize {
        self.spawner.count()
    }

    /// Idle task processes that wait for an attempt.
    pub fn idle(&self) -> usize {
        self.pool.idle()
    }

    /// Waits for an error that ends the tracker: refused by the JobTracker.
    pub async fn failed(&self) -> TrackerError {
        match self.alarm.lock().await.recv().await {
            Some(error) => error,
            // The sender lives as long as the driver.
            None => std::future::pending().await,
        }
    }

    /// Kills everything that runs, waits until it is gone, and ends.
    pub async fn stop(mut self) {
        self.end();
        let patience = Instant::now() + STOP_GRACE;
        while self.spawner.count() > 0 && Instant::now() < patience {
            self.spawner.kill_all();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn end(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        self.pool.empty();
        self.spawner.kill_all();
        self.shuffle.close();
    }
}

impl Drop for TaskTracker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a TaskTracker until it is asked to stop (SIGTERM, SIGINT) or cannot go on. Writes the ready file, with
/// the shuffle address, once registered.
pub async fn run(config: &Config, args: &DaemonArgs, mrtask: Option<&Path>) -> Result<(), TrackerError> {
    let guard = Guard::start().map_err(TrackerError::Guard)?;
    let tracker = TaskTracker::start_guarded(config, mrtask, guard).await?;
    let serve = async {
        tracker.ready().await?;
        args.write_ready(tracker.shuffle_addr()).map_err(TrackerError::Ready)?;
        Err(tracker.failed().await)
    };
    let end = tokio::select! {
        () = daemon::lifecycle::stop_signal() => Ok(()),
        end = serve => end,
    };
    tracing::info!("stopping");
    tracker.stop().await;
    end
}

type Assembled = (
    (driver::Driver, Arc<held::Held>, mpsc::Receiver<agent::Event>),
    mpsc::UnboundedReceiver<TrackerError>,
    watch::Receiver<bool>,
);

fn assemble(
    config: &Config,
    who: &Identity,
    found: Found,
    disks: &Arc<Disks>,
    pool: &Arc<Pool>,
) -> Assembled {
    let held = Arc::new(held::Held::new(found));
    let (events, incoming) = mpsc::channel(EVENTS_MAX);
    let nursery = child::Nursery {
        disks: disks.clone(),
        fetcher: fetch::Fetcher::new(disks.clone(), config.client.clone()),
        pool: pool.clone(),
        held: held.clone(),
        retention: logs::Retention::new(config.tasktracker.logs_kept, disks),
        memory_bytes: config.tasktracker.task_memory.0,
        events,
    };
    let (alarm, alarms) = mpsc::unbounded_channel();
    let (ready, is_ready) = watch::channel(false);
    let driver = driver::Driver {
        agent: Agent::new(who.slots, held.attempts()),
        who: who.clone(),
        jobtracker: config.cluster.jobtracker.clone(),
        nursery: Arc::new(nursery),
        ready,
        alarm,
        children: HashMap::new(),
        out: None,
    };
    ((driver, held, incoming), alarms, is_ready)
}

async fn serve_logs(listener: TcpListener, disks: Arc<Disks>) {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<TrackerLogsServer<logs::Logs>>().await;
    let server = tonic::transport::Server::builder()
        .add_service(health_service)
        .add_service(TrackerLogsServer::new(logs::Logs(disks)))
        .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true)));
    if let Err(error) = server.await {
        tracing::error!(%error, "logs are not served any more");
    }
}

fn listen(addr: &str, insecure: bool) -> Result<(TcpListener, SocketAddr), TrackerError> {
    let listener = daemon::listen::bind(addr, insecure)?;
    let cannot = |source| TrackerError::Folder { what: "serve on", path: addr.into(), source };
    let bound = listener.local_addr().map_err(cannot)?;
    let listener = TcpListener::from_std(listener).map_err(cannot)?;
    Ok((listener, bound))
}

/// What the types of the settings do not rule out.
fn check(config: &TaskTrackerConfig) -> Result<(), ConfigError> {
    let refuse = |key, value: String, why| Err(ConfigError::Value { key, value, why });
    if config.dirs.is_empty() {
        return refuse("tasktracker.dirs", "[]".into(), "name at least one folder");
    }
    if config.map_slots == 0 && config.reduce_slots == 0 {
        return refuse("tasktracker.map_slots", "0".into(), "and no reduce slots: it could run nothing");
    }
    if config.task_memory.0 < 1 << 20 {
        let value = config.task_memory.to_string();
        return refuse("tasktracker.task_memory", value, "must be at least 1MiB");
    }
    Ok(())
}

fn program(mrtask: Option<&Path>) -> Result<PathBuf, TrackerError> {
    let path = match mrtask {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .map_err(|source| TrackerError::Folder { what: "find", path: "this program".into(), source })?
            .with_file_name("mrtask"),
    };
    // Children have other current folders.
    let found = std::fs::canonicalize(&path).ok().filter(|path| path.is_file());
    found.ok_or(TrackerError::Program(path))
}

fn identity(config: &TaskTrackerConfig, shuffle: SocketAddr, logs: SocketAddr) -> Identity {
    // The same text as the DataNode on this machine gives.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let told = |bound: SocketAddr| {
        if bound.ip().is_unspecified() { format!("{host}:{}", bound.port()) } else { bound.to_string() }
    };
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Identity {
        name: if config.node.is_empty() { host.clone() } else { config.node.clone() },
        incarnation: started.as_micros() as u64,
        rack: config.rack.clone(),
        shuffle_addr: told(shuffle),
        logs_addr: told(logs),
        slots: Slots { map: config.map_slots, reduce: config.reduce_slots },
        host,
    }
}
