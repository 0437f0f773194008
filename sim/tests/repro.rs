//! Runs the experiments of the papers without the command line. `FERMATA_REPRO=DIR cargo test
//! --release -p fermata-sim --test repro -- --ignored` writes an HTML page and a Markdown file per
//! paper to that folder. `FERMATA_PAPERS=hsrtf,fcs` selects papers, and `FERMATA_SEEDS` is the number
//! of seeds. Archives are written by `mrctl repro PAPER --all --report DIR`, which knows the command
//! and the commit that made them.

use fermata_sim::{
    experiment::Step,
    profile,
    repro::{Lab, Paper},
};
use std::path::PathBuf;

#[test]
#[ignore = "minutes of work, for release builds"]
fn papers_are_reproduced() {
    let Some(folder) = std::env::var_os("FERMATA_REPRO").map(PathBuf::from) else { return };
    let chosen = std::env::var("FERMATA_PAPERS").unwrap_or_default();
    let seeds = std::env::var("FERMATA_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    for paper in Paper::ALL {
        if !chosen.is_empty() && !chosen.split(',').any(|name| name == paper.name()) {
            continue;
        }
        let profiles = profile::built_in();
        let watch = |title: &str, step: Step<'_>| {
            if step.is_last {
                eprintln!("{title}: {} ({} of {})", step.label, step.done, step.of);
            }
        };
        let lab = Lab::new(&profiles, seeds, true, &watch);
        let reproduction = paper.reproduce(&lab).unwrap_or_else(|error| panic!("{}: {error}", paper.name()));
        println!("{}", reproduction.text());
        let write = |kind: &str, text: String| {
            std::fs::write(folder.join(format!("{}.{kind}", paper.name())), text)
                .expect("a folder to write to");
        };
        let made_by = format!("the test repro of the simulator, {seeds} seeds");
        write("html", reproduction.html(&made_by));
        write("md", reproduction.markdown(&made_by));
    }
}
