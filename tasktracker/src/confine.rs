//! The folders that a confined task may access. The restrictions of a process are the same for all
//! attempts of a job that it may run, because they cannot be relaxed later.

use crate::disks::{AttemptFolders, Disks};
use proto::mr::Confinement;
use std::path::{Path, PathBuf};
use types::JobId;

/// Returns what a confined process may access: the folders of its attempt, or those of its job if
/// it may run several attempts of the job. `from` is the checkpoint to resume from.
pub(crate) fn confinement(
    disks: &Disks,
    job: JobId,
    work: &AttemptFolders,
    from: &[String],
    reuse: bool,
    reads: &[PathBuf],
) -> Confinement {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let of_job = |part: &'static str| disks.job_parts(job, part);
    // A rule requires that its folder exists. A disk without the folder gets no attempt either.
    let make = |part| (0..disks.count()).filter_map(move |disk| disks.make_part(disk, job, part).ok());
    let writes: Vec<PathBuf> = if reuse {
        ["work", "output", "checkpoints"].into_iter().flat_map(make).collect()
    } else {
        let outputs = work.outputs.iter().filter_map(|output| output.parent()).map(Path::to_owned);
        work.scratch.iter().chain(&work.checkpoint_dirs).cloned().chain(outputs).collect()
    };
    let writes = writes.into_iter().map(text).chain(from.iter().cloned());
    // A reduce reads the outputs of its job's maps on this machine directly.
    let own = of_job("program").chain(of_job("files")).chain(make("output"));
    let reads = own.chain(reads.iter().cloned());
    Confinement { writes: writes.collect(), reads: reads.map(text).collect() }
}
