//! A run: faults while clients work, then everything heals, all operations end, and what the clients
//! have seen is checked.

use crate::{
    clients::{Client, ClosedFile},
    datanodes::DataNodes,
    faults::Faults,
    history::check_linearizable,
    namenodes::NameNodes,
    network::Network,
    simulation::Simulation,
};
use dfs::namenode::State;
use dfs_client::path::DfsPath;
use journal::bugs::{self, Bug};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::{
    runtime,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Events that are rare, and that many runs together must contain.
pub const RARE_EVENTS: [&str; 22] = [
    "bad sector",
    "bit rot",
    "block copied",
    "commands of a deposed leader refused",
    "crash at a start",
    "damaged snapshot dropped",
    "deletions dropped",
    "disk failed in the middle of its work",
    "folder lost",
    "follower crashed",
    "leader asked another to lead",
    "leader crashed",
    "leader deposed during a commit",
    "leader without a quorum refused",
    "member exchanged after damage",
    "misdirected write",
    "request repeated without an answer",
    "snapshot installed",
    "snapshot installed during a failover",
    "surplus replica deleted",
    "torn write on a follower",
    "torn write on a leader",
];

const CLIENTS: u64 = 4;
const WRITERS: u64 = 2;
const DATANODES: usize = 4;
/// How long operations may take after everything has healed.
const LIVENESS: Duration = Duration::from_mins(2);

/// What a run is like.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long faults are made, in simulated time.
    pub faults: Duration,
    /// Whether each event is printed.
    pub prints: bool,
    /// A bug on purpose.
    pub bug: Option<Bug>,
}

impl Default for Options {
    fn default() -> Self {
        Self { faults: Duration::from_secs(12), prints: false, bug: None }
    }
}

/// What has happened in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Hash of all events with their times.
    pub trace: u64,
    /// Number of events.
    pub events: u64,
    /// Number of calls of clients that were answered.
    pub calls: u64,
    /// Number of files that were closed.
    pub files: u64,
    /// How often some events have happened.
    pub counters: BTreeMap<&'static str, u64>,
}

/// A run has shown a fault.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// What is wrong.
    pub why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, why } = self;
        write!(
            f,
            "seed {seed}: {why}\nreplay it: FERMATA_SEED={seed} cargo test -p fermata-world --test seeds one_seed -- \
             --nocapture"
        )
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static IS_SIMULATED: RefCell<bool> = const { RefCell::new(false) };
}

/// Remembers the first panic of a simulated thread, also one in a task, and prints no others.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_SIMULATED.with_borrow(|is_simulated| *is_simulated) {
                return print(info);
            }
            PANIC.with_borrow_mut(|first| _ = first.get_or_insert_with(|| info.to_string()));
        }));
    });
}

/// Runs a seed, in a thread of its own.
pub fn run(seed: u64, options: &Options) -> Result<Report, Failure> {
    catch_panics();
    let options = options.clone();
    let work = move || {
        IS_SIMULATED.set(true);
        bugs::set_in_thread(options.bug);
        replication::runtime::seed_thread(seed);
        let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without I/O");
        let result =
            panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(run_in_runtime(seed, &options))));
        // What is left of members would spawn tasks when it is dropped.
        runtime.shutdown_background();
        let panicked = PANIC.take();
        match (result, panicked) {
            (Ok(Ok(report)), None) => Ok(report),
            (Ok(Err(why)), _) => Err(why),
            (_, Some(panicked)) => Err(panicked),
            (Err(_), None) => Err("a panic".into()),
        }
    };
    let thread = thread::Builder::new().stack_size(8 << 20).spawn(work).expect("a thread");
    let result = thread.join().unwrap_or_else(|_| Err("the simulation has panicked at its end".into()));
    result.map_err(|why| Failure { seed, why })
}

async fn run_in_runtime(seed: u64, options: &Options) -> Result<Report, String> {
    let simulation = Simulation::new(seed, options.prints);
    let network = Network::new(simulation.clone());
    let start = NameNodes::start_group(simulation.clone(), network);
    let all = timeout(LIVENESS, start).await.map_err(|_| "the group does not start")?;
    simulation.forget_counts();
    all.network.allow_faults();
    let nodes = DataNodes::start(all.clone(), DATANODES);
    let stops = Arc::new(AtomicBool::new(false));
    let (mut on_names, mut on_files) = (JoinSet::new(), JoinSet::new());
    for number in 0..CLIENTS + WRITERS {
        let client = Client { number, namenodes: all.clone(), stops: stops.clone() };
        if number < CLIENTS {
            on_names.spawn(client.run_on_names());
        } else {
            on_files.spawn(client.run_on_files(nodes.clone()));
        }
    }
    let faults = Faults::new(all.clone(), nodes.clone());
    let end = simulation.elapsed() + options.faults;
    tokio::select! {
        biased;
        why = watch(&all, &nodes) => return Err(why),
        () = faults.make(end) => {}
    }
    simulation.note("heal", []);
    tokio::select! {
        biased;
        why = watch(&all, &nodes) => return Err(why),
        healed = timeout(LIVENESS, faults.heal()) => {
            healed.map_err(|_| "the members of the group do not run after everything has healed")?;
        }
    }
    stops.store(true, Ordering::Relaxed);
    let ending = async {
        let mut history = Vec::new();
        while let Some(calls) = on_names.join_next().await {
            history.extend(calls.map_err(|panic| panic.to_string())?);
        }
        let mut files = Vec::new();
        while let Some(closed) = on_files.join_next().await {
            files.extend(closed.map_err(|panic| panic.to_string())?);
        }
        Ok::<_, String>((history, files))
    };
    let checking = async {
        let ended = timeout(LIVENESS, ending).await;
        let (history, files) = ended.map_err(|_| "operations do not end after everything has healed")??;
        wait_until(|| all.difference()).await?;
        wait_until(|| check_files(&all, &nodes, &files)).await?;
        Ok((history, files))
    };
    let (history, files) = tokio::select! {
        biased;
        why = watch(&all, &nodes) => Err(why),
        () = faults.keep_running() => Err("it never ends".into()),
        checked = checking => checked,
    }?;
    all.check()?;
    let calls = history.len() as u64;
    check_linearizable(history)?;
    let (trace, events, counters) = simulation.result();
    Ok(Report { trace, events, calls, files: files.len() as u64, counters })
}

/// Checks what must be true at any moment, again and again. Returns what is wrong.
async fn watch(all: &NameNodes, nodes: &DataNodes) -> String {
    loop {
        if let Some(why) = nodes.violation().or_else(|| all.check().err()) {
            return why;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until nothing is wrong. An error is what still is after [`LIVENESS`].
async fn wait_until(wrong: impl Fn() -> Option<String>) -> Result<(), String> {
    let waiting = async {
        while wrong().is_some() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = timeout(LIVENESS, waiting).await;
    waited.map_err(|_| format!("{LIVENESS:?} after everything has healed: {}", wrong().unwrap_or_default()))
}

/// Returns why a file is not as its writer has left it, or why its block has not the wanted replicas on
/// the DataNodes; `None` if all NameNodes know all of that.
fn check_files(all: &NameNodes, nodes: &DataNodes, files: &[ClosedFile]) -> Option<String> {
    all.all().iter().find_map(|running| {
        running.driver.read(|state| files.iter().find_map(|file| check_file(state, nodes, file)))
    })
}

fn check_file(state: &State, nodes: &DataNodes, file: &ClosedFile) -> Option<String> {
    let ClosedFile { path, block, nonce, length, replication, is_deleted } = file;
    let parsed = DfsPath::parse(path).expect("it was parsed before");
    let located = match state.locate(&parsed, 0, u64::MAX, "") {
        Ok((_, located)) => located,
        Err(_) if *is_deleted => return None,
        Err(error) => return Some(format!("a closed file is lost: {error}")),
    };
    if *is_deleted {
        return Some(format!("{path}: it was deleted and exists"));
    }
    let stored = nodes.replicas(*block, *nonce, *length);
    let known = match &located[..] {
        [only] if only.block == *block => only.nodes.len(),
        _ => return Some(format!("{path}: other blocks than {block}: {located:?}")),
    };
    let wanted = *replication as usize;
    (stored.len() != wanted || known != wanted).then(|| {
        format!("{path}: {block} has {} replicas, of which {known} are known, and not {wanted}", stored.len())
    })
}
