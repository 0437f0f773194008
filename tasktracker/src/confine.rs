//! Determines the folders that a confined task may access. The restrictions of a process cannot be
//! changed later, so they are the same for all attempts of a job that the process may run.

use crate::disks::{AttemptFolders, Disks};
use proto::mr::Confinement;
use std::path::{Path, PathBuf};
use types::JobId;

/// Returns what a confined process may access: the folders of its attempt, or the folders of its
/// job if `reuse` is set, which means that the process may run several attempts of the job.
/// `resume_dirs` are the folders of the checkpoint to resume from. Every task may read `reads`, and
/// write `writes`, too.
pub(crate) fn confinement(
    disks: &Disks,
    job: JobId,
    work: &AttemptFolders,
    resume_dirs: &[String],
    reuse: bool,
    reads: &[PathBuf],
    writes: &[PathBuf],
) -> Confinement {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let of_job = |part: &'static str| disks.job_subfolders(job, part);
    // Landlock can allow only folders that exist, so create them. A disk on which this fails gets
    // no attempt either.
    let make =
        |part| (0..disks.count()).filter_map(move |disk| disks.make_job_subfolder(disk, job, part).ok());
    let own_writes: Vec<PathBuf> = if reuse {
        ["work", "output", "checkpoints"].into_iter().flat_map(make).collect()
    } else {
        let outputs = work.outputs.iter().filter_map(|output| output.parent()).map(Path::to_owned);
        work.scratch.iter().chain(&work.checkpoint_dirs).cloned().chain(outputs).collect()
    };
    let writes = own_writes.into_iter().chain(writes.iter().cloned());
    let writes = writes.map(text).chain(resume_dirs.iter().cloned());
    // A reduce reads the map outputs of its job that are on this machine directly.
    let own = of_job("program").chain(of_job("files")).chain(make("output"));
    let reads = own.chain(reads.iter().cloned());
    Confinement { writes: writes.collect(), reads: reads.map(text).collect() }
}
