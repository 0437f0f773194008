//! The workloads of the papers, as printed in their tables.
//!
//! Properties that a paper does not print (mostly task times) are in the profiles. They are
//! explained in docs/research/papers/.

use super::{Outline, Workload};
use crate::{profile::Profiles, rng::Rng};

/// A kind of job in a table of a paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kind {
    /// Group in reports.
    pub group: &'static str,
    /// Name of the profile.
    pub program: &'static str,
    /// Maps per job.
    pub maps: u32,
    /// Reduces per job.
    pub reduces: u32,
    /// Number of jobs.
    pub jobs: u32,
}

const fn kind(group: &'static str, program: &'static str, maps: u32, reduces: u32, jobs: u32) -> Kind {
    Kind { group, program, maps, reduces, jobs }
}

/// The jobs of the hSRTF paper (section 5), submitted in this order every 10 s.
pub const HSRTF: [Kind; 4] = [
    kind("large", "hsrtf-sort", 256, 32, 3),
    kind("medium", "hsrtf-sort", 64, 8, 8),
    kind("small", "hsrtf-sort", 1, 1, 10),
    kind("small", "hsrtf-wordcount", 1, 1, 10),
];

/// The map-heavy jobs of the FCS paper (table 1).
pub const FCS_MAP_HEAVY: [Kind; 10] = [
    kind("1", "fcs-wordcount", 10, 1, 50),
    kind("2", "fcs-termvector", 20, 2, 40),
    kind("3", "fcs-invertedindex", 50, 4, 30),
    kind("4", "fcs-termvector", 100, 8, 20),
    kind("5", "fcs-kmeans", 500, 10, 10),
    kind("6", "fcs-termvector", 1000, 20, 8),
    kind("7", "fcs-kmeans", 5000, 20, 6),
    kind("8", "fcs-invertedindex", 10_000, 60, 4),
    kind("9", "fcs-termvector", 15_000, 120, 2),
    kind("10", "fcs-invertedindex", 20_000, 180, 1),
];

/// The reduce-heavy jobs of the FCS paper (table 3).
pub const FCS_REDUCE_HEAVY: [Kind; 10] = [
    kind("1", "fcs-terasort", 10, 2, 50),
    kind("2", "fcs-selfjoin", 20, 4, 40),
    kind("3", "fcs-sequencecount", 50, 8, 30),
    kind("4", "fcs-terasort", 100, 16, 20),
    kind("5", "fcs-selfjoin", 500, 32, 10),
    kind("6", "fcs-rankinvertedidx", 1000, 64, 8),
    kind("7", "fcs-terasort", 5000, 128, 6),
    kind("8", "fcs-sequencecount", 10_000, 256, 4),
    kind("9", "fcs-terasort", 15_000, 512, 2),
    kind("10", "fcs-sequencecount", 20_000, 1024, 1),
];

/// Returns the outline of a job of this kind.
fn outline<'a>(kind: &Kind, profiles: &'a Profiles, number: usize, at_s: f64, block: u64) -> Outline<'a> {
    Outline {
        at_s,
        name: format!("{}-{number}", kind.program),
        group: kind.group.to_owned(),
        user: "all".into(),
        maps: kind.maps,
        block,
        reduces: kind.reduces,
        profile: profiles.get(kind.program).unwrap_or_else(|| panic!("no profile {}", kind.program)),
    }
}

/// Returns the 31 jobs of the hSRTF paper, with 128 MB blocks, in the order of the paper.
pub fn hsrtf(profiles: &Profiles, seed: u64) -> Workload {
    let mut rng = Rng::of(seed, "hsrtf");
    let all = HSRTF.iter().flat_map(|kind| std::iter::repeat_n(kind, kind.jobs as usize));
    let jobs = all.enumerate().map(|(number, kind)| {
        outline(kind, profiles, number, 10.0 * number as f64, 128_000_000).plan(&mut rng)
    });
    Workload { name: "hsrtf".into(), jobs: jobs.collect() }
}

/// Returns the two jobs of the Chronos paper: 17 GB and 56 GB with 256 MB blocks, the second
/// submitted directly after the first. With wordcount, the failure of the paper comes "before the
/// reduce phase starts in order to have only map tasks as failed tasks", so reduces wait for all
/// maps.
pub fn chronos(profiles: &Profiles, program: &str, seed: u64) -> Workload {
    let mut rng = Rng::of(seed, "chronos");
    let program = if program == "sort" { "chronos-sort" } else { "chronos-wordcount" };
    let sizes = [("small", 17_000_000_000_u64, 32), ("large", 56_000_000_000, 32)];
    let jobs = sizes.iter().enumerate().map(|(number, (group, bytes, reduces))| {
        let maps = bytes.div_ceil(256_000_000) as u32;
        let kind = Kind { group, program: "", maps, reduces: *reduces, jobs: 1 };
        let outline = Outline {
            name: format!("{program}-{group}"),
            user: format!("user{number}"),
            profile: &profiles[program],
            at_s: number as f64,
            group: (*group).to_owned(),
            maps: kind.maps,
            block: 256_000_000,
            reduces: kind.reduces,
        };
        let mut plan = outline.plan(&mut rng);
        if program == "chronos-wordcount" {
            plan.slow_start = 1.0;
        }
        plan
    });
    Workload { name: program.to_owned(), jobs: jobs.collect() }
}

/// Returns `jobs_wanted` jobs of the FCS paper, in the proportions of the table and in random
/// order. Arrivals are a Poisson process with this mean gap.
pub fn fcs(profiles: &Profiles, kinds: &[Kind], gap_s: f64, jobs_wanted: u32, seed: u64) -> Workload {
    let mut rng = Rng::of(seed, "fcs");
    let all: u32 = kinds.iter().map(|kind| kind.jobs).sum();
    let share = |kind: &Kind| f64::from(kind.jobs) * f64::from(jobs_wanted) / f64::from(all);
    let mut order: Vec<&Kind> = Vec::new();
    for kind in kinds {
        order.extend(std::iter::repeat_n(kind, share(kind) as usize));
    }
    // The kinds that lost most by rounding get the jobs that are missing.
    let mut by_rest: Vec<&Kind> = kinds.iter().collect();
    by_rest.sort_by(|one, other| share(other).fract().total_cmp(&share(one).fract()));
    let missing = (jobs_wanted as usize).saturating_sub(order.len());
    order.extend(by_rest.into_iter().cycle().take(missing));
    rng.shuffle(&mut order);
    let mut at_s = 0.0;
    let mut jobs = Vec::with_capacity(order.len());
    for (number, kind) in order.into_iter().enumerate() {
        jobs.push(outline(kind, profiles, number, at_s, 128_000_000).plan(&mut rng));
        at_s += rng.exponential(gap_s);
    }
    Workload { name: "fcs".into(), jobs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    #[test]
    fn workloads_match_the_tables_of_the_papers() {
        let maps = |kinds: &[Kind]| kinds.iter().map(|kind| kind.maps * kind.jobs).sum::<u32>();
        assert_eq!(maps(&FCS_MAP_HEAVY), 137_800);
        assert_eq!(maps(&FCS_REDUCE_HEAVY), 137_800);
        let workload = fcs(&profile::built_in(), &FCS_MAP_HEAVY, 30.0, 171, 1);
        assert_eq!(workload.jobs.len(), 171);
        for jobs in [1, 7, 60, 300] {
            assert_eq!(fcs(&profile::built_in(), &FCS_REDUCE_HEAVY, 30.0, jobs, 1).jobs.len(), jobs as usize);
        }
        assert!(workload.jobs.is_sorted_by_key(|job| job.at));
        assert_eq!(fcs(&profile::built_in(), &FCS_MAP_HEAVY, 30.0, 171, 1), workload);
        let hsrtf = hsrtf(&profile::built_in(), 1);
        assert_eq!(hsrtf.jobs.len(), 31);
        assert_eq!(hsrtf.jobs[30].at, mrcore::Span::secs(300));
        let chronos = chronos(&profile::built_in(), "sort", 1);
        assert_eq!(chronos.jobs.iter().map(|job| job.maps.len()).collect::<Vec<_>>(), [67, 219]);
    }
}
