//! The starts of the JobTracker with this folder, in the file `STARTS`.
//!
//! The NameNode keeps the newest start that it has accepted. A folder whose file does not contain
//! that start is an older copy of the JobTracker's folder, and the NameNode refuses it (ADR 0022).
//! The file contains the newest start that is known to be accepted, and all later ones whose result
//! is not known. A start is written before it is sent to the NameNode, so an accepted start is
//! always in the file.
//!
//! A member of a group has its starts in the facts of the journal (`mrcore::cluster::Starts`), because
//! each leadership is a start. The file of one JobTracker becomes facts when it founds a group, and
//! is written again when it leaves it.

use dfs_client::ids::{Start, StartId};
use journal::{DataFolderError, home};
use mrcore::fact;
use std::{fs, io, path::Path, time::Duration};

const FILE: &str = "STARTS";
/// Time between two attempts to record a start.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of starts in the file. More happen only if the NameNode is unreachable at as many
/// starts. The oldest start, which was accepted, is always kept.
const STARTS_MAX: usize = 1000;

/// Adds a start, and tries again while the disk fails. Passes each such error to `report`.
pub(crate) async fn record(
    folder: &Path,
    start: Start,
    report: impl Fn(String),
) -> Result<Vec<Start>, String> {
    loop {
        match change(folder, move |folder| add(folder, start)).await {
            Ok(earlier) => return Ok(earlier),
            Err(error @ DataFolderError::Io { .. }) => report(format!("cannot record this start: {error}")),
            Err(error) => return Err(error.to_string()),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Changes the file. The change waits for the disk, so it runs on a thread for blocking calls.
pub(crate) async fn change<T: Send + 'static>(
    folder: &Path,
    change: impl FnOnce(&Path) -> Result<T, DataFolderError> + Send + 'static,
) -> Result<T, DataFolderError> {
    let path = folder.to_owned();
    let changed = tokio::task::spawn_blocking(move || change(&path)).await;
    changed.unwrap_or_else(|error| Err(DataFolderError::Io { path: folder.to_owned(), source: error.into() }))
}

/// Logs an error of a change that only keeps the file short.
pub(crate) fn shorten(result: Result<(), DataFolderError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "cannot shorten the list of starts");
    }
}

/// Adds a start, whose epoch is durable in the journal, to the file. Returns the earlier starts,
/// ordered by epoch.
pub(crate) fn add(folder: &Path, start: Start) -> Result<Vec<Start>, DataFolderError> {
    let mut starts = read(folder)?;
    // An earlier call may have written the start and failed later.
    starts.retain(|one| *one != start);
    if starts.len() >= STARTS_MAX {
        starts.remove(1);
    }
    let earlier = starts.clone();
    starts.push(start);
    write(folder, &starts)?;
    Ok(earlier)
}

/// Removes a start that the NameNode has refused.
pub(crate) fn remove(folder: &Path, start: Start) -> Result<(), DataFolderError> {
    let mut starts = read(folder)?;
    starts.retain(|one| *one != start);
    write(folder, &starts)
}

/// Replaces all starts with one that the NameNode has accepted.
pub(crate) fn accept(folder: &Path, start: Start) -> Result<(), DataFolderError> {
    write(folder, &[start])
}

/// Replaces all starts by those of a group that this JobTracker has left.
pub(crate) fn replace(folder: &Path, starts: impl Iterator<Item = Start>) -> Result<(), DataFolderError> {
    write(folder, &starts.collect::<Vec<_>>())
}

/// Returns a start as it is in the facts of a group.
pub(crate) fn to_fact(start: Start) -> fact::Start {
    fact::Start { epoch: start.epoch, id: start.id.0 }
}

/// Returns a start of the facts of a group.
pub(crate) fn from_fact(start: fact::Start) -> Start {
    Start { epoch: start.epoch, id: StartId(start.id) }
}

/// Removes all starts: an operator has accepted this folder, which may be an older copy.
pub(crate) fn clear(folder: &Path) -> Result<(), DataFolderError> {
    write(folder, &[])
}

/// Returns the starts in the file, ordered by epoch.
pub(crate) fn read(folder: &Path) -> Result<Vec<Start>, DataFolderError> {
    let path = folder.join(FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(DataFolderError::Io { path, source }),
    };
    let starts: Option<Vec<Start>> = text.lines().map(parse).collect();
    let why = "restore it from a copy, or start once with --recover to start without it";
    starts.ok_or_else(|| DataFolderError::Version { path, why: why.into() })
}

fn parse(line: &str) -> Option<Start> {
    let (epoch, id) = line.split_once(' ')?;
    Some(Start { epoch: epoch.parse().ok()?, id: StartId(u64::from_str_radix(id, 16).ok()?) })
}

fn write(folder: &Path, starts: &[Start]) -> Result<(), DataFolderError> {
    let line = |start: &Start| format!("{} {:016x}\n", start.epoch, start.id.0);
    home::write_durably(folder, FILE, &starts.iter().map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(epoch: u64) -> Start {
        Start { epoch, id: StartId(u64::MAX - epoch) }
    }

    #[test]
    fn starts_since_the_last_accepted_one_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(add(folder, start(1)).unwrap(), []);
        for _ in 0..2 {
            assert_eq!(add(folder, start(2)).unwrap(), [start(1)]);
            assert_eq!(read(folder).unwrap(), [start(1), start(2)]);
        }
        accept(folder, start(2)).unwrap();
        assert_eq!(add(folder, start(3)).unwrap(), [start(2)]);
        remove(folder, start(3)).unwrap();
        assert_eq!(add(folder, start(4)).unwrap(), [start(2)]);
        assert_eq!(add(folder, start(5)).unwrap(), [start(2), start(4)]);
        clear(folder).unwrap();
        assert_eq!(add(folder, start(6)).unwrap(), []);
    }

    #[test]
    fn accepted_start_stays_in_a_full_file() {
        let folder = tempfile::tempdir().unwrap();
        let all: Vec<Start> = (1..=STARTS_MAX as u64).map(start).collect();
        write(folder.path(), &all).unwrap();
        let earlier = add(folder.path(), start(5000)).unwrap();
        assert_eq!(earlier.len(), STARTS_MAX - 1);
        assert_eq!(earlier[..2], [start(1), start(3)]);
    }

    #[test]
    fn damaged_file_is_refused_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "7 x\n").unwrap();
        let refused = add(folder.path(), start(8)).unwrap_err().to_string();
        assert!(refused.contains("STARTS") && refused.contains("--recover"), "{refused}");
    }
}
