//! Workloads by name or file, and the cluster that goes with each unless another is asked for.

use crate::{
    Setup, Workload, clusters,
    profile::{self, BadProfiles, Profiles},
    scenario::{self, BadScenario, Scenario},
    workload::{
        coshh, history, papers, rumen, swim,
        synthetic::{self, Arrivals},
        trace::TraceError,
    },
};
use mrcore::{PerPhase, metrics::shares::Promise};
use schedulers::Params;
use std::path::{Path, PathBuf};

/// What can be asked for by name, and what it is.
pub const NAMES: [(&str, &str); 10] = [
    ("hsrtf", "hSRTF's 31 jobs on 58 nodes"),
    ("chronos-wordcount", "Chronos's two jobs on 8 nodes"),
    ("chronos-sort", "the same with sort"),
    ("fcs-map-heavy", "FCS's table 1 on 45 nodes"),
    ("fcs-reduce-heavy", "FCS's table 3 on 45 nodes"),
    ("coshh-facebook", "COSHH's Facebook classes on six unequal resources"),
    ("coshh-yahoo", "COSHH's Yahoo! classes on six unequal resources"),
    ("gridmix", "small, medium and large jobs like GridMix's, Poisson arrivals"),
    ("bursty", "the same, ten at a time"),
    ("mixed", "wordcount, grep and sort with sizes of a heavy tail"),
];

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// A name, or a file: `.tsv` (SWIM), `.json` (Rumen), `.jsonl` or a folder (job history); `.gz` too.
    pub workload: String,
    /// Machines.
    pub nodes: Option<u32>,
    /// Map slots of each.
    pub map_slots: Option<u32>,
    /// Reduce slots of each.
    pub reduce_slots: Option<u32>,
    /// How many jobs, where that can be chosen.
    pub jobs: Option<u32>,
    /// Mean seconds between jobs, where that can be chosen.
    pub gap_s: Option<f64>,
    /// What a trace's bytes are multiplied by.
    pub scale: Option<f64>,
    /// A file of profiles.
    pub profiles: Option<PathBuf>,
    /// A file of faults.
    pub faults: Option<PathBuf>,
}

/// Why it cannot be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CatalogError {
    #[error(
        "there is no workload {name:?}: name a file (.tsv, .json, .jsonl, or a folder of histories) or one of {}",
        names()
    )]
    Unknown { name: String },
    #[error("{path}: {source}")]
    Unreadable { path: String, source: std::io::Error },
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Profiles(#[from] BadProfiles),
    #[error("{path}:{bad}")]
    Scenario { path: String, bad: BadScenario },
    #[error("{what} of {value} makes no sense: it must be {wanted}")]
    Number { what: &'static str, value: String, wanted: &'static str },
}

fn names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

/// A cluster and the jobs that come to it.
pub struct Case {
    /// The cluster.
    pub setup: Setup,
    /// The jobs of a seed.
    pub workload: Box<dyn Fn(u64) -> Workload + Sync>,
    /// Users and what they were promised.
    pub users: Vec<(String, Promise)>,
    /// What policies are told of that, unless they are told otherwise.
    pub params: Params,
    /// Whether jobs of a group are alike, so that one of them alone tells what slowdown is.
    pub groups_alike: bool,
}

/// The profiles that a request names, over the built-in ones.
pub fn profiles(path: Option<&Path>) -> Result<Profiles, CatalogError> {
    let mut profiles = profile::built_in();
    if let Some(path) = path {
        profiles.extend(profile::parse(&text(path)?)?);
    }
    Ok(profiles)
}

fn text(path: &Path) -> Result<String, CatalogError> {
    let unreadable = |source| CatalogError::Unreadable { path: path.display().to_string(), source };
    std::fs::read_to_string(path).map_err(unreadable)
}

/// Reads a scenario file.
pub fn read_scenario(path: &Path) -> Result<Scenario, CatalogError> {
    let bad = |bad| CatalogError::Scenario { path: path.display().to_string(), bad };
    scenario::parse(&text(path)?).map_err(bad)
}

fn even(nodes: u32, map: u32, reduce: u32) -> Setup {
    Setup::even(nodes, PerPhase { map, reduce }, "fifo")
}

/// Finds what is asked for.
pub fn open(request: &Request) -> Result<Case, CatalogError> {
    check(request)?;
    let profiles = profiles(request.profiles.as_deref())?;
    let mut case = match named(request, profiles) {
        Some(case) => case,
        None => from_file(request)?,
    };
    if let Some(nodes) = request.nodes
        && nodes as usize != case.setup.machines.len()
    {
        let slots = case.setup.machines[0].slots;
        let machines = if request.workload.starts_with("coshh") {
            clusters::coshh(nodes).machines
        } else {
            Setup::even(nodes, slots, "fifo").machines
        };
        case.setup.machines = machines;
    }
    for machine in &mut case.setup.machines {
        machine.slots.map = request.map_slots.unwrap_or(machine.slots.map);
        machine.slots.reduce = request.reduce_slots.unwrap_or(machine.slots.reduce);
    }
    if let Some(path) = &request.faults {
        let Scenario { steps, faults } = read_scenario(path)?;
        (case.setup.steps, case.setup.faults) = (steps, faults);
    }
    Ok(case)
}

fn check(request: &Request) -> Result<(), CatalogError> {
    let whole = [
        ("a number of nodes", request.nodes),
        ("a number of map slots", request.map_slots),
        ("a number of jobs", request.jobs),
    ];
    for (what, value) in whole {
        if value == Some(0) {
            return Err(CatalogError::Number { what, value: "0".into(), wanted: "at least 1" });
        }
    }
    for (what, value) in [("a gap", request.gap_s), ("a scale", request.scale)] {
        if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
            return Err(CatalogError::Number { what, value: value.to_string(), wanted: "above 0" });
        }
    }
    Ok(())
}

fn named(request: &Request, profiles: Profiles) -> Option<Case> {
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
            let facebook = request.workload == "coshh-facebook";
            let classes = if facebook { &coshh::FACEBOOK[..] } else { &coshh::YAHOO[..] };
            users = coshh::promises(classes, false);
            let gap_s = request.gap_s.unwrap_or(60.0);
            let work = move |seed| coshh::workload("coshh", classes, jobs, gap_s, seed);
            (clusters::coshh(6), Box::new(work))
        }
        "gridmix" | "bursty" => {
            let arrivals = if request.workload == "bursty" { Arrivals::Bursty } else { Arrivals::Poisson };
            (even(20, 8, 4), Box::new(move |seed| synthetic::gridmix(&profiles, arrivals, jobs, gap_s, seed)))
        }
        "mixed" => {
            let work = move |seed| synthetic::mixed(&profiles, Arrivals::Poisson, jobs, gap_s, seed);
            (even(8, 2, 1), Box::new(work))
        }
        _ => return None,
    };
    let groups_alike = !matches!(request.workload.as_str(), "mixed");
    let params = clusters::told(&users);
    Some(Case { setup, workload, users, params, groups_alike })
}

fn from_file(request: &Request) -> Result<Case, CatalogError> {
    let path = Path::new(&request.workload);
    if !path.exists() {
        return Err(CatalogError::Unknown { name: request.workload.clone() });
    }
    let name = request.workload.strip_suffix(".gz").unwrap_or(&request.workload);
    let kind = Path::new(name).extension().unwrap_or_default().to_string_lossy();
    let nodes = request.nodes;
    let (setup, workload) = if kind == "tsv" {
        let nodes = nodes.unwrap_or(600);
        let setup = even(nodes, 4, 2);
        let bytes = request.scale.unwrap_or(f64::from(nodes) / 600.0);
        let scaling = swim::Scaling { bytes, block: 128 << 20, reduces_max: setup.slots().reduce };
        (setup, swim::read(path, scaling)?)
    } else if kind == "json" {
        let (workload, hosts) = rumen::read(path)?;
        (even(nodes.unwrap_or((hosts as u32).clamp(4, 600)), 4, 2), workload)
    } else if kind == "jsonl" || path.is_dir() {
        let history = history::read(path)?;
        let setup = Setup::even(history.trackers.len().max(1) as u32, history.slots, "fifo");
        (setup, history.workload)
    } else {
        return Err(CatalogError::Unknown { name: request.workload.clone() });
    };
    let (users, params) = (Vec::new(), Params::new());
    Ok(Case { setup, workload: Box::new(move |_| workload.clone()), users, params, groups_alike: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(workload: &str) -> Request {
        Request { workload: workload.into(), ..Request::default() }
    }

    #[test]
    fn every_name_is_there_and_others_are_told_of() {
        for (name, _) in NAMES {
            let case = open(&request(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!(case.workload)(1).jobs.is_empty());
        }
        let error = open(&request("fsc")).map(|_| ()).expect_err("no such thing").to_string();
        assert!(error.contains("fcs-map-heavy"), "{error}");
    }

    #[test]
    fn numbers_are_checked_and_taken() {
        let asked = Request { nodes: Some(7), map_slots: Some(3), jobs: Some(5), ..request("gridmix") };
        let case = open(&asked).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((case.setup.machines.len(), case.setup.slots().map), (7, 21));
        assert_eq!((case.workload)(1).jobs.len(), 5);
        assert!(open(&Request { nodes: Some(0), ..request("mixed") }).is_err());
        assert!(open(&Request { gap_s: Some(-1.0), ..request("mixed") }).is_err());
    }
}
