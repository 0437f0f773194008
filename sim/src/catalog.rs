//! Finds a workload by name or file, together with the default cluster of the workload.

pub use crate::case_size::{CaseSize, TraceScale};
use crate::{
    Setup, Workload,
    cluster_file::{ClusterFile, MACHINES_MAX, SLOTS_MAX},
    clusters,
    experiment::Variant,
    profile::{self, ProfileError, Profiles},
    repro::laptop,
    scenario::{self, Scenario, ScenarioFileError},
    setup::Machine,
    trial,
    workload::{
        JobPlan, coshh, history, papers, rumen, swim,
        synthetic::{self, Arrivals},
        trace::{TraceError, check_time_range},
    },
};
use mrcore::{PerPhase, Phase, metrics::shares::MinShare};
use schedulers::Params;
use std::{
    collections::BTreeSet,
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// Names and descriptions of the built-in workloads.
pub const WORKLOADS: [(&str, &str); 12] = [
    ("hsrtf", "the 31 jobs of the hSRTF paper, on 58 nodes"),
    ("chronos-wordcount", "the two wordcount jobs of the Chronos paper, on 8 nodes"),
    ("chronos-sort", "the two sort jobs of the Chronos paper, on 8 nodes"),
    ("fcs-map-heavy", "the map-heavy jobs of the FCS paper (table 1), on 45 nodes"),
    ("fcs-reduce-heavy", "the reduce-heavy jobs of the FCS paper (table 3), on 45 nodes"),
    ("coshh-facebook", "the Facebook job classes of the COSHH paper, on six unequal resources"),
    ("coshh-yahoo", "the Yahoo! job classes of the COSHH paper, on six unequal resources"),
    ("gridmix", "small, medium and large GridMix-like jobs, Poisson arrivals"),
    ("bursty", "GridMix-like jobs in bursts of ten"),
    ("mixed", "wordcount, grep and sort with heavy-tailed sizes"),
    (LAPTOP_HSRTF, "jobs like those of the hSRTF paper, for eight nodes on one machine"),
    (LAPTOP_FCS, "reduce-heavy jobs like those of the FCS paper, for eight nodes on one machine"),
];

const LAPTOP_HSRTF: &str = "laptop-hsrtf";
const LAPTOP_FCS: &str = "laptop-fcs";
/// Names of the workloads that can also run on a real cluster of eight nodes on one machine.
pub const REAL_WORKLOADS: [&str; 2] = [LAPTOP_HSRTF, LAPTOP_FCS];

/// The offered load of the workload `mixed`.
const MIXED_LOAD: f64 = 0.8;

/// Options of a simulation, as given on the command line.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// A name of [`WORKLOADS`], or a file: `.tsv` (SWIM), `.json` (Rumen), `.jsonl` or a folder
    /// (job histories). Files may be compressed (`.gz`).
    pub workload: String,
    /// File that describes the machines.
    pub cluster: Option<PathBuf>,
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Map slots per node.
    pub map_slots: Option<u32>,
    /// Reduce slots per node.
    pub reduce_slots: Option<u32>,
    /// Number of jobs, for generated workloads.
    pub jobs: Option<u32>,
    /// Mean seconds between submissions, for generated workloads.
    pub gap_s: Option<f64>,
    /// Factor by which the bytes of a SWIM trace are multiplied.
    pub scale: Option<f64>,
    /// Number of nodes of the cluster that a SWIM trace was recorded on.
    pub trace_nodes: Option<u32>,
    /// Offered load of the busier phase. The times between submissions are changed to reach it.
    pub load: Option<f64>,
    /// File with profiles of programs.
    pub profiles: Option<PathBuf>,
    /// Scenario file with faults.
    pub faults: Option<PathBuf>,
}

impl Request {
    /// Returns the files that the request names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let workload = Some(Path::new(&self.workload)).filter(|_| !is_built_in(&self.workload));
        let others = [&self.cluster, &self.profiles, &self.faults];
        workload.into_iter().chain(others.into_iter().flatten().map(PathBuf::as_path))
    }
}

/// What differs between the seeds of a workload, besides the places of blocks and random failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeedEffect {
    /// The jobs or their submission times.
    Jobs,
    /// The tasks, of the same jobs with the same submission times.
    Tasks,
    /// Nothing.
    Nothing,
}

impl SeedEffect {
    /// Returns a warning that intervals over seeds do not include all variation.
    pub fn warning(self, workload: &str) -> Option<String> {
        let reason = if is_built_in(workload) {
            "its jobs are fixed"
        } else {
            "it has too few jobs, or too little time between them, to be resampled"
        };
        match self {
            Self::Jobs => None,
            Self::Tasks => Some(format!(
                "{workload}: seeds change only the durations of tasks and where blocks are placed: {reason}, so intervals do not include the variation of jobs and arrivals"
            )),
            Self::Nothing => Some(format!(
                "{workload}: seeds change only where blocks are placed: {reason}, so intervals are too narrow"
            )),
        }
    }
}

/// Why a workload cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error(
        "unknown workload {name:?}: give a file (.tsv, .json, .jsonl, or a folder of histories) or one of {}",
        names()
    )]
    Unknown { name: String },
    #[error("{path}: there is no such file or folder")]
    NoFile { path: String },
    #[error(
        "{path}: unknown kind of workload: the name must end in .tsv (SWIM), .json (Rumen) or .jsonl (job history), each also with .gz"
    )]
    Kind { path: String },
    #[error("{workload} takes no --{flag}: {why}")]
    NoUse { workload: String, flag: &'static str, why: &'static str },
    #[error("{file}: {why}")]
    File { file: String, why: String },
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("{path}:{bad}")]
    Profiles { path: String, bad: ProfileError },
    #[error("{path}: it has {given}, but {workload} uses only {used}: give profiles with these names")]
    UnusedProfiles { path: String, given: String, workload: String, used: String },
    #[error("{path}:{bad}")]
    Scenario { path: String, bad: ScenarioFileError },
    #[error("{path}:{bad}")]
    Cluster { path: String, bad: String },
    #[error(
        "no machine has a {phase} slot, but the job {job} has {tasks}: set {} to at least 1",
        slots_option(*phase, cluster.as_deref())
    )]
    NoSlots { phase: Phase, job: String, tasks: String, cluster: Option<PathBuf> },
    #[error("--load {load}: {why}")]
    Load { load: f64, why: &'static str },
    #[error("give either --{one} or --{other}")]
    Both { one: &'static str, other: &'static str },
    #[error("--{flag} {value} is not valid: it must be {wanted}")]
    Number { flag: &'static str, value: String, wanted: &'static str },
}

fn names() -> String {
    WORKLOADS.map(|(name, _)| name).join(", ")
}

/// Returns what sets the slots of a phase on each machine: an option or a key of the cluster file.
fn slots_option(phase: Phase, cluster: Option<&Path>) -> String {
    match cluster {
        Some(file) => format!("{phase}_slots in {}", file.display()),
        None => format!("--{phase}-slots"),
    }
}

/// A cluster and its workload.
pub struct Case {
    /// The simulated cluster.
    pub setup: Setup,
    /// Generates the jobs for a seed.
    pub workload: Box<dyn Fn(u64) -> Workload + Sync>,
    /// Users and their minimum shares.
    pub users: Vec<(String, MinShare)>,
    /// Policy parameters with the minimum shares and weights of the users, and the durations of tasks
    /// that `coshh` is given. Parameters of a variant override them.
    pub params: Params,
    /// Whether the jobs of a group are identical. If so, their slowdowns are relative to the run
    /// time of one of them alone on the cluster.
    pub groups_identical: bool,
    /// What the user should know about the file of the workload: jobs that were skipped, and what was
    /// guessed.
    pub notes: Vec<String>,
    /// How the bytes of a SWIM trace were scaled.
    pub scale: Option<TraceScale>,
}

impl Case {
    /// Returns the size with this seed.
    pub fn size(&self, seed: u64) -> CaseSize {
        CaseSize { scale: self.scale, ..CaseSize::of(&self.setup, &(self.workload)(seed)) }
    }

    /// Returns what differs between the first two seeds.
    pub fn seed_effect(&self) -> SeedEffect {
        let [one, other] = [1, 2].map(|seed| (self.workload)(seed).jobs);
        let both = || one.iter().zip(&other);
        let sizes = |job: &JobPlan| (job.at, job.maps.len(), job.reduces.len());
        if one.len() != other.len() || both().any(|(one, other)| sizes(one) != sizes(other)) {
            SeedEffect::Jobs
        } else if both().any(|(one, other)| !one.is_repeated_by(other)) {
            SeedEffect::Tasks
        } else {
            SeedEffect::Nothing
        }
    }
}

impl CaseSize {
    /// Returns one line with the cluster, the number of jobs and tasks, and the source of task
    /// times.
    pub fn describe(&self, request: &Request, seeds: u64) -> String {
        let profiles = match &request.profiles {
            Some(path) => format!(", profiles of {}", path.display()),
            None if uses_profiles(&request.workload) => ", built-in profiles".to_owned(),
            None => String::new(),
        };
        format!(
            "simulated: {} on {self}, {}{}{profiles}",
            request.workload,
            crate::count(seeds as usize, "seed"),
            if seeds > 1 { " (jobs, tasks and load are those of the first)" } else { "" },
        )
    }
}

/// Returns the built-in profiles. Profiles in the file `path`, if any, override them.
pub fn profiles(path: Option<&Path>) -> Result<Profiles, CatalogError> {
    let mut profiles = profile::built_in();
    if let Some(path) = path {
        profiles.extend(read_profiles(path)?);
    }
    Ok(profiles)
}

fn read_profiles(path: &Path) -> Result<Profiles, CatalogError> {
    let bad = |bad| CatalogError::Profiles { path: path.display().to_string(), bad };
    profile::parse(&read_text("--profiles", path)?).map_err(bad)
}

/// Checks that at least one of these workloads uses a profile of a file. `user` names them in the
/// error.
pub fn check_profiles(path: &Path, user: &str, workloads: &[&str]) -> Result<(), CatalogError> {
    let given = read_profiles(path)?;
    let used: BTreeSet<&str> =
        workloads.iter().flat_map(|workload| profiles_used(workload)).copied().collect();
    if given.keys().any(|name| used.contains(name.as_str())) {
        return Ok(());
    }
    let names: Vec<&str> = given.keys().map(String::as_str).collect();
    let given =
        if names.is_empty() { "no profiles".to_owned() } else { format!("only {}", names.join(", ")) };
    let (path, workload) = (path.display().to_string(), user.to_owned());
    let used = used.into_iter().collect::<Vec<_>>().join(", ");
    Err(CatalogError::UnusedProfiles { path, given, workload, used })
}

/// Reads the text file that a flag names; an empty flag is an argument.
fn read_text(flag: &str, path: &Path) -> Result<String, CatalogError> {
    let bad = |why: &str| {
        let file = format!("{flag} {}", path.display()).trim_start().to_owned();
        CatalogError::File { file, why: why.to_owned() }
    };
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(bad("there is no such file")),
        _ if path.is_dir() => Err(bad("this is a folder: give a file")),
        read => read.map_err(|error| bad(&error.to_string())),
    }
}

/// Checks that each job can run: that a phase in which it has tasks has slots.
fn check_slots(case: &Case, cluster: Option<&Path>) -> Result<(), CatalogError> {
    let slots = case.setup.slots();
    let Some(phase) = Phase::BOTH.into_iter().find(|phase| slots[*phase] == 0) else { return Ok(()) };
    let tasks = |job: &JobPlan| if phase == Phase::Map { job.maps.len() } else { job.reduces.len() };
    match (case.workload)(1).jobs.iter().find(|job| tasks(job) > 0) {
        Some(job) => {
            let tasks = crate::count(tasks(job), &phase.to_string());
            let cluster = cluster.map(Path::to_path_buf);
            Err(CatalogError::NoSlots { phase, job: job.name.clone(), tasks, cluster })
        }
        None => Ok(()),
    }
}

/// Checks that the times between submissions can be changed to reach a load.
fn check_load(load: f64, workload: &Workload, setup: &Setup) -> Result<(), CatalogError> {
    let refuse = |why| Err(CatalogError::Load { load, why });
    let Some(offered) = workload.offered_load(setup) else { return refuse("all jobs arrive at once") };
    let factor = offered.map.max(offered.reduce) / load;
    if factor.is_infinite() {
        return refuse("the cluster has no slots for some of the tasks");
    }
    let last_s = workload.jobs.last().map_or(0.0, |job| job.at.as_secs_f64());
    if check_time_range(last_s * factor).is_err() {
        return refuse("jobs would arrive over more than ten years");
    }
    Ok(())
}

fn read_cluster(path: &Path) -> Result<ClusterFile, CatalogError> {
    let bad = |bad| CatalogError::Cluster { path: path.display().to_string(), bad };
    ClusterFile::parse(&read_text("--cluster", path)?).map_err(bad)
}

/// Reads the scenario file that a flag names; an empty flag is an argument.
pub fn read_scenario(flag: &str, path: &Path) -> Result<Scenario, CatalogError> {
    let bad = |bad| CatalogError::Scenario { path: path.display().to_string(), bad };
    let scenario = scenario::parse(&read_text(flag, path)?).map_err(bad)?;
    if scenario.steps.is_empty() && scenario.faults.is_empty() {
        let what = "the file has no [[step]] and no [[fault]], so nothing would happen: add one".into();
        return Err(bad(ScenarioFileError { line: 1, what }));
    }
    Ok(scenario)
}

fn uniform_cluster(nodes: u32, map: u32, reduce: u32) -> Setup {
    Setup::even(nodes, PerPhase { map, reduce }, "fifo")
}

/// Opens the requested workload.
pub fn open(request: &Request) -> Result<Case, CatalogError> {
    check_request(request)?;
    let cluster = request.cluster.as_deref().map(read_cluster).transpose()?;
    let machines = cluster.as_ref().map(|cluster| cluster.machines().len() as u32);
    let request = &Request { nodes: machines.or(request.nodes), ..request.clone() };
    let profiles = profiles(request.profiles.as_deref())?;
    request
        .profiles
        .as_deref()
        .map_or(Ok(()), |path| check_profiles(path, &request.workload, &[&request.workload]))?;
    let mut case = match built_in_case(request, profiles) {
        Some(case) => case,
        None => from_file(request, cluster.as_ref().map(ClusterFile::reduce_slots))?,
    };
    if let Some(nodes) = request.nodes
        && nodes as usize != case.setup.machines.len()
    {
        let usual = case.setup.machines[0].clone();
        let machines = if coshh_classes(&request.workload).is_some() {
            clusters::coshh(nodes).machines
        } else {
            let even = Setup::even(nodes, usual.slots, "fifo").machines;
            even.into_iter().map(|machine| Machine { rack: machine.rack, ..usual.clone() }).collect()
        };
        case.setup.machines = machines;
    }
    for machine in &mut case.setup.machines {
        machine.slots.map = request.map_slots.unwrap_or(machine.slots.map);
        machine.slots.reduce = request.reduce_slots.unwrap_or(machine.slots.reduce);
    }
    if let Some(cluster) = cluster {
        cluster.apply(&mut case.setup);
    }
    // The paper assumes that the durations of tasks are known.
    if let Some(classes) = coshh_classes(&request.workload) {
        case.params.extend(coshh::given_durations(classes, &case.setup.machines));
    }
    check_slots(&case, request.cluster.as_deref())?;
    // With the default gap, `mixed` would leave most slots free, and all policies would be equal.
    let usual_load = (request.workload == "mixed" && request.gap_s.is_none()).then_some(MIXED_LOAD);
    if let Some(load) = request.load {
        check_load(load, &(case.workload)(1), &case.setup)?;
    }
    if let Some(load) = request.load.or(usual_load) {
        let (workload, setup) = (case.workload, case.setup.clone());
        case.workload = Box::new(move |seed| workload(seed).with_load(load, &setup));
    }
    if let Some(path) = &request.faults {
        let scenario = read_scenario("--faults", path)?;
        let bad = |bad| CatalogError::Scenario { path: path.display().to_string(), bad };
        let racks: Vec<u32> = case.setup.machines.iter().map(|machine| machine.rack).collect();
        scenario.validate(&racks, (case.workload)(1).jobs.len()).map_err(bad)?;
        (case.setup.steps, case.setup.faults) = (scenario.steps, scenario.faults);
    }
    Ok(case)
}

/// Maximum offered load. All jobs of a trace arrive within seconds far below it.
const LOAD_MAX: f64 = 1000.0;

/// Maximum number of jobs of a generated workload.
const JOBS_MAX: u32 = 100_000;

/// Checks that the numeric options are in their range and that all options apply to the workload.
fn check_request(request: &Request) -> Result<(), CatalogError> {
    let whole = [
        ("nodes", request.nodes),
        ("map-slots", request.map_slots),
        ("jobs", request.jobs),
        ("trace-nodes", request.trace_nodes),
    ];
    for (flag, value) in whole {
        if value == Some(0) {
            return Err(CatalogError::Number { flag, value: "0".into(), wanted: "at least 1" });
        }
    }
    let most = [
        ("nodes", request.nodes, MACHINES_MAX, "at most 100000"),
        ("jobs", request.jobs, JOBS_MAX, "at most 100000"),
        ("map-slots", request.map_slots, SLOTS_MAX, "at most 10000"),
        ("reduce-slots", request.reduce_slots, SLOTS_MAX, "at most 10000"),
    ];
    for (flag, value, max, wanted) in most {
        if let Some(value) = value.filter(|value| *value > max) {
            return Err(CatalogError::Number { flag, value: value.to_string(), wanted });
        }
    }
    let above = [("gap", request.gap_s), ("scale", request.scale), ("load", request.load)];
    for (flag, value) in above {
        if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
            let wanted = if value > 0.0 { "smaller" } else { "above 0" };
            return Err(CatalogError::Number { flag, value: value.to_string(), wanted });
        }
    }
    if let Some(load) = request.load.filter(|load| *load > LOAD_MAX) {
        let wanted = "at most 1000, where 1 is all slots of the busier phase";
        return Err(CatalogError::Number { flag: "load", value: load.to_string(), wanted });
    }
    let jobs = f64::from(request.jobs.unwrap_or(1));
    if let Some(gap_s) = request.gap_s.filter(|gap_s| check_time_range(gap_s * jobs).is_err()) {
        let wanted = "short enough that all jobs arrive within ten years";
        return Err(CatalogError::Number { flag: "gap", value: gap_s.to_string(), wanted });
    }
    check_options_apply(request)
}

/// Returns whether there is a built-in workload with this name.
fn is_built_in(workload: &str) -> bool {
    WORKLOADS.iter().any(|(known, _)| *known == workload)
}

/// Returns whether the durations of the tasks of a workload follow from the profiles of programs.
fn uses_profiles(workload: &str) -> bool {
    !profiles_used(workload).is_empty()
}

/// Returns the names of the profiles that the durations of the tasks of a workload follow from.
fn profiles_used(workload: &str) -> &'static [&'static str] {
    match workload {
        "hsrtf" => &["hsrtf-sort", "hsrtf-wordcount"],
        "chronos-wordcount" => &["chronos-wordcount"],
        "chronos-sort" => &["chronos-sort"],
        "fcs-map-heavy" => &["fcs-invertedindex", "fcs-kmeans", "fcs-termvector", "fcs-wordcount"],
        "fcs-reduce-heavy" => &["fcs-rankinvertedidx", "fcs-selfjoin", "fcs-sequencecount", "fcs-terasort"],
        "gridmix" | "bursty" => &["fcs-invertedindex", "fcs-selfjoin", "fcs-terasort", "fcs-wordcount"],
        "mixed" => &["grep", "sort", "wordcount"],
        _ => &[],
    }
}

/// Returns an error for an option that does not apply to the workload, or for two options that
/// contradict each other.
fn check_options_apply(request: &Request) -> Result<(), CatalogError> {
    let sizes = [
        ("nodes", request.nodes.is_some()),
        ("map-slots", request.map_slots.is_some()),
        ("reduce-slots", request.reduce_slots.is_some()),
    ];
    if let Some((other, _)) = sizes.into_iter().find(|(_, given)| *given && request.cluster.is_some()) {
        return Err(CatalogError::Both { one: "cluster", other });
    }
    if request.gap_s.is_some() && request.load.is_some() {
        return Err(CatalogError::Both { one: "gap", other: "load" });
    }
    if request.scale.is_some() && request.trace_nodes.is_some() {
        return Err(CatalogError::Both { one: "scale", other: "trace-nodes" });
    }
    let name = request.workload.as_str();
    let is_named = is_built_in(name);
    let plain = Path::new(name.strip_suffix(".gz").unwrap_or(name));
    let is_swim = !is_named && plain.extension().is_some_and(|extension| extension == "tsv");
    let is_generated = is_named
        && !matches!(name, "hsrtf" | "chronos-wordcount" | "chronos-sort")
        && !REAL_WORKLOADS.contains(&name);
    let used = [
        ("jobs", request.jobs.is_some(), is_generated, "its jobs are fixed"),
        ("gap", request.gap_s.is_some(), is_generated, "its submission times are fixed"),
        ("load", request.load.is_some(), is_generated || !is_named, "its submission times are fixed"),
        ("scale", request.scale.is_some(), is_swim, "only SWIM traces can be scaled"),
        ("trace-nodes", request.trace_nodes.is_some(), is_swim, "only SWIM traces are scaled by nodes"),
        ("profiles", request.profiles.is_some(), uses_profiles(name), "the durations of its tasks are fixed"),
    ];
    match used.iter().find(|(_, given, takes, _)| *given && !takes) {
        Some((flag, .., why)) => Err(CatalogError::NoUse { workload: name.to_owned(), flag, why }),
        None => Ok(()),
    }
}

/// Returns the classes of jobs of a workload of the COSHH paper; `None` for another workload.
fn coshh_classes(workload: &str) -> Option<&'static [coshh::Class]> {
    match workload {
        "coshh-facebook" => Some(&coshh::FACEBOOK),
        "coshh-yahoo" => Some(&coshh::YAHOO),
        _ => None,
    }
}

/// Returns the built-in workload with the requested name; `None` if there is none.
fn built_in_case(request: &Request, profiles: Profiles) -> Option<Case> {
    let jobs = request.jobs.unwrap_or(100);
    let gap_s = request.gap_s.unwrap_or(10.0);
    let mut users = Vec::new();
    let (setup, workload): (Setup, Box<dyn Fn(u64) -> Workload + Sync>) = match request.workload.as_str() {
        "hsrtf" => (clusters::hsrtf(), Box::new(move |seed| papers::hsrtf(&profiles, seed))),
        "chronos-wordcount" | "chronos-sort" => {
            let program = request.workload["chronos-".len()..].to_owned();
            (clusters::chronos(), Box::new(move |seed| papers::chronos(&profiles, &program, seed)))
        }
        "fcs-map-heavy" | "fcs-reduce-heavy" => {
            let map_heavy = request.workload == "fcs-map-heavy";
            let kinds = if map_heavy { papers::FCS_MAP_HEAVY } else { papers::FCS_REDUCE_HEAVY };
            let (jobs, gap_s) = (request.jobs.unwrap_or(171), request.gap_s.unwrap_or(30.0));
            (clusters::fcs(), Box::new(move |seed| papers::fcs(&profiles, &kinds, gap_s, jobs, seed)))
        }
        "coshh-facebook" | "coshh-yahoo" => {
            let classes = coshh_classes(&request.workload)?;
            users = coshh::min_shares(classes, false);
            let gap_s = request.gap_s.unwrap_or(60.0);
            let work = move |seed| coshh::workload("coshh", classes, jobs, gap_s, seed);
            (clusters::coshh(6), Box::new(work))
        }
        "gridmix" | "bursty" => {
            let arrivals = if request.workload == "bursty" { Arrivals::Bursty } else { Arrivals::Poisson };
            (
                uniform_cluster(20, 8, 4),
                Box::new(move |seed| synthetic::gridmix(&profiles, arrivals, jobs, gap_s, seed)),
            )
        }
        "mixed" => {
            let work = move |seed| synthetic::mixed(&profiles, Arrivals::Poisson, jobs, gap_s, seed);
            (uniform_cluster(8, 2, 1), Box::new(work))
        }
        LAPTOP_HSRTF => (trial::setup(&Variant::plain("fifo")), Box::new(|_| laptop::hsrtf_workload())),
        LAPTOP_FCS => (trial::setup(&Variant::plain("fifo")), Box::new(laptop::fcs_workload)),
        _ => return None,
    };
    let groups_identical = !matches!(request.workload.as_str(), "mixed");
    let mut params = clusters::share_params(&users);
    if REAL_WORKLOADS.contains(&request.workload.as_str()) {
        params = trial::short_waits();
    }
    Some(Case { setup, workload, users, params, groups_identical, notes: Vec::new(), scale: None })
}

/// Opens the workload in a file. `reduce_slots` is the number of reduce slots of the cluster file.
fn from_file(request: &Request, reduce_slots: Option<u32>) -> Result<Case, CatalogError> {
    let path = Path::new(&request.workload);
    if !path.exists() {
        let name = request.workload.clone();
        let is_file = name.contains(['.', '/']);
        return Err(if is_file {
            CatalogError::NoFile { path: name }
        } else {
            CatalogError::Unknown { name }
        });
    }
    let (mut notes, mut scale) = (Vec::new(), None);
    let name = request.workload.strip_suffix(".gz").unwrap_or(&request.workload);
    let kind = Path::new(name).extension().unwrap_or_default().to_string_lossy();
    let nodes = request.nodes;
    let is_swim = kind == "tsv";
    let (setup, workload) = if is_swim {
        let trace_nodes = request.trace_nodes.unwrap_or_else(|| swim::nodes_of(path));
        let nodes = nodes.unwrap_or(trace_nodes);
        let setup = uniform_cluster(nodes, 4, 2);
        let bytes = request.scale.unwrap_or(f64::from(nodes) / f64::from(trace_nodes));
        scale = Some(TraceScale {
            factor: bytes,
            trace_nodes: request.scale.is_none().then_some(trace_nodes),
            trace_nodes_guessed: request.scale.is_none() && request.trace_nodes.is_none(),
        });
        let flag = request.reduce_slots.map(|slots| slots.saturating_mul(nodes));
        let reduces_max = reduce_slots.or(flag).unwrap_or(setup.slots().reduce);
        let scaling = swim::Scaling { bytes, block: 128 << 20, reduces_max };
        (setup, swim::read(path, scaling)?)
    } else if kind == "json" {
        let rumen::Trace { workload, hosts, without_tasks } = rumen::read(path)?;
        if !without_tasks.is_empty() {
            let count = without_tasks.len();
            notes.push(format!(
                "skipped {count} jobs of the trace that have no tasks: {}",
                without_tasks.join(", ")
            ));
        }
        (uniform_cluster(nodes.unwrap_or((hosts as u32).clamp(4, 600)), 4, 2), workload)
    } else if kind == "jsonl" || path.is_dir() {
        let history = history::read(path)?;
        let machines = crate::replay::machines(&history, PerPhase::default(), 0);
        let setup = Setup { machines, ..Setup::even(1, history.slots, "fifo") };
        notes.extend(history::skipped_jobs(&history.skipped_jobs));
        notes.extend(history.guessed_cluster());
        (setup, history.succeeded().0)
    } else {
        return Err(CatalogError::Kind { path: request.workload.clone() });
    };
    if workload.jobs.is_empty() {
        return Err(TraceError::Empty { path: request.workload.clone() }.into());
    }
    let (users, params) = (Vec::new(), Params::new());
    let workload = Box::new(move |seed| {
        let sample = workload.clone().resampled(seed);
        if is_swim { sample.with_random_users(seed) } else { sample }
    });
    Ok(Case { setup, workload, users, params, groups_identical: false, notes, scale })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(workload: &str) -> Request {
        Request { workload: workload.into(), ..Request::default() }
    }

    #[test]
    fn every_workload_opens_and_unknown_names_or_options_are_refused() {
        for (name, _) in WORKLOADS {
            let case = open(&request(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!(case.workload)(1).jobs.is_empty());
        }
        let refused = |request: &Request| {
            open(request).map(|_| ()).expect_err("the request must be refused").to_string()
        };
        assert!(refused(&request("fsc")).contains("fcs-map-heavy"));
        assert_eq!(refused(&request("fsc.tsv")), "fsc.tsv: there is no such file or folder");
        let asked = Request { jobs: Some(5), ..request("hsrtf") };
        assert_eq!(refused(&asked), "hsrtf takes no --jobs: its jobs are fixed");
        let asked = Request { jobs: Some(99_999_999), ..request("gridmix") };
        assert!(refused(&asked).contains("99999999"), "{}", refused(&asked));
        let asked = Request { jobs: Some(5), gap_s: Some(1e30), ..request("gridmix") };
        assert!(refused(&asked).contains("within ten years"), "{}", refused(&asked));
        let asked = Request { scale: Some(3.0), ..request("gridmix") };
        assert!(refused(&asked).starts_with("gridmix takes no --scale"));
        for fixed in ["coshh-yahoo", "trace.tsv"].into_iter().chain(REAL_WORKLOADS) {
            let asked = Request { profiles: Some("mine.toml".into()), ..request(fixed) };
            let wanted = format!("{fixed} takes no --profiles: the durations of its tasks are fixed");
            assert_eq!(refused(&asked), wanted);
        }
    }

    #[test]
    fn a_profile_changes_exactly_the_workloads_that_use_it() {
        for (name, _) in WORKLOADS {
            let jobs = |profiles: Profiles| {
                let case = built_in_case(&request(name), profiles).expect("a built-in name");
                (case.workload)(1).jobs
            };
            let usual = jobs(profile::built_in());
            for program in profile::built_in().keys() {
                let mut profiles = profile::built_in();
                profiles.get_mut(program).expect("a built-in profile").map_mbps *= 2.0;
                let uses = profiles_used(name).contains(&program.as_str());
                assert_eq!(jobs(profiles) != usual, uses, "{program} in {name}");
            }
        }
    }

    #[test]
    fn profiles_that_the_workload_does_not_use_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mine.toml");
        let asked = |workload| Request { profiles: Some(path.clone()), ..request(workload) };
        let refused =
            |workload| open(&asked(workload)).map(|_| ()).expect_err("no profile is used").to_string();
        let own = "[wordcount]\nmap_mbps = 10.0\n[terasort]\nmap_mbps = 10.0\n";
        std::fs::write(&path, own).expect("a disk");
        assert!(open(&asked("mixed")).is_ok(), "one of them is used");
        let error = refused("gridmix");
        assert!(
            error.contains(": it has only terasort, wordcount, but gridmix uses only fcs-inv"),
            "{error}"
        );
        std::fs::write(&path, "").expect("a disk");
        assert!(
            refused("mixed").contains(": it has no profiles, but mixed uses only grep, sort, wordcount:")
        );
    }

    #[test]
    fn warning_says_what_seeds_do_not_change() {
        let effect = |workload: &str| {
            let case = open(&request(workload)).unwrap_or_else(|error| panic!("{workload}: {error}"));
            case.seed_effect()
        };
        let (mut tasks, mut nothing) = (Vec::new(), Vec::new());
        for (name, _) in WORKLOADS {
            match effect(name) {
                SeedEffect::Jobs => assert_eq!(SeedEffect::Jobs.warning(name), None),
                SeedEffect::Tasks => tasks.push(name),
                SeedEffect::Nothing => nothing.push(name),
            }
        }
        assert_eq!(tasks, ["hsrtf", "chronos-wordcount", "chronos-sort"]);
        assert_eq!(nothing, [LAPTOP_HSRTF]);
        let warning = SeedEffect::Nothing.warning(LAPTOP_HSRTF).expect("a warning");
        assert!(warning.ends_with("its jobs are fixed, so intervals are too narrow"), "{warning}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("short.tsv");
        std::fs::write(&path, "job0\t0\t0\t1000\t0\t0\njob1\t5\t5\t1000\t0\t0\n").expect("a disk");
        let path = path.to_str().expect("UTF-8");
        assert_eq!(effect(path), SeedEffect::Nothing, "users differ, but jobs and arrivals do not");
        let warning = SeedEffect::Nothing.warning(path).expect("a warning");
        assert!(warning.contains("too few jobs"), "{warning}");
    }

    #[test]
    fn scenario_without_steps_and_faults_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("faults.toml");
        for text in ["", "# a comment\n", "step = []\n"] {
            std::fs::write(&path, text).expect("a disk");
            let asked = Request { faults: Some(path.clone()), ..request("hsrtf") };
            let error = open(&asked).map(|_| ()).expect_err("nothing would happen").to_string();
            let wanted = format!("{}:1: the file has no [[step]] and no [[fault]]", path.display());
            assert!(error.starts_with(&wanted), "{error}");
        }
    }

    #[test]
    fn files_of_a_request_are_those_that_it_names() {
        let built_in = Request { profiles: Some("p.toml".into()), ..request("hsrtf") };
        assert_eq!(built_in.files().collect::<Vec<_>>(), [Path::new("p.toml")]);
        let files =
            Request { cluster: Some("c.toml".into()), faults: Some("f.toml".into()), ..request("t.tsv") };
        let paths: Vec<&str> = files.files().filter_map(Path::to_str).collect();
        assert_eq!(paths, ["t.tsv", "c.toml", "f.toml"]);
    }

    #[test]
    fn coshh_workloads_give_shares_to_every_policy_and_durations_to_coshh() {
        let asked = Request { nodes: Some(8), ..request("coshh-yahoo") };
        let case = open(&asked).unwrap_or_else(|error| panic!("{error}"));
        let of = |key: &str| case.params.get(key).map(String::as_str);
        for place in ["fair.pools", "fcs.pools", "coda.pools", "coshh.users"] {
            assert_eq!(of(&format!("{place}.U6.min_maps")), Some("9"), "15 of 54 slots: {place}");
        }
        assert!(of("coshh.users.U6.map_time").is_some_and(|time| time.starts_with("138.76")));
        // The eighth machine is of the type of the second.
        assert_eq!((of("coshh.nodes.n6.speed"), of("coshh.nodes.n7.speed")), (Some("0.01"), Some("1")));
        schedulers::make("coshh", &case.params).unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn scale_of_a_trace_and_what_it_follows_from_are_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let open_trace = |name: &str, change: fn(&mut Request)| {
            let path = folder.path().join(name);
            std::fs::write(&path, "job0\t0\t0\t1000\t0\t0\n").expect("a disk");
            let mut asked = request(path.to_str().expect("UTF-8"));
            change(&mut asked);
            let size = open(&asked).unwrap_or_else(|error| panic!("{error}")).size(1);
            (size.scale.expect("it is scaled"), size.describe(&asked, 2))
        };
        let of = |factor, trace_nodes, trace_nodes_guessed| TraceScale {
            factor,
            trace_nodes,
            trace_nodes_guessed,
        };
        let (scale, text) = open_trace("mine.tsv", |asked| asked.nodes = Some(20));
        assert_eq!(scale, of(20.0 / 600.0, Some(600), true));
        let wanted = ", bytes times 0.03333 (the cluster of the trace had 600 nodes, guessed from its name: \
                      --trace-nodes sets it), 2 seeds (jobs, tasks and load are those of the first)";
        assert!(text.ends_with(wanted), "{text}");
        let (scale, _) = open_trace("FB-2010_a.tsv", |asked| asked.nodes = Some(30));
        assert_eq!(scale, of(0.01, Some(3000), true));
        let (scale, text) = open_trace("FB-2010_a.tsv", |asked| {
            (asked.nodes, asked.trace_nodes) = (Some(30), Some(60));
        });
        assert_eq!(scale, of(0.5, Some(60), false));
        assert!(text.contains(", bytes times 0.5 (the cluster of the trace had 60 nodes), "), "{text}");
        let (scale, text) = open_trace("mine.tsv", |asked| asked.scale = Some(3.0));
        assert_eq!(scale, of(3.0, None, false));
        assert!(text.contains(", bytes times 3, "), "{text}");
        let json = serde_json::to_value(open(&request("mixed")).expect("a name").size(1)).expect("numbers");
        assert_eq!(json.get("scale"), None, "other workloads have none");
    }

    #[test]
    fn numeric_options_are_validated_and_used() {
        let asked = Request { nodes: Some(7), map_slots: Some(3), jobs: Some(5), ..request("gridmix") };
        let case = open(&asked).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((case.setup.machines.len(), case.setup.slots().map), (7, 21));
        assert_eq!((case.workload)(1).jobs.len(), 5);
        let words = case.size(1).describe(&asked, 1);
        assert!(
            words.starts_with("simulated: gridmix on 7 nodes with 21 map and 28 reduce slots, 5 jobs, "),
            "{words}"
        );
        assert!(
            words.contains(" tasks, offered load ") && words.ends_with(", 1 seed, built-in profiles"),
            "{words}"
        );
        let loaded = Request { load: Some(0.5), ..asked.clone() };
        let case = open(&loaded).unwrap_or_else(|error| panic!("{error}"));
        let load = (case.workload)(3).offered_load(&case.setup).expect("jobs arrive over time");
        assert!((load.map.max(load.reduce) - 0.5).abs() < 1e-3, "{load:?}");
        let both = Request { gap_s: Some(3.0), ..loaded };
        assert!(open(&both).is_err_and(|error| error.to_string() == "give either --gap or --load"));
        let both = Request { cluster: Some("cluster.toml".into()), ..asked };
        assert!(open(&both).is_err_and(|error| error.to_string() == "give either --cluster or --nodes"));
        assert!(open(&Request { nodes: Some(0), ..request("mixed") }).is_err());
        assert!(open(&Request { gap_s: Some(-1.0), ..request("mixed") }).is_err());
    }

    #[test]
    fn job_without_slots_for_its_tasks_is_refused() {
        let refused = |request: Request| open(&request).map(|_| ()).expect_err("no reduce slots").to_string();
        let error = refused(Request { reduce_slots: Some(0), ..request("chronos-sort") });
        let job = &(open(&request("chronos-sort")).expect("a name").workload)(1).jobs[0];
        let (name, reduces) = (&job.name, job.reduces.len());
        let wanted = format!("no machine has a reduce slot, but the job {name} has {reduces} reduces: set ");
        assert_eq!(error, format!("{wanted}--reduce-slots to at least 1"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let machines = "[[machines]]\ncount = 4\nmap_slots = 1\nreduce_slots = 0\n";
        std::fs::write(path("c.toml"), machines).expect("a disk");
        let cluster = Some(path("c.toml"));
        let error = refused(Request { cluster: cluster.clone(), load: Some(0.5), ..request("gridmix") });
        assert!(error.ends_with(&format!("set reduce_slots in {} to at least 1", path("c.toml").display())));
        let trace = |name: &str, shuffle: u64| {
            let rows = format!("job0\t0\t0\t1000\t{shuffle}\t0\njob1\t5\t5\t1000\t0\t0\n");
            std::fs::write(path(name), rows).expect("a disk");
            Request { cluster: cluster.clone(), ..request(path(name).to_str().expect("UTF-8")) }
        };
        assert!(refused(trace("reduces.tsv", 1000)).contains("but the job job0 has 1 reduce:"));
        assert!(open(&trace("maps.tsv", 0)).is_ok(), "its jobs need no reduce slots");
    }
}
