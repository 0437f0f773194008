//! What must not be there when all jobs are over and all is well: files, processes, and more memory than before.

use super::{
    super::{
        sight::{Eyes, Sight},
        site::{Footprint, Site},
    },
    works::Works,
};
use anyhow::Result;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// What is to be cleared away is cleared away by then.
const CLEAN_WITHIN: Duration = Duration::from_secs(30);
/// More than this, and twice as much as in the beginning, is a leak.
const MEMORY_SLACK: u64 = 48 << 20;
const FILES_SLACK: u64 = 64;
/// A tracker may keep so many idle processes for the next tasks, for each slot.
const TASKS_PER_TRACKER: u32 = 8;

/// Waits until nothing is left over; what is, if that takes too long.
pub(super) async fn left_over(
    site: &Site,
    works: &Works,
    eyes: &mut Eyes,
    sight: &mut Sight,
) -> Result<Vec<String>> {
    let deadline = Instant::now() + CLEAN_WITHIN;
    loop {
        *sight = eyes.look(sight).await;
        let left = look(site, works, sight)?;
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn look(site: &Site, works: &Works, sight: &Sight) -> Result<Vec<String>> {
    let mut left = Vec::new();
    if sight.in_use() > 0 {
        left.push(format!("{} slots are in use", sight.in_use()));
    }
    if let Some(open) = sight.files.as_ref().map(|files| files.open_files).filter(|open| *open > 0) {
        left.push(format!("{open} files are still held by a writer"));
    }
    let files = works.list()?;
    let ours = |path: &&String| path.contains("/_temporary") || path.starts_with("/tmp/fermata/staging/");
    left.extend(files.iter().filter(ours).map(|path| format!("{path} is left in the file system")));
    // What the first job has made is there now, and stays: folders of ours for staging.
    if left.is_empty() && files.len() as u64 > works.files + 4 {
        left.push(format!("{} files in the file system, at first {}", files.len(), works.files));
    }
    left.extend(site.job_files()?.into_iter().take(5).map(|path| format!("{path} is left of a job")));
    let feet = site.footprints()?;
    let many = feet.iter().filter(|foot| foot.tasks > TASKS_PER_TRACKER);
    left.extend(
        many.map(|foot| format!("{} processes under the {} of {}", foot.tasks, foot.program, foot.node)),
    );
    let expected = site.nodes()?.len() * 2 + 2;
    if feet.len() != expected {
        left.push(format!("{} daemons run, of {expected}", feet.len()));
    }
    Ok(left)
}

/// What daemons had in memory when all was well, round after round.
#[derive(Debug, Default)]
pub(super) struct Footprints {
    /// By program, the most of all.
    rounds: Vec<BTreeMap<String, (u64, u64)>>,
}

/// How a program's need has changed.
#[derive(Debug, Serialize)]
pub(super) struct Growth {
    pub(super) program: String,
    pub(super) first_bytes: u64,
    pub(super) last_bytes: u64,
    pub(super) first_files: u64,
    pub(super) last_files: u64,
}

impl Footprints {
    pub(super) fn take(&mut self, site: &Site) -> Result<()> {
        let mut round: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for Footprint { program, bytes, files, .. } in site.footprints()? {
            let most = round.entry(program).or_default();
            *most = (most.0.max(bytes), most.1.max(files));
        }
        self.rounds.push(round);
        Ok(())
    }

    /// Of the first quarter of the rounds, and of the last.
    pub(super) fn growth(&self) -> Vec<Growth> {
        let quarter = self.rounds.len().div_ceil(4);
        let Some(first) = self.rounds.get(..quarter) else { return Vec::new() };
        let last = &self.rounds[self.rounds.len() - quarter..];
        let most = |rounds: &[BTreeMap<String, (u64, u64)>], program: &str| {
            let of = rounds.iter().filter_map(|round| round.get(program));
            of.fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)))
        };
        let programs = self.rounds.first().into_iter().flat_map(BTreeMap::keys);
        programs
            .map(|program| {
                let ((first_bytes, first_files), (last_bytes, last_files)) =
                    (most(first, program), most(last, program));
                Growth { program: program.clone(), first_bytes, last_bytes, first_files, last_files }
            })
            .collect()
    }

    /// Programs that need far more in the end than at first.
    pub(super) fn leaks(&self) -> Vec<String> {
        let mut told = Vec::new();
        for one in self.growth() {
            if one.last_bytes > 2 * one.first_bytes && one.last_bytes - one.first_bytes > MEMORY_SLACK {
                told.push(format!(
                    "{}: {} bytes of memory, at first {}",
                    one.program, one.last_bytes, one.first_bytes
                ));
            }
            if one.last_files > 2 * one.first_files && one.last_files - one.first_files > FILES_SLACK {
                told.push(format!(
                    "{}: {} open files, at first {}",
                    one.program, one.last_files, one.first_files
                ));
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_and_noise_is_not() {
        let rounds = |sizes: &[u64]| Footprints {
            rounds: sizes.iter().map(|mib| [("namenode".to_owned(), (mib << 20, 50))].into()).collect(),
        };
        assert!(rounds(&[30, 32, 31, 33, 40, 45, 41, 50]).leaks().is_empty());
        let told = rounds(&[30, 40, 60, 80, 100, 120, 140, 160]).leaks();
        assert!(told.len() == 1 && told[0].starts_with("namenode"), "{told:?}");
        assert!(Footprints::default().growth().is_empty());
    }
}
