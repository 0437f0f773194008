//! Measures how fast the simulator is: CPU seconds of single runs under each policy.
//!
//! `cargo bench -p fermata-sim --bench speed -- [--json] [--only TEXT] [--policies LIST] [TRACE]`
//! prints a table, or with `--json` an archive for docs/research. TRACE is the absolute path of the
//! SWIM trace FB-2009, because cargo runs benchmarks in the folder of the crate; without it that
//! workload is left out. `--only` selects the workloads whose names contain TEXT.

use fermata_sim::{
    Outcome, Setup, Workload, World, clusters,
    experiment::Variant,
    profile,
    report::{Cell, Table, archive},
    rng::Rng,
    workload::{Outline, papers, swim},
};
use mrcore::PerPhase;
use std::{
    error::Error,
    path::{Path, PathBuf},
    process::Command,
};

// As in mrctl.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Every policy, with the variants that decide in another way.
const POLICIES: &str = "fifo,fair,capacity,las,hsrtf-pr,hsrtf-pu,hsrtf-prp,hsrtf-pup,fcs,fcs[literal=true],\
                        coshh,coda,chronos(fifo),chronos(fair)";

/// A cluster and the jobs that it runs.
struct Case {
    name: &'static str,
    setup: Setup,
    workload: Workload,
    /// CPU seconds that a run may take.
    limit_s: f64,
}

/// What a run took.
struct Measured {
    cpu_s: f64,
    peak_mib: u64,
    outcome: Outcome,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (mut json, mut only, mut policies, mut trace) = (false, String::new(), POLICIES.to_owned(), None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => {} // `cargo bench` passes it.
            "--json" => json = true,
            "--only" => only = args.next().ok_or("--only needs a text")?,
            "--policies" => policies = args.next().ok_or("--policies needs a list")?,
            path => trace = Some(PathBuf::from(path)),
        }
    }
    let mut cases = fcs_cases();
    if let Some(trace) = &trace {
        cases.extend([facebook_case(trace)?, backlog_case(trace)?]);
    }
    cases.push(large_case());
    cases.retain(|case| case.name.contains(&only));

    let names: Vec<&str> = ["policy"].into_iter().chain(cases.iter().map(|case| case.name)).collect();
    let mut table = Table::new(&names);
    let mut limits: Vec<Cell> = vec!["limit".into()];
    limits.extend(cases.iter().map(|case| Cell::number(Some(case.limit_s))));
    table.row(limits);
    for variant in Variant::list(&policies)? {
        let mut row: Vec<Cell> = vec![variant.label.as_str().into()];
        for case in &cases {
            let Measured { cpu_s, peak_mib, outcome } = measure(case, &variant)?;
            eprintln!(
                "{}, {}: {cpu_s:.1} CPU s, {} events, {:.0} per s, peak {peak_mib} MiB, hash {:016x}, {} unfinished",
                case.name,
                variant.label,
                outcome.events,
                outcome.events as f64 / cpu_s,
                outcome.hash,
                outcome.unfinished,
            );
            row.push(Cell::Number(Some(cpu_s), format!("{cpu_s:.1}")));
        }
        table.row(row);
    }
    if json {
        // A path of this machine means nothing elsewhere.
        let shown = |word: String| match word.rsplit_once('/') {
            Some((_, name)) => name.to_owned(),
            None => word,
        };
        let words: Vec<String> =
            std::env::args().skip(1).filter(|word| word != "--bench").map(shown).collect();
        print!("{}", archive::text(&archived(&words.join(" "), &table)));
    } else {
        print!("{}", table.text());
    }
    Ok(())
}

fn archived(arguments: &str, table: &Table) -> serde_json::Value {
    let commit =
        Command::new("git").args(["describe", "--always", "--dirty=+changes", "--abbrev=12"]).output();
    let commit = commit.map(|ran| String::from_utf8_lossy(&ran.stdout).trim().to_owned()).unwrap_or_default();
    serde_json::json!({
        "command": format!("cargo bench -p fermata-sim --bench speed -- {arguments}"),
        "version": env!("CARGO_PKG_VERSION"),
        "commit": if commit.is_empty() { "unknown" } else { &commit },
        "tables": [archive::table("CPU seconds of a run", table)],
    })
}

/// Runs a workload under a policy.
fn measure(case: &Case, variant: &Variant) -> Result<Measured, Box<dyn Error>> {
    let mut setup = case.setup.clone();
    (setup.scheduler, setup.params) = (variant.scheduler.clone(), variant.params.clone());
    setup.measures_decisions = false;
    let world = World::new(setup, case.workload.clone())?;
    // Linux resets the peak of the memory of a process. Elsewhere there is no /proc to read it from.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = cpu_s();
    let outcome = world.run(None)?;
    Ok(Measured { cpu_s: cpu_s() - before, peak_mib: peak_mib(), outcome })
}

/// Returns the CPU seconds of this process. Elapsed time would include waiting for other processes.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Returns the two workloads of the FCS paper on its cluster.
fn fcs_cases() -> Vec<Case> {
    let case = |name, kinds| {
        let workload = papers::fcs(&profile::built_in(), kinds, 30.0, 171, 1);
        Case { name, setup: clusters::fcs(), workload, limit_s: 20.0 }
    };
    vec![case("FCS map-heavy", &papers::FCS_MAP_HEAVY), case("FCS reduce-heavy", &papers::FCS_REDUCE_HEAVY)]
}

/// Returns a day of Facebook's cluster of 600 machines, as `mrctl sim --workload TRACE --nodes 600`.
fn facebook_case(trace: &Path) -> Result<Case, Box<dyn Error>> {
    let scaling = swim::Scaling { bytes: 1.0, block: 128 << 20, reduces_max: 600 };
    let workload = swim::read(trace, scaling)?;
    let setup = Setup::even(600, PerPhase { map: 4, reduce: 2 }, "fifo");
    Ok(Case { name: "FB-2009", setup, workload, limit_s: 30.0 })
}

/// Returns the same day on 20 machines with as much work as they can do, so that jobs wait, as `mrctl
/// sim --workload TRACE --nodes 20 --load 1`.
fn backlog_case(trace: &Path) -> Result<Case, Box<dyn Error>> {
    let scaling = swim::Scaling { bytes: 20.0 / 600.0, block: 128 << 20, reduces_max: 40 };
    let setup = Setup::even(20, PerPhase { map: 4, reduce: 2 }, "fifo");
    let workload = swim::read(trace, scaling)?.with_load(1.0, &setup);
    Ok(Case { name: "FB-2009 with a backlog", setup, workload, limit_s: 30.0 })
}

/// Returns a thousand jobs of a thousand tasks each on 10,000 machines.
fn large_case() -> Case {
    let (profiles, mut rng) = (profile::built_in(), Rng::new(1));
    let mut job = |number: u32| {
        Outline {
            at_s: f64::from(number),
            name: format!("job-{number}"),
            group: format!("{}", number % 10),
            user: format!("user{}", number % 20),
            maps: 950,
            block: 128_000_000,
            reduces: 50,
            profile: &profiles["fcs-termvector"],
        }
        .plan(&mut rng)
    };
    let workload = Workload { name: "large".into(), jobs: (0..1000).map(&mut job).collect() };
    let setup = Setup::even(10_000, PerPhase { map: 4, reduce: 2 }, "fifo");
    Case { name: "1,000,000 tasks", setup, workload, limit_s: 600.0 }
}
