//! The TaskTracker daemon: runs attempts in task processes, and serves their map outputs and logs.
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
//! tracker reads files of tasks only with `safe_open`. A confined attempt can access only its own
//! folders; with a built-in program, the folders of its job. An attempt is reported as ended when
//! its process group is dead, or when its process is idle and waits for another attempt of the job.
//! Killing the tracker kills its tasks and all their child processes. Only attempts that the
//! JobTracker has ordered run. A message of a task can end at most its own attempt.
//!
//! The JobTracker decides what runs.

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
use cgroup::{GroupLimits, Groups};
use daemon::{
    config::{Choice, Config, TaskTrackerConfig},
    lifecycle::DaemonArgs,
};
use disks::{Disks, FoundFiles};
use error::folder_error;
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
    pin::Pin,
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

/// How long a tracker that stops waits for killed processes to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of events that wait for the driver. If there are more, their senders wait.
const QUEUED_EVENTS_MAX: usize = 1024;

/// A TaskTracker in this process. It serves from `start` until `stop`, or until it is dropped, and
/// needs a tokio runtime with I/O and time.
#[derive(Debug)]
pub struct TaskTracker {
    identity: Identity,
    ready: watch::Receiver<bool>,
    fatal_errors: Mutex<mpsc::UnboundedReceiver<TrackerError>>,
    background_tasks: Vec<JoinHandle<()>>,
    spawner: Spawner,
    pool: Arc<Pool>,
    shuffle: Arc<shuffle::Shuffle>,
    /// Each attempt has a strong reference, so this shows whether attempts exist.
    task_runner: Weak<task_runner::TaskRunner>,
    _disks: Arc<Disks>,
    _socket: umbilical::Socket,
    reaper: Option<Child>,
}

impl TaskTracker {
    /// Opens the folders, binds the addresses, starts serving, and connects to the JobTracker in
    /// the background. `mrtask` is the program that runs built-in jobs; by default it is the file
    /// `mrtask` next to this executable.
    pub async fn start(config: &Config, mrtask: Option<&Path>) -> Result<Self, TrackerError> {
        Self::start_with(config, mrtask, false).await
    }

    /// Starts a tracker. `is_subreaper` says that this process runs nothing but the tracker: then
    /// it becomes the parent of orphaned descendants, and kills those that belong to no running
    /// attempt.
    async fn start_with(
        config: &Config,
        mrtask: Option<&Path>,
        is_subreaper: bool,
    ) -> Result<Self, TrackerError> {
        config.check()?;
        let settings = &config.tasktracker;
        let program = find_mrtask(mrtask)?;
        let guard = Guard::new(config, Role::TaskTracker)?;
        let credentials = Credentials::of_daemon(config, Role::TaskTracker)?;
        let (listener, shuffle_at) = listen(&settings.listen, config)?;
        let host_part = settings.listen.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
        let (logs_listener, logs_at) = listen(&format!("{host_part}:0"), config)?;
        let account = set_up_account(settings)?;
        let program = account.map_or(Ok(program.clone()), |account| account.startable_path(program))?;
        check_landlock(config, account)?;
        let (dirs, reserve) = (settings.dirs.clone(), settings.reserve.0);
        let opening = tokio::task::spawn_blocking(move || Disks::open(&dirs, reserve));
        let (disks, found) = opening.await.expect("opening does not panic")?;
        let disks = Arc::new(disks.with_account(account)?);
        let first = disks.root(0).to_owned();
        let (umbilical, socket) = bind_umbilical(&disks, account)?;
        let umbilical = tokio::net::UnixListener::from_std(umbilical)
            .map_err(folder_error("make a socket in", &first))?;
        let identity = make_identity(settings, shuffle_at, logs_at, &disks)?;
        let mut environment = process_environment(settings, &first, &socket.path, identity.start);
        environment.account = account;
        if settings.confine.is_on(config.security.is_closed()) {
            environment.limits.processes = settings.task_processes_max;
            environment.groups = groups(settings, identity.start);
        }
        let reaper = if is_subreaper { Some(become_subreaper(&mut environment)?) } else { None };
        let spawner = Spawner::start(environment).map_err(TrackerError::Thread)?;
        let limits = pool::PoolLimits {
            new_processes: settings.warm_tasks as usize,
            used_processes: (settings.map_slots + settings.reduce_slots) as usize,
            reused_memory: settings.task_memory.0,
        };
        let pool = Pool::new(disks.clone(), spawner.clone(), program, limits);
        let pool = Arc::new(pool);
        let DriverParts { driver, shuffle_store, events, fatal_errors, ready } =
            make_driver(config, &identity, found, &disks, &pool, &credentials);
        let task_runner = Arc::downgrade(&driver.task_runner);
        let shuffle = Arc::new(shuffle::Shuffle::new(shuffle_store, guard.clone()));
        let (link_events, from_link) = mpsc::channel(64);
        let link = link::Link::new(&config.cluster.jobtracker, credentials, link_events)?;
        let background_tasks = vec![
            tokio::spawn(umbilical::serve(umbilical, spawner.clone())),
            tokio::spawn(shuffle.clone().accept(listener)),
            tokio::spawn(serve_logs(guard, logs_listener, disks.clone())),
            tokio::spawn(driver.run(events, from_link)),
            tokio::spawn(link.run()),
            tokio::spawn(pool.clone().fill_loop()),
            tokio::spawn(pool.clone().expire_loop()),
        ];
        tracing::info!(
            node = identity.name,
            shuffle = identity.shuffle_addr,
            logs = identity.logs_addr,
            "tasktracker serves"
        );
        let fatal_errors = Mutex::new(fatal_errors);
        Ok(Self {
            identity,
            ready,
            fatal_errors,
            background_tasks,
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

    /// Returns the address of the shuffle server, `host:port`, as other nodes reach it.
    pub fn shuffle_addr(&self) -> &str {
        &self.identity.shuffle_addr
    }

    /// Returns the address of the log server, `host:port`, as clients reach it.
    pub fn logs_addr(&self) -> &str {
        &self.identity.logs_addr
    }

    /// Returns the number of task processes, including idle ones.
    pub fn processes(&self) -> usize {
        self.spawner.count()
    }

    /// Returns the number of idle task processes that were started in advance.
    pub fn idle(&self) -> usize {
        self.pool.new_process_count()
    }

    /// Waits for an error that ends the tracker, such as a refusal by the JobTracker.
    pub async fn failed(&self) -> TrackerError {
        match self.fatal_errors.lock().await.recv().await {
            Some(error) => error,
            // The driver is gone, so the tracker is stopping.
            None => std::future::pending().await,
        }
    }

    /// Kills all attempts, waits until their processes and folders are gone, and stops.
    pub async fn stop(mut self) {
        self.shut_down();
        let deadline = Instant::now() + STOP_TIMEOUT;
        let busy = |tracker: &Self| tracker.spawner.count() > 0 || tracker.task_runner.strong_count() > 0;
        while busy(&self) && Instant::now() < deadline {
            self.spawner.kill_all();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if let Some(mut reaper) = self.reaper.take() {
            // Closing the pipe makes the reaper kill the remaining processes and exit.
            drop(reaper.stdin.take());
            let waiting = tokio::task::spawn_blocking(move || reaper.wait());
            tokio::time::timeout(STOP_TIMEOUT, waiting).await.ok();
        }
    }

    /// Stops serving and kills all processes, without waiting until they have ended.
    fn shut_down(&mut self) {
        for task in self.background_tasks.drain(..) {
            task.abort();
        }
        self.pool.clear();
        self.spawner.kill_all();
        self.shuffle.close();
    }
}

impl Drop for TaskTracker {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Runs a TaskTracker until it gets SIGTERM or SIGINT, or cannot continue. Writes the ready file,
/// with the shuffle address, after the registration.
///
/// The future is boxed here, so that it is compiled in this crate and not in the program.
pub fn run<'a>(
    config: &'a Config,
    args: &'a DaemonArgs,
    mrtask: Option<&'a Path>,
) -> Pin<Box<dyn Future<Output = Result<(), TrackerError>> + Send + 'a>> {
    Box::pin(serve(config, args, mrtask))
}

async fn serve(config: &Config, args: &DaemonArgs, mrtask: Option<&Path>) -> Result<(), TrackerError> {
    let tracker = TaskTracker::start_with(config, mrtask, true).await?;
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

/// The driver, its shuffle store, and the receivers of its channels.
struct DriverParts {
    driver: driver::Driver,
    shuffle_store: Arc<shuffle_store::ShuffleStore>,
    events: mpsc::Receiver<wire::Event>,
    fatal_errors: mpsc::UnboundedReceiver<TrackerError>,
    /// Whether the tracker is registered.
    ready: watch::Receiver<bool>,
}

/// Creates the driver with the files of an earlier start.
fn make_driver(
    config: &Config,
    identity: &Identity,
    found: FoundFiles,
    disks: &Arc<Disks>,
    pool: &Arc<Pool>,
    credentials: &Credentials,
) -> DriverParts {
    let authority = credentials.authority();
    let (jobs, checkpoints) = (found.jobs.clone(), found.checkpoint_infos.clone());
    let shuffle_store = Arc::new(shuffle_store::ShuffleStore::new(found));
    let (events, incoming) = mpsc::channel(QUEUED_EVENTS_MAX);
    let task_runner = task_runner::TaskRunner {
        disks: disks.clone(),
        fetcher: fetch::Fetcher::new(disks.clone(), config.client.clone(), authority.to_vec()),
        pool: pool.clone(),
        shuffle_store: shuffle_store.clone(),
        log_retention: logs::LogRetention::new(config.tasktracker.logs_kept, disks),
        log_max: config.tasktracker.task_log_max.0,
        memory_bytes: config.tasktracker.task_memory.0,
        copying: tokio::sync::Semaphore::new(1),
        connector: credentials.connector(Role::TaskTracker),
        authority: authority.to_vec(),
        enforce_owners: config.security.permissions.is_on(config.security.is_closed()),
        confine: config.tasktracker.confine.is_on(config.security.is_closed()),
        reads: config.tasktracker.task_reads.clone(),
        writes: config.tasktracker.task_writes.clone(),
        events,
    };
    let isolation_timeout = Some(config.tasktracker.isolation_timeout.0).filter(|set| !set.is_zero());
    let isolation_timeout =
        isolation_timeout.map(|set| Span(u64::try_from(set.as_micros()).unwrap_or(u64::MAX)));
    let (fatal_errors, fatal_error_receiver) = mpsc::unbounded_channel();
    let (ready, is_ready) = watch::channel(false);
    let driver = driver::Driver {
        agent: wire::Agent::new(
            identity.slots,
            shuffle_store.attempts_with_output(),
            checkpoints,
            jobs,
            isolation_timeout,
        ),
        identity: identity.clone(),
        jobtracker: config.cluster.jobtracker.to_string(),
        task_runner: Arc::new(task_runner),
        ready,
        fatal_errors,
        commands: HashMap::new(),
        checkpoint_renames: HashMap::new(),
        started: std::time::Instant::now(),
        to_jobtracker: None,
    };
    DriverParts {
        driver,
        shuffle_store,
        events: incoming,
        fatal_errors: fatal_error_receiver,
        ready: is_ready,
    }
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

/// Returns the account of tasks, and prepares the tracker for it; `None` if it is the account of
/// the tracker.
fn set_up_account(settings: &TaskTrackerConfig) -> Result<Option<Account>, TrackerError> {
    let Some(account) = Account::of_tasks(settings)? else { return Ok(None) };
    daemon::safe_open::set_required_owner(account.user);
    // With this mode, tasks can enter the folders of the tracker but cannot read its files.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o066));
    Ok(Some(account))
}

/// Whether the tracker may start, given whether the kernel can confine tasks.
#[derive(Debug, PartialEq, Eq)]
enum ConfinementCheck {
    /// Tasks are confined, or the settings disable this.
    AsConfigured,
    /// Tasks are not confined, but have another account, which cannot read the keys of the tracker.
    OwnAccount,
    /// The tracker must not start, for this reason.
    Refused(&'static str),
}

/// Checks the setting for confinement. `closed` says whether the cluster is closed, `own_account`
/// whether tasks have an account of their own, and `landlock` whether the kernel has Landlock.
fn check_confinement(choice: Choice, closed: bool, own_account: bool, landlock: bool) -> ConfinementCheck {
    if !choice.is_on(closed) || landlock {
        return ConfinementCheck::AsConfigured;
    }
    if choice == Choice::On {
        return ConfinementCheck::Refused(
            "tasktracker.confine = \"on\": this kernel has no Landlock (Linux 5.13 or later, with landlock among its \
             security modules): use such a kernel, or \"off\" to run tasks unconfined",
        );
    }
    if own_account {
        return ConfinementCheck::OwnAccount;
    }
    ConfinementCheck::Refused(
        "this kernel has no Landlock (Linux 5.13 or later), and tasks have the tracker's account: they could read its keys. \
         Use such a kernel, run the tracker as root with tasktracker.task_user, or set tasktracker.confine = \"off\" if \
         you trust every job with them",
    )
}

fn check_landlock(config: &Config, account: Option<Account>) -> Result<(), TrackerError> {
    let closed = config.security.is_closed();
    match check_confinement(
        config.tasktracker.confine,
        closed,
        account.is_some(),
        engine::process::can_confine(),
    ) {
        ConfinementCheck::AsConfigured => Ok(()),
        ConfinementCheck::OwnAccount => {
            tracing::warn!("this kernel has no Landlock: tasks can read whatever their account can");
            Ok(())
        }
        ConfinementCheck::Refused(why) => Err(TrackerError::Account(why.into())),
    }
}

/// Creates the socket for task processes in the first folder, or in another one if that fails, for
/// example because the disk is full.
fn bind_umbilical(
    disks: &Disks,
    account: Option<Account>,
) -> Result<(std::os::unix::net::UnixListener, umbilical::Socket), TrackerError> {
    let bind = |root: &Path| umbilical::Socket::bind(root, account);
    let bind_elsewhere = |error| disks.roots().skip(1).find_map(|root| bind(root).ok()).ok_or(error);
    bind(disks.root(0)).or_else(bind_elsewhere).map_err(folder_error("make a socket in", disks.root(0)))
}

/// Makes this process the parent of all its orphaned descendants, and starts the reaper, which
/// kills processes that outlive the tracker. Must be called after the control groups are set up:
/// this process has then left the group whose controllers are delegated, and the reaper does not
/// start in that group.
fn become_subreaper(environment: &mut ProcessEnvironment) -> Result<Child, TrackerError> {
    // A program that replaced itself with this one (exec) may have had children, which do not
    // belong to the tracker.
    let mut other_children = system::children(rustix::process::getpid());
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| TrackerError::Thread(error.into()))?;
    let reaper =
        orphan_reaper::start(&environment.root, environment.incarnation).map_err(TrackerError::Thread)?;
    other_children.push(Pid::from_child(&reaper));
    environment.other_children = Some(other_children);
    Ok(reaper)
}

/// Returns the common settings of all task processes. The limit of the address space is far above
/// the limit of memory, because many programs reserve much more memory than they use.
fn process_environment(
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
        other_children: None,
    }
}

fn groups(settings: &TaskTrackerConfig, incarnation: u64) -> Option<Groups> {
    let (memory, processes) = (settings.memory_limit().0, settings.task_processes_max);
    Groups::open(GroupLimits { memory, processes }, incarnation)
}

/// Returns the absolute path of the program that runs tasks.
fn find_mrtask(mrtask: Option<&Path>) -> Result<PathBuf, TrackerError> {
    let path = match mrtask {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .map_err(|source| TrackerError::Folder { what: "find", path: "this program".into(), source })?
            .with_file_name("mrtask"),
    };
    // The path must be absolute, because child processes have other working folders.
    let found = std::fs::canonicalize(&path).ok().filter(|path| path.is_file());
    found.ok_or(TrackerError::Program(path))
}

/// Returns the identity of this tracker, with a new start number.
fn make_identity(
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
        // Use the name of the node as the host name. The DataNode of a node registers the node name
        // too, so this distinguishes nodes on the same machine.
        host: name.clone(),
        name,
        start: start.map_err(folder_error("store the number of this start in", disks.root(0)))?,
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
    fn tracker_of_a_closed_cluster_without_landlock_needs_another_account_or_confine_off() {
        let refused = |choice, closed, own_account, landlock| {
            matches!(check_confinement(choice, closed, own_account, landlock), ConfinementCheck::Refused(_))
        };
        // In a closed cluster, tasks that have the account of the tracker could read its keys.
        assert!(refused(Choice::Auto, true, false, false));
        assert_eq!(check_confinement(Choice::Auto, true, true, false), ConfinementCheck::OwnAccount);
        for own_account in [false, true] {
            assert!(refused(Choice::On, true, own_account, false));
            assert!(refused(Choice::On, false, own_account, false));
            assert_eq!(
                check_confinement(Choice::Off, true, own_account, false),
                ConfinementCheck::AsConfigured
            );
            assert_eq!(
                check_confinement(Choice::Auto, false, own_account, false),
                ConfinementCheck::AsConfigured
            );
            for choice in [Choice::Auto, Choice::On, Choice::Off] {
                assert_eq!(
                    check_confinement(choice, true, own_account, true),
                    ConfinementCheck::AsConfigured
                );
            }
        }
    }
}
