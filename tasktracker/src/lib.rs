//! The TaskTracker daemon: slots, task processes, shuffle server.
//!
//! ```text
//! JobTracker ◄─► link ◄─► driver ◄─► agent         pure: orders in, reports out
//!                           │
//!                      task_runner ─ fetch          one asynchronous task per attempt
//!                           │      └─ pool ─ process      start, kill, reap; idle processes
//!                      task_session      └─ process::monitor memory, logs, escaped processes
//!                           │
//!                       umbilical ◄─► task processes
//!
//! reduces ◄── shuffle ── shuffle_store ── disks     map outputs, checkpoints, folders
//! mrctl logs ◄── logs
//! ```
//!
//! Invariants: a process runs code of the user only after its limits and restrictions are set. The
//! tracker reads files of tasks only with `safe_open`. An attempt accesses only its own folders; a
//! built-in program those of its job. The end of an attempt is reported when its process group is
//! dead, or when its process is idle for another attempt of the job. Killing the tracker kills its
//! tasks and all their child processes. Nothing runs that the JobTracker has not ordered. A message
//! of a task can end at most its own attempt.
//!
//! Deliberately absent: decisions about what should run.

mod account;
mod cgroup;
mod checkpoints;
mod confine;
mod copies;
mod disks;
mod driver;
mod error;
mod fetch;
#[doc(hidden)]
pub mod fuzzing;
mod idle_processes;
mod link;
mod logs;
mod orphan_reaper;
mod pool;
mod process;
mod shuffle;
mod shuffle_store;
mod system;
mod task_runner;
mod task_session;
mod umbilical;
mod wire;

pub use error::TrackerError;
pub use orphan_reaper::run_if_reaper;

use account::Account;
use cgroup::{Bounds, Groups};
use daemon::{
    config::{Choice, Config, TaskTrackerConfig},
    lifecycle::DaemonArgs,
};
use disks::{Disks, Found};
use error::folder;
use pool::Pool;
use process::{Limits, ProcessEnvironment, Spawner};
use proto::mr::tracker_logs_server::TrackerLogsServer;
use rustix::process::Pid;
use security::{Credentials, Guard, Role};
use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Child,
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    net::TcpListener,
    sync::{Mutex, mpsc, watch},
    task::JoinHandle,
    time::Instant,
};
use types::{PerPhase, Span};
use wire::Identity;

/// Maximum time for killed processes to end when the tracker stops.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Maximum number of events that wait for the driver; further senders wait.
const EVENTS_MAX: usize = 1024;

/// A TaskTracker in this process: serves from `start` until `stop`, or until dropped. Needs a tokio
/// runtime with I/O and time.
#[derive(Debug)]
pub struct TaskTracker {
    identity: Identity,
    ready: watch::Receiver<bool>,
    alarm: Mutex<mpsc::UnboundedReceiver<TrackerError>>,
    tasks: Vec<JoinHandle<()>>,
    spawner: Spawner,
    pool: Arc<Pool>,
    shuffle: Arc<shuffle::Shuffle>,
    /// Upgradable while an attempt exists.
    task_runner: Weak<task_runner::TaskRunner>,
    _disks: Arc<Disks>,
    _socket: umbilical::Socket,
    reaper: Option<Child>,
}

impl TaskTracker {
    /// Opens the folders, binds the addresses, starts serving, and connects to the JobTracker in
    /// the background. `mrtask` is the program of the built-in jobs; by default the one next to
    /// this executable.
    pub async fn start(config: &Config, mrtask: Option<&Path>) -> Result<Self, TrackerError> {
        Self::begin(config, mrtask, false).await
    }

    /// With `alone`, all children of this process belong to the tracker, and it becomes the parent
    /// of orphaned ones.
    async fn begin(config: &Config, mrtask: Option<&Path>, alone: bool) -> Result<Self, TrackerError> {
        config.check()?;
        let settings = &config.tasktracker;
        let program = program(mrtask)?;
        let guard = Guard::new(config, Role::TaskTracker)?;
        let credentials = Credentials::of_daemon(config, Role::TaskTracker)?;
        let (listener, shuffle_at) = listen(&settings.listen, config)?;
        let host_part = settings.listen.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
        let (logs_listener, logs_at) = listen(&format!("{host_part}:0"), config)?;
        let account = account(settings)?;
        let program = account.map_or(Ok(program.clone()), |account| account.startable(program))?;
        check_landlock(config, account)?;
        let (dirs, reserve) = (settings.dirs.clone(), settings.reserve.0);
        let opening = tokio::task::spawn_blocking(move || Disks::open(&dirs, reserve));
        let (disks, found) = opening.await.expect("opening does not panic")?;
        let disks = Arc::new(disks.for_tasks_of(account)?);
        let first = disks.root(0).to_owned();
        let (umbilical, socket) = bind_umbilical(&disks, account)?;
        let umbilical =
            tokio::net::UnixListener::from_std(umbilical).map_err(folder("make a socket in", &first))?;
        let identity = identity(settings, shuffle_at, logs_at, &disks)?;
        let mut environment = environment(settings, &first, &socket.path, identity.start);
        environment.account = account;
        if settings.confine.is_on(config.security.is_closed()) {
            environment.limits.processes = settings.task_processes_max;
            environment.groups = groups(settings, identity.start);
        }
        let reaper = if alone { Some(become_subreaper(&mut environment)?) } else { None };
        let spawner = Spawner::start(environment).map_err(TrackerError::Thread)?;
        let sizes = pool::Sizes {
            idle: settings.warm_tasks as usize,
            idle_processes: (settings.map_slots + settings.reduce_slots) as usize,
            reused_memory: settings.task_memory.0,
        };
        let pool = Pool::new(disks.clone(), spawner.clone(), program, sizes);
        let pool = Arc::new(pool);
        let (driver, alarms, ready) = assemble(config, &identity, found, &disks, &pool, &credentials);
        let (driver, shuffle_store, events) = driver;
        let task_runner = Arc::downgrade(&driver.task_runner);
        let shuffle = Arc::new(shuffle::Shuffle::new(shuffle_store, guard.clone()));
        let (link_events, from_link) = mpsc::channel(64);
        let link = link::Link::new(&config.cluster.jobtracker, credentials, link_events)?;
        let tasks = vec![
            tokio::spawn(umbilical::serve(umbilical, spawner.clone())),
            tokio::spawn(shuffle.clone().accept(listener)),
            tokio::spawn(serve_logs(guard, logs_listener, disks.clone())),
            tokio::spawn(driver.run(events, from_link)),
            tokio::spawn(link.run()),
            tokio::spawn(pool.clone().fill()),
            tokio::spawn(pool.clone().expire()),
        ];
        tracing::info!(
            node = identity.name,
            shuffle = identity.shuffle_addr,
            logs = identity.logs_addr,
            "tracking tasks"
        );
        let alarm = Mutex::new(alarms);
        Ok(Self {
            identity,
            ready,
            alarm,
            tasks,
            spawner,
            pool,
            shuffle,
            task_runner,
            _disks: disks,
            _socket: socket,
            reaper,
        })
    }

    /// Waits until the JobTracker has accepted the registration.
    pub async fn ready(&self) -> Result<(), TrackerError> {
        let mut ready = self.ready.clone();
        tokio::select! {
            Ok(_) = ready.wait_for(|ready| *ready) => Ok(()),
            error = self.failed() => Err(error),
        }
    }

    /// Returns the address of the shuffle server for others: `host:port`.
    pub fn shuffle_addr(&self) -> &str {
        &self.identity.shuffle_addr
    }

    /// Returns the address of the log server for others: `host:port`.
    pub fn logs_addr(&self) -> &str {
        &self.identity.logs_addr
    }

    /// Returns the number of task processes, including idle ones.
    pub fn processes(&self) -> usize {
        self.spawner.count()
    }

    /// Returns the number of idle task processes.
    pub fn idle(&self) -> usize {
        self.pool.idle()
    }

    /// Waits for an error that ends the tracker, such as a refusal by the JobTracker.
    pub async fn failed(&self) -> TrackerError {
        match self.alarm.lock().await.recv().await {
            Some(error) => error,
            // The sender exists as long as the driver.
            None => std::future::pending().await,
        }
    }

    /// Kills all attempts, waits until their processes and folders are gone, and stops.
    pub async fn stop(mut self) {
        self.end();
        let deadline = Instant::now() + STOP_GRACE;
        let busy = |tracker: &Self| tracker.spawner.count() > 0 || tracker.task_runner.strong_count() > 0;
        while busy(&self) && Instant::now() < deadline {
            self.spawner.kill_all();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if let Some(mut reaper) = self.reaper.take() {
            // Closing the pipe makes the reaper kill the remaining processes and exit.
            drop(reaper.stdin.take());
            let waiting = tokio::task::spawn_blocking(move || reaper.wait());
            tokio::time::timeout(STOP_GRACE, waiting).await.ok();
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

/// Runs a TaskTracker until it gets SIGTERM or SIGINT, or cannot continue. Writes the ready file,
/// with the shuffle address, after the registration.
pub async fn run(config: &Config, args: &DaemonArgs, mrtask: Option<&Path>) -> Result<(), TrackerError> {
    let tracker = TaskTracker::begin(config, mrtask, true).await?;
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
    (driver::Driver, Arc<shuffle_store::ShuffleStore>, mpsc::Receiver<wire::Event>),
    mpsc::UnboundedReceiver<TrackerError>,
    watch::Receiver<bool>,
);

fn assemble(
    config: &Config,
    identity: &Identity,
    found: Found,
    disks: &Arc<Disks>,
    pool: &Arc<Pool>,
    credentials: &Credentials,
) -> Assembled {
    let authority = credentials.authority();
    let (jobs, states) = (found.jobs.clone(), found.states.clone());
    let shuffle_store = Arc::new(shuffle_store::ShuffleStore::new(found));
    let (events, incoming) = mpsc::channel(EVENTS_MAX);
    let task_runner = task_runner::TaskRunner {
        disks: disks.clone(),
        fetcher: fetch::Fetcher::new(disks.clone(), config.client.clone(), authority.to_vec()),
        pool: pool.clone(),
        shuffle_store: shuffle_store.clone(),
        retention: logs::Retention::new(config.tasktracker.logs_kept, disks),
        log_max: config.tasktracker.task_log_max.0,
        memory_bytes: config.tasktracker.task_memory.0,
        copying: tokio::sync::Semaphore::new(1),
        connector: credentials.connector(Role::TaskTracker),
        authority: authority.to_vec(),
        enforce_owners: config.security.permissions.is_on(config.security.is_closed()),
        confine: config.tasktracker.confine.is_on(config.security.is_closed()),
        reads: config.tasktracker.task_reads.clone(),
        events,
    };
    let isolation_timeout = Some(config.tasktracker.isolation_timeout.0).filter(|set| !set.is_zero());
    let isolation_timeout =
        isolation_timeout.map(|set| Span(u64::try_from(set.as_micros()).unwrap_or(u64::MAX)));
    let (alarm, alarms) = mpsc::unbounded_channel();
    let (ready, is_ready) = watch::channel(false);
    let driver = driver::Driver {
        agent: wire::Agent::new(identity.slots, shuffle_store.attempts(), states, jobs, isolation_timeout),
        identity: identity.clone(),
        jobtracker: config.cluster.jobtracker.clone(),
        task_runner: Arc::new(task_runner),
        ready,
        alarm,
        children: HashMap::new(),
        dropping: HashMap::new(),
        started: std::time::Instant::now(),
        out: None,
    };
    ((driver, shuffle_store, incoming), alarms, is_ready)
}

async fn serve_logs(guard: Guard, listener: TcpListener, disks: Arc<Disks>) {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<TrackerLogsServer<logs::Logs>>().await;
    let server = async {
        let incoming = guard.incoming(listener.into_std()?)?;
        let mut server = guard.server().map_err(io::Error::other)?;
        let server =
            server.add_service(health_service).add_service(TrackerLogsServer::new(logs::Logs::new(disks)));
        server.serve_with_incoming(incoming).await.map_err(io::Error::other)
    };
    if let Err(error) = server.await {
        tracing::error!(%error, "the log server has stopped");
    }
}

fn listen(addr: &str, config: &Config) -> Result<(TcpListener, SocketAddr), TrackerError> {
    let listener = daemon::listen::bind(addr, config)?;
    let cannot = |source| TrackerError::Folder { what: "serve on", path: addr.into(), source };
    let bound = listener.local_addr().map_err(cannot)?;
    let listener = TcpListener::from_std(listener).map_err(cannot)?;
    Ok((listener, bound))
}

/// Returns the account of tasks, if it is not that of the tracker, and prepares the tracker for it.
fn account(settings: &TaskTrackerConfig) -> Result<Option<Account>, TrackerError> {
    let Some(account) = Account::of_tasks(settings)? else { return Ok(None) };
    daemon::safe_open::belongs_to(account.user);
    // Tasks may enter the folders of the tracker but not read its files.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o066));
    Ok(Some(account))
}

/// Whether tasks may run if the kernel cannot confine them.
#[derive(Debug, PartialEq, Eq)]
enum Confinement {
    /// They are confined, or the settings disable it.
    AsConfigured,
    /// They are not confined, but have another account, which cannot read the keys of the tracker.
    OwnAccount,
    Refused(&'static str),
}

fn confinement(choice: Choice, closed: bool, own_account: bool, landlock: bool) -> Confinement {
    if !choice.is_on(closed) || landlock {
        return Confinement::AsConfigured;
    }
    if choice == Choice::On {
        return Confinement::Refused(
            "tasktracker.confine = \"on\": this kernel has no Landlock (Linux 5.13 or later, with landlock among its \
             security modules): use such a kernel, or \"off\" to run tasks unconfined",
        );
    }
    if own_account {
        return Confinement::OwnAccount;
    }
    Confinement::Refused(
        "this kernel has no Landlock (Linux 5.13 or later), and tasks have the tracker's account: they could read its keys. \
         Use such a kernel, run the tracker as root with tasktracker.task_user, or set tasktracker.confine = \"off\" if \
         you trust every job with them",
    )
}

fn check_landlock(config: &Config, account: Option<Account>) -> Result<(), TrackerError> {
    let closed = config.security.is_closed();
    match confinement(config.tasktracker.confine, closed, account.is_some(), engine::process::can_confine()) {
        Confinement::AsConfigured => Ok(()),
        Confinement::OwnAccount => {
            tracing::warn!("this kernel has no Landlock: tasks can read whatever their account can");
            Ok(())
        }
        Confinement::Refused(why) => Err(TrackerError::Account(why.into())),
    }
}

/// Binds the socket in the first folder, or in another if that is full.
fn bind_umbilical(
    disks: &Disks,
    account: Option<Account>,
) -> Result<(std::os::unix::net::UnixListener, umbilical::Socket), TrackerError> {
    let bind = |root: &Path| umbilical::Socket::bind(root, account);
    let elsewhere = |error| disks.roots().skip(1).find_map(|root| bind(root).ok()).ok_or(error);
    bind(disks.root(0)).or_else(elsewhere).map_err(folder("make a socket in", disks.root(0)))
}

/// Makes this process the parent of all its orphaned descendants, and starts the reaper, which
/// kills what outlives the tracker. Called after the control groups are set up: this process has
/// then left the group that is divided, and the reaper starts outside of it.
fn become_subreaper(environment: &mut ProcessEnvironment) -> Result<Child, TrackerError> {
    // Children of the program that was replaced by this one do not belong to the tracker.
    let mut others = system::children(rustix::process::getpid());
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| TrackerError::Thread(error.into()))?;
    let reaper =
        orphan_reaper::start(&environment.root, environment.incarnation).map_err(TrackerError::Thread)?;
    others.push(Pid::from_child(&reaper));
    environment.others = Some(others);
    Ok(reaper)
}

/// The limit of the address space is far above that of memory, because many programs reserve much
/// more than they use.
fn environment(
    settings: &TaskTrackerConfig,
    root: &Path,
    umbilical: &Path,
    incarnation: u64,
) -> ProcessEnvironment {
    let memory = settings.memory_limit().0;
    ProcessEnvironment {
        umbilical: umbilical.into(),
        root: root.into(),
        incarnation,
        limits: Limits { memory, log: settings.task_log_max.0, processes: 0 },
        address_space_max: memory.saturating_mul(4),
        files_max: settings.task_files_max,
        account: None,
        groups: None,
        others: None,
    }
}

fn groups(settings: &TaskTrackerConfig, incarnation: u64) -> Option<Groups> {
    let (memory, processes) = (settings.memory_limit().0, settings.task_processes_max);
    Groups::open(Bounds { memory, processes }, incarnation)
}

fn program(mrtask: Option<&Path>) -> Result<PathBuf, TrackerError> {
    let path = match mrtask {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .map_err(|source| TrackerError::Folder { what: "find", path: "this program".into(), source })?
            .with_file_name("mrtask"),
    };
    // Absolute, because children have other working folders.
    let found = std::fs::canonicalize(&path).ok().filter(|path| path.is_file());
    found.ok_or(TrackerError::Program(path))
}

fn identity(
    config: &TaskTrackerConfig,
    shuffle: SocketAddr,
    logs: SocketAddr,
    disks: &Disks,
) -> Result<Identity, TrackerError> {
    let host = daemon::host_name();
    let advertised = |bound: SocketAddr| {
        if bound.ip().is_unspecified() { format!("{host}:{}", bound.port()) } else { bound.to_string() }
    };
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = disks.next_incarnation(started.as_micros() as u64);
    let name = if config.node.is_empty() { host.clone() } else { config.node.clone() };
    Ok(Identity {
        // The host is the name of the node. A DataNode registers its own name too, which
        // distinguishes nodes on the same machine.
        host: name.clone(),
        name,
        start: start.map_err(folder("store the number of this start in", disks.root(0)))?,
        rack: config.rack.clone(),
        shuffle_addr: advertised(shuffle),
        logs_addr: advertised(logs),
        slots: PerPhase { map: config.map_slots, reduce: config.reduce_slots },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_tracker_without_landlock_needs_an_account_for_tasks_or_explicit_consent() {
        let refused = |choice, closed, own_account, landlock| {
            matches!(confinement(choice, closed, own_account, landlock), Confinement::Refused(_))
        };
        // In a closed cluster, tasks with the account of the tracker could read its keys.
        assert!(refused(Choice::Auto, true, false, false));
        assert_eq!(confinement(Choice::Auto, true, true, false), Confinement::OwnAccount);
        for own_account in [false, true] {
            assert!(refused(Choice::On, true, own_account, false));
            assert!(refused(Choice::On, false, own_account, false));
            assert_eq!(confinement(Choice::Off, true, own_account, false), Confinement::AsConfigured);
            assert_eq!(confinement(Choice::Auto, false, own_account, false), Confinement::AsConfigured);
            for choice in [Choice::Auto, Choice::On, Choice::Off] {
                assert_eq!(confinement(choice, true, own_account, true), Confinement::AsConfigured);
            }
        }
    }
}
