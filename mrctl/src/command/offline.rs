//! `mrctl masters --offline`: what is in the folders of masters that do not run, so that an operator can
//! choose the one to continue with when a majority is lost.
//!
//! The log with the highest term of its last entry, and of these the longest, has everything that the
//! other folders have acknowledged (Raft elects by the same rule).

use crate::output;
use anyhow::{Context, Result, bail};
use daemon::lock::FolderLock;
use journal::disk::{Disk, RealDisk};
use replication::recovery::{self, Offline};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// The subfolders of the journals of a NameNode and a JobTracker.
const JOURNALS: [&str; 2] = ["edits", "journal"];

pub(super) fn run(folders: &[PathBuf], json: bool) -> Result<ExitCode> {
    let found: Vec<(&PathBuf, Result<Offline, String>)> = folders
        .iter()
        .map(|folder| (folder, examine(folder).map_err(|error| output::chain(&error))))
        .collect();
    let readable = found.iter().filter_map(|(folder, found)| Some((folder, found.as_ref().ok()?)));
    let best = readable
        .filter(|(_, found)| found.last.is_some())
        .max_by_key(|(_, found)| (found.last, found.damage.is_none()))
        .map(|(folder, _)| folder.as_path());
    if json {
        let folders = found.iter().map(|(folder, found)| row(folder, found));
        output::json(&json!({ "folders": folders.collect::<Vec<_>>(), "best": best }))?;
    } else {
        let header = ["FOLDER", "ID", "TERM", "INDEX", "VOTERS", "STATE"];
        let mut table = output::table(&header, &[1, 2, 3, 4]);
        for (folder, found) in &found {
            let row = row(folder, found);
            let cell = |key: &str| match &row[key] {
                Value::Null => "-".to_owned(),
                Value::Array(all) => all.len().to_string(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let state = if row["problem"].is_null() { "complete".into() } else { cell("problem") };
            table.add_row([cell("folder"), cell("id"), cell("term"), cell("index"), cell("voters"), state]);
        }
        output::print_table(&table)?;
        if let Some(best) = best {
            output::line(format!("{} has most", best.display()))?;
        }
    }
    Ok(if best.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(folder: &Path, found: &Result<Offline, String>) -> Value {
    let offline = found.as_ref().ok();
    let last = offline.and_then(|offline| offline.last);
    let voters = offline.map(|offline| {
        let voters = offline.voters.iter().map(|(id, address)| json!({ "id": id, "address": address }));
        voters.collect::<Vec<_>>()
    });
    let problem = found.as_ref().map_or_else(|why| Some(why.clone()), |offline| offline.damage.clone());
    json!({
        "folder": folder,
        "id": offline.and_then(|offline| offline.id),
        "term": last.map(|(term, _)| term),
        "index": last.map(|(_, index)| index),
        "voters": voters,
        "problem": problem,
    })
}

/// Reads the folder of a master, which must not be in use.
fn examine(folder: &Path) -> Result<Offline> {
    let shown = folder.display();
    let journal = JOURNALS.iter().map(|name| folder.join(name)).find(|journal| journal.is_dir());
    let Some(journal) = journal else {
        bail!("{shown} has neither edits/ nor journal/: name the folder of a NameNode or a JobTracker");
    };
    let _lock = FolderLock::acquire(folder, "mrctl masters")
        .with_context(|| format!("{shown} must not be in use: stop all masters first"))?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&journal)?);
    recovery::examine(&disk).with_context(|| format!("cannot read {}", journal.display()))
}
