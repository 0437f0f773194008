//! Runs every file in `scenarios/` with the policy that its name starts with, and compares the
//! results. `FERMATA_BLESS=1 cargo test -p fermata-schedulers` rewrites the files with the actual
//! results.

use fermata_schedulers::Params;
use mrcore::Scheduler;
use std::{fmt::Write as _, fs, path::Path};

fn make(spec: &str, params: &Params) -> Result<Box<dyn Scheduler>, String> {
    fermata_schedulers::make(spec, params).map_err(|error| error.to_string())
}

#[test]
fn scenarios_have_the_expected_results() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let mut wrong = String::new();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let policy = name.split('.').next().unwrap_or_default();
        // File names contain `chronos-fair` instead of `chronos(fair)`.
        let policy = match policy.split_once("chronos-") {
            Some((_, inner)) => format!("chronos({inner})"),
            None => policy.to_owned(),
        };
        let written = fs::read_to_string(&file).unwrap();
        let played = mrcore::scenario::run(&written, &policy, &make, &mrcore::invariants::check)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        if std::env::var_os("FERMATA_BLESS").is_some() {
            fs::write(&file, &played).unwrap();
        } else if played != written {
            let _ = write!(wrong, "--- {name}, actual results:\n{played}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
