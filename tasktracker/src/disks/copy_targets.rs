//! Folders for copies from other trackers.

use super::{DiskError, Disks, OUTPUT, hand_over, remove_tree, warn};
use std::{
    fs::{self, File},
    io,
    path::PathBuf,
};
use types::{AttemptId, Phase};

/// Where a copy may be stored, best first.
#[derive(Debug, Default)]
pub(crate) struct CopyTargets {
    /// Folders for data during the transfer.
    pub(crate) scratch: Vec<PathBuf>,
    /// Folders for the result: a map output, or the checkpoint of a reduce.
    pub(crate) results: Vec<PathBuf>,
}

impl Disks {
    /// Creates the folders, on every disk with enough space.
    pub(crate) fn make_copy_targets(&self, attempt: AttemptId) -> Result<CopyTargets, DiskError> {
        let first = self.choose()?;
        let others = (0..self.all.len()).filter(|disk| *disk != first && self.usable(*disk));
        let result = if attempt.phase() == Phase::Map { "output" } else { "checkpoints" };
        let mut places = CopyTargets::default();
        for disk in std::iter::once(first).chain(others) {
            let make = |part: &str| {
                let path = self.make_part(disk, attempt.job(), part)?.join(attempt.to_string());
                remove_tree(&path).and_then(|()| fs::create_dir(&path)).map(|()| path)
            };
            match make("work").and_then(|scratch| Ok((scratch, make(result)?))) {
                Ok((scratch, result)) => {
                    places.scratch.push(scratch);
                    places.results.push(result);
                }
                Err(source) if disk == first => {
                    return Err(self.failed(disk, &self.job_folder(disk, attempt.job()), source));
                }
                // A disk on which this fails is not used.
                Err(_) => {}
            }
        }
        Ok(places)
    }

    /// Gives a copy to the account of tasks as if a task had made it, and makes it durable. Before
    /// that only the tracker can write there; afterwards a task can, so the file is opened first.
    pub(crate) fn hand_over_copy(&self, places: &CopyTargets) -> io::Result<()> {
        for path in places.copied()? {
            let file = File::open(&path)?;
            hand_over(&path, self.account)?;
            file.sync_all()?;
        }
        Ok(())
    }
}

impl CopyTargets {
    /// Returns the possible paths of a map output.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        self.results.iter().map(|folder| folder.join(OUTPUT)).collect()
    }

    /// Returns all copied files, each folder after its contents.
    fn copied(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = Vec::new();
        for folder in &self.results {
            for entry in fs::read_dir(folder)? {
                all.push(entry?.path());
            }
            all.push(folder.clone());
        }
        Ok(all)
    }

    /// Ends a copy, after success or failure.
    pub(crate) fn end(&self, well: bool) {
        for path in &self.scratch {
            warn(path, "remove", remove_tree(path));
        }
        for path in self.results.iter().filter(|_| !well) {
            warn(path, "remove", remove_tree(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{attempt, write},
        *,
    };

    #[test]
    fn an_output_is_handed_over_and_synced_with_its_index() {
        let dir = tempfile::tempdir().unwrap();
        let (disks, _) = Disks::open(&[dir.path().to_owned()], 0).unwrap();
        let places = disks.make_copy_targets(attempt("job_1.m0.0")).unwrap();
        write(&places.outputs()[0], &[b"one"]);
        let mut copied = places.copied().unwrap();
        copied[..2].sort();
        let names: Vec<_> = copied.iter().map(|path| path.file_name().unwrap().to_string_lossy()).collect();
        assert_eq!(names, ["out", "out.index", "job_1.m0.0"]);
        disks.hand_over_copy(&places).unwrap();
    }
}
