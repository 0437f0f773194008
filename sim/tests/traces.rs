//! Runs real traces if available: `FERMATA_TRACES` is the folder with `swim/` and `rumen/`.

use fermata_sim::{
    Setup, World,
    workload::{
        rumen,
        swim::{self, Scaling},
    },
};
use mrcore::{PerPhase, Span};
use std::path::PathBuf;

/// Returns the folder of traces. Skips the test if there is none.
fn traces() -> Option<PathBuf> {
    let folder = std::env::var_os("FERMATA_TRACES").map(PathBuf::from).filter(|folder| folder.is_dir());
    if folder.is_none() {
        skip::skip("traces", "FERMATA_TRACES names no folder of traces");
    }
    folder
}

#[test]
fn first_fifty_jobs_of_the_facebook_trace_run() {
    let Some(traces) = traces() else { return };
    let path = traces.join("swim/FB-2009_samples_24_times_1hr_0_first50jobs.tsv");
    let scaling = Scaling { bytes: 20.0 / 600.0, block: 128 << 20, reduces_max: 40 };
    let workload = swim::read(&path, scaling).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(workload.jobs.len(), 50);
    let setup = Setup::even(20, PerPhase { map: 4, reduce: 2 }, "fifo");
    let outcome =
        World::new(setup, workload).expect("fifo").run(Some(Span::secs(1_000_000))).expect("no rule broken");
    assert_eq!(outcome.unfinished, 0);
}

#[test]
fn every_rumen_trace_is_read_and_run() {
    let Some(traces) = traces() else { return };
    let folder = std::fs::read_dir(traces.join("rumen")).expect("a folder");
    let mut read = 0;
    for path in folder.map(|entry| entry.expect("an entry").path()) {
        if path.extension().is_none_or(|extension| extension != "gz") {
            continue;
        }
        let rumen::Trace { workload, .. } = rumen::read(&path).unwrap_or_else(|error| panic!("{error}"));
        let setup = Setup::even(50, PerPhase { map: 4, reduce: 2 }, "fifo");
        let outcome = World::new(setup, workload).expect("fifo").run(Some(Span::secs(10_000_000)));
        assert_eq!(outcome.expect("no rule broken").unfinished, 0, "{}", path.display());
        read += 1;
    }
    assert_eq!(read, 7);
}
