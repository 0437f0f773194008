//! Checks after a round, when all jobs have ended: leftover files and processes, and growth of
//! memory.

use super::{
    super::{
        node::ResourceUsage,
        observer::{ClusterView, Observer},
        target::ChaosTarget,
    },
    jobs::SoakJobs,
};
use anyhow::Result;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use view::output;

/// How long the cluster may take to remove temporary files and processes.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(30);
/// Memory may grow by a quarter plus this amount, because allocators keep memory that was used
/// once.
const MEMORY_SLACK: u64 = 8 << 20;
/// The allowed growth of open files, for connections that are about to close.
const FILES_SLACK: u64 = 16;

/// Waits until no files and processes are left over. Returns the leftovers that remain after a
/// timeout.
pub(super) async fn await_no_leftovers(
    target: &ChaosTarget,
    jobs: &SoakJobs,
    observer: &mut Observer,
    view: &mut ClusterView,
) -> Result<Vec<String>> {
    let deadline = Instant::now() + CLEAN_TIMEOUT;
    loop {
        *view = observer.observe(view).await;
        let left = find_leftovers(target, jobs, view)?;
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn find_leftovers(target: &ChaosTarget, jobs: &SoakJobs, view: &ClusterView) -> Result<Vec<String>> {
    let mut left = Vec::new();
    if view.slots_in_use() > 0 {
        left.push(format!("{} in use", output::count(view.slots_in_use().into(), "slot")));
    }
    if let Some(open) = view.files.as_ref().map(|files| files.open_files).filter(|open| *open > 0) {
        left.push(format!("{} still open for writing", output::count(open, "file")));
    }
    let files = jobs.list()?;
    let ours = |path: &&String| path.contains("/_temporary") || path.starts_with("/tmp/fermata/staging/");
    left.extend(files.iter().filter(ours).map(|path| format!("{path} is left over in the file system")));
    if left.is_empty() && files.len() as u64 != jobs.files {
        left.push(format!(
            "{} in the file system, {} at the start",
            output::count(files.len() as u64, "file"),
            jobs.files
        ));
    }
    left.extend(
        target.job_files()?.into_iter().take(5).map(|path| format!("{path} is left over from a job")),
    );
    let usage = target.resource_usage()?;
    let settings = target.config()?.tasktracker;
    // A tracker may have these processes: idle processes for the next tasks, one process per slot
    // that has run a task, and the reaper.
    let most = settings.warm_tasks + settings.map_slots + settings.reduce_slots + 1;
    let many =
        usage.iter().filter(|daemon| daemon.tasks > if daemon.program == "tasktracker" { most } else { 0 });
    left.extend(many.map(|daemon| {
        format!("processes under the {} of {}: {}", daemon.program, daemon.node, daemon.tasks)
    }));
    let expected = target.nodes()?.len() * 2 + 2;
    if usage.len() != expected {
        left.push(format!("running daemons: {} of {expected}", usage.len()));
    }
    Ok(left)
}

/// The memory and open files of daemons after each round.
#[derive(Debug, Default)]
pub(super) struct UsageHistory {
    /// For each round and program: the maximum memory and the maximum number of open files over all
    /// daemons.
    rounds: Vec<BTreeMap<String, (u64, u64)>>,
}

/// The memory and open files of a program in the first and in the last rounds.
#[derive(Debug, Serialize)]
pub(super) struct Growth {
    pub(super) program: String,
    pub(super) first_bytes: u64,
    pub(super) last_bytes: u64,
    pub(super) first_files: u64,
    pub(super) last_files: u64,
}

impl UsageHistory {
    pub(super) fn record_round(&mut self, target: &ChaosTarget) -> Result<()> {
        let mut round: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for ResourceUsage { program, bytes, files, .. } in target.resource_usage()? {
            let most = round.entry(program).or_default();
            *most = (most.0.max(bytes), most.1.max(files));
        }
        self.rounds.push(round);
        Ok(())
    }

    /// Compares the first quarter of the rounds with the last quarter. Uses the median of each,
    /// because a single measurement may be an outlier.
    pub(super) fn growth(&self) -> Vec<Growth> {
        let quarter = self.rounds.len().div_ceil(4);
        let Some(first) = self.rounds.get(..quarter) else { return Vec::new() };
        let last = &self.rounds[self.rounds.len() - quarter..];
        let median = |rounds: &[BTreeMap<String, (u64, u64)>], program: &str| {
            let of = || rounds.iter().filter_map(|round| round.get(program));
            let middle = |mut all: Vec<u64>| {
                all.sort_unstable();
                all.get(all.len() / 2).copied().unwrap_or(0)
            };
            (middle(of().map(|one| one.0).collect()), middle(of().map(|one| one.1).collect()))
        };
        let programs = self.rounds.first().into_iter().flat_map(BTreeMap::keys);
        programs
            .map(|program| {
                let ((first_bytes, first_files), (last_bytes, last_files)) =
                    (median(first, program), median(last, program));
                Growth { program: program.clone(), first_bytes, last_bytes, first_files, last_files }
            })
            .collect()
    }

    /// Describes the programs whose memory or number of open files has grown more than allowed.
    pub(super) fn leaks(&self) -> Vec<String> {
        let mut leaks = Vec::new();
        for one in self.growth() {
            let may = one.first_bytes + one.first_bytes / 4 + MEMORY_SLACK;
            if one.last_bytes > may {
                leaks.push(format!(
                    "{}: {} bytes of memory, {} at the start: more than {may}",
                    one.program, one.last_bytes, one.first_bytes
                ));
            }
            if one.last_files > one.first_files + FILES_SLACK {
                leaks.push(format!(
                    "{}: {} open files, {} at the start",
                    one.program, one.last_files, one.first_files
                ));
            }
        }
        leaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaks_of(program: &str, rounds: &[(u64, u64)]) -> Vec<String> {
        let round = |(bytes, files): &(u64, u64)| [(program.to_owned(), (*bytes, *files))].into();
        UsageHistory { rounds: rounds.iter().map(round).collect() }.leaks()
    }

    #[test]
    fn growth_is_reported_and_noise_is_not() {
        let mib = |sizes: &[u64]| sizes.iter().map(|size| (size << 20, 50)).collect::<Vec<_>>();
        assert!(leaks_of("namenode", &mib(&[30, 32, 31, 33, 40, 41, 42, 41])).is_empty());
        // A single outlier is no leak.
        assert!(leaks_of("namenode", &mib(&[30, 31, 30, 30, 30, 30, 30, 30, 30, 30, 99, 30])).is_empty());
        let leaks = leaks_of("namenode", &mib(&[30, 32, 34, 36, 38, 40, 46, 49]));
        assert!(leaks.len() == 1 && leaks[0].starts_with("namenode"), "{leaks:?}");
        let files = |count| (30 << 20, count);
        assert!(leaks_of("datanode", &[files(20), files(36)]).is_empty());
        assert_eq!(leaks_of("datanode", &[files(20), files(37)]).len(), 1);
        assert!(UsageHistory::default().growth().is_empty());
    }
}
