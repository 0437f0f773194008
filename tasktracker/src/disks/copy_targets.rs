//! Creates the folders for files that are copied from other trackers.

use super::{DiskError, Disks, OUTPUT_FILE, hand_over, log_failure, remove_tree};
use std::{
    fs::{self, File},
    io,
    path::PathBuf,
};
use types::{AttemptId, Phase};

/// The folders in which a copy may be stored, best first.
#[derive(Debug, Default)]
pub(crate) struct CopyTargets {
    /// Folders for data during the transfer.
    pub(crate) scratch: Vec<PathBuf>,
    /// Folders for the result: a map output, or the checkpoint of a reduce.
    pub(crate) results: Vec<PathBuf>,
}

impl Disks {
    /// Creates the folders for a copy on every disk with enough space.
    pub(crate) fn make_copy_targets(&self, attempt: AttemptId) -> Result<CopyTargets, DiskError> {
        let first = self.choose()?;
        let others = (0..self.disks.len()).filter(|disk| *disk != first && self.is_usable(*disk));
        let result = if attempt.phase() == Phase::Map { "output" } else { "checkpoints" };
        let mut targets = CopyTargets::default();
        for disk in std::iter::once(first).chain(others) {
            let make = |part: &str| {
                let path = self.make_job_subfolder(disk, attempt.job(), part)?.join(attempt.to_string());
                remove_tree(&path).and_then(|()| fs::create_dir(&path)).map(|()| path)
            };
            match make("work").and_then(|scratch| Ok((scratch, make(result)?))) {
                Ok((scratch, result)) => {
                    targets.scratch.push(scratch);
                    targets.results.push(result);
                }
                Err(source) if disk == first => {
                    return Err(self.failed(disk, &self.job_folder(disk, attempt.job()), source));
                }
                // If the folders cannot be created on another disk, the copy does not use that
                // disk.
                Err(_) => {}
            }
        }
        Ok(targets)
    }

    /// Gives the copied files to the account of tasks, as if a task had made them, and syncs them.
    /// Each file is opened before that, while only the tracker can write to its folder; afterwards
    /// a task could replace it.
    pub(crate) fn hand_over_copy(&self, targets: &CopyTargets) -> io::Result<()> {
        for path in targets.copied_files()? {
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
        self.results.iter().map(|folder| folder.join(OUTPUT_FILE)).collect()
    }

    /// Returns all copied files and their folders, each folder after its contents.
    fn copied_files(&self) -> io::Result<Vec<PathBuf>> {
        let mut all = Vec::new();
        for folder in &self.results {
            for entry in fs::read_dir(folder)? {
                all.push(entry?.path());
            }
            all.push(folder.clone());
        }
        Ok(all)
    }

    /// Removes the scratch folders, and if the copy has failed also the result folders.
    pub(crate) fn finish(&self, succeeded: bool) {
        for path in &self.scratch {
            log_failure(path, "remove", remove_tree(path));
        }
        for path in self.results.iter().filter(|_| !succeeded) {
            log_failure(path, "remove", remove_tree(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{attempt, write_output},
        *,
    };

    #[test]
    fn copied_files_include_the_output_its_index_and_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (disks, _) = Disks::open(&[dir.path().to_owned()], 0).unwrap();
        let targets = disks.make_copy_targets(attempt("job_1.m0.0")).unwrap();
        write_output(&targets.outputs()[0], &[b"one"]);
        let mut copied = targets.copied_files().unwrap();
        copied[..2].sort();
        let names: Vec<_> = copied.iter().map(|path| path.file_name().unwrap().to_string_lossy()).collect();
        assert_eq!(names, ["out", "out.index", "job_1.m0.0"]);
        disks.hand_over_copy(&targets).unwrap();
    }
}
