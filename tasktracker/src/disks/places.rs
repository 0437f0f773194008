//! Folders for what comes from another tracker.

use super::{DiskError, Disks, remove_tree, warn};
use crate::ids::Attempt;
use std::{fs, path::PathBuf};

/// Where a copy of what an attempt left elsewhere may go, best first.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// For what is on its way.
    pub(crate) scratch: Vec<PathBuf>,
    /// For a map's output.
    pub(crate) outputs: Vec<PathBuf>,
    /// For what a reduce put aside; not made before they are needed.
    pub(crate) asides: Vec<PathBuf>,
}

impl Disks {
    /// Makes them, on every disk that has room.
    pub(crate) fn make_places(&self, attempt: Attempt) -> Result<Places, DiskError> {
        let first = self.choose()?;
        let others = (0..self.all.len()).filter(|disk| *disk != first && self.usable(*disk));
        let mut places = Places::default();
        for disk in std::iter::once(first).chain(others) {
            let folder = self.job_folder(disk, attempt.job);
            let (scratch, output) = (folder.join("work").join(attempt.to_string()), folder.join("output"));
            match fs::create_dir_all(&scratch).and_then(|()| fs::create_dir_all(&output)) {
                Ok(()) => {}
                Err(source) if disk == first => return Err(self.failed(disk, &scratch, source)),
                // A disk that will not is done without.
                Err(_) => continue,
            }
            places.scratch.push(scratch);
            places.outputs.push(output.join(format!("{attempt}.out")));
            places.asides.push(self.aside(disk, attempt));
        }
        Ok(places)
    }
}

impl Places {
    /// The copy is in place, or given up.
    pub(crate) fn end(&self) {
        for path in &self.scratch {
            warn(path, "remove", remove_tree(path));
        }
    }
}
