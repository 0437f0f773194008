//! Folders for what comes from another tracker.

use super::{DiskError, Disks, OUTPUT, hand_over, remove_tree, warn};
use crate::ids::{Attempt, Phase};
use std::{
    fs::{self, File},
    io,
    path::PathBuf,
};

/// Where a copy of what an attempt left elsewhere may go, best first.
#[derive(Debug, Default)]
pub(crate) struct CopyTargets {
    /// For what is on its way.
    pub(crate) scratch: Vec<PathBuf>,
    /// For what came: a map's output, or the checkpoint of a reduce.
    pub(crate) results: Vec<PathBuf>,
}

impl Disks {
    /// Makes them, on every disk that has room.
    pub(crate) fn make_copy_targets(&self, attempt: Attempt) -> Result<CopyTargets, DiskError> {
        let first = self.choose()?;
        let others = (0..self.all.len()).filter(|disk| *disk != first && self.usable(*disk));
        let result = if attempt.phase == Phase::Map { "output" } else { "checkpoints" };
        let mut places = CopyTargets::default();
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

    /// The copy lies there as if a task had made it, and stays there, and that account's, whatever becomes of the power. Nobody
    /// but us can have put anything there before; afterwards somebody can, so it is opened first.
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
    /// Where a map's output may go.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        self.results.iter().map(|folder| folder.join(OUTPUT)).collect()
    }

    /// All that came, each folder after what is in it.
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
