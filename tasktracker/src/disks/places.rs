//! Folders for what comes from another tracker.

use super::{DiskError, Disks, OUTPUT, hand_over, remove_tree, warn};
use crate::ids::{Attempt, Phase};
use std::{fs, io, path::PathBuf};

/// Where a copy of what an attempt left elsewhere may go, best first.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// For what is on its way.
    pub(crate) scratch: Vec<PathBuf>,
    /// For what came: a map's output, or what a reduce put aside.
    pub(crate) results: Vec<PathBuf>,
}

impl Disks {
    /// Makes them, on every disk that has room.
    pub(crate) fn make_places(&self, attempt: Attempt) -> Result<Places, DiskError> {
        let first = self.choose()?;
        let others = (0..self.all.len()).filter(|disk| *disk != first && self.usable(*disk));
        let result = if attempt.phase == Phase::Map { "output" } else { "aside" };
        let mut places = Places::default();
        for disk in std::iter::once(first).chain(others) {
            let make = |part: &str| {
                let path = self.make_part(disk, attempt.job, part)?.join(attempt.to_string());
                remove_tree(&path).and_then(|()| fs::create_dir(&path)).map(|()| path)
            };
            match make("work").and_then(|scratch| Ok((scratch, make(result)?))) {
                Ok((scratch, result)) => {
                    places.scratch.push(scratch);
                    places.results.push(result);
                }
                Err(source) if disk == first => {
                    return Err(self.failed(disk, &self.job_folder(disk, attempt.job), source));
                }
                // A disk that will not is done without.
                Err(_) => {}
            }
        }
        Ok(places)
    }

    /// The copy lies there as if a task had made it. Nobody but us can have put anything there before.
    pub(crate) fn hand_over_copy(&self, places: &Places) -> io::Result<()> {
        for folder in &places.results {
            for entry in fs::read_dir(folder)? {
                hand_over(&entry?.path(), self.account)?;
            }
            hand_over(folder, self.account)?;
        }
        Ok(())
    }
}

impl Places {
    /// Where a map's output may go.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        self.results.iter().map(|folder| folder.join(OUTPUT)).collect()
    }

    /// The copy is in place, or given up.
    pub(crate) fn end(&self, well: bool) {
        for path in &self.scratch {
            warn(path, "remove", remove_tree(path));
        }
        for path in self.results.iter().filter(|_| !well) {
            warn(path, "remove", remove_tree(path));
        }
    }
}
