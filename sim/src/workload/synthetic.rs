//! Generated workloads: jobs with heavy-tailed sizes, and job mixes like those of `GridMix`, with
//! Poisson or bursty arrivals.

use super::{Outline, Workload};
use crate::{profile::Profiles, rng::Rng};

/// Distribution of submission times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// A Poisson process.
    Poisson,
    /// Bursts of ten jobs with pauses.
    Bursty,
}

/// The kinds of `GridMix` jobs: name, profile, and the relative frequencies of small, medium and
/// large jobs.
const GRIDMIX: [(&str, &str, [u32; 3]); 6] = [
    ("stream-sort", "fcs-terasort", [10, 4, 1]),
    ("java-sort", "fcs-terasort", [8, 4, 1]),
    ("combiner", "fcs-wordcount", [11, 4, 1]),
    ("monster-query", "fcs-selfjoin", [7, 5, 1]),
    ("webdata-scan", "fcs-invertedindex", [24, 12, 2]),
    ("webdata-sort", "fcs-terasort", [7, 1, 1]),
];
/// Numbers of maps and reduces of a small, a medium and a large job.
const SIZES: [(u32, u32); 3] = [(3, 1), (30, 4), (300, 16)];

/// Returns the seconds until the next job is submitted.
fn next_arrival(arrivals: Arrivals, number: u32, gap_s: f64, rng: &mut Rng) -> f64 {
    match arrivals {
        Arrivals::Poisson => rng.exponential(gap_s),
        Arrivals::Bursty if (number + 1).is_multiple_of(10) => rng.exponential(gap_s * 10.0),
        Arrivals::Bursty => 0.1,
    }
}

/// Returns `jobs` jobs like those of `GridMix`, with this mean gap between submissions.
pub fn gridmix(profiles: &Profiles, arrivals: Arrivals, jobs: u32, gap_s: f64, seed: u64) -> Workload {
    let mut rng = Rng::of(seed, "gridmix");
    let all: u32 = GRIDMIX.iter().flat_map(|(_, _, often)| often).sum();
    let mut at_s = 0.0;
    let mut plans = Vec::with_capacity(jobs as usize);
    for number in 0..jobs {
        let mut draw = rng.below(u64::from(all)) as u32;
        let kinds = GRIDMIX.iter().flat_map(|(name, program, often)| {
            SIZES
                .iter()
                .zip(["small", "medium", "large"])
                .zip(often)
                .map(move |((size, word), often)| (*name, *program, *size, word, *often))
        });
        for (name, program, (maps, reduces), word, often) in kinds {
            if draw < often {
                let outline = Outline {
                    at_s,
                    name: format!("{name}-{number}"),
                    group: word.to_owned(),
                    user: format!("user{}", number % 4),
                    maps,
                    block: 128_000_000,
                    reduces,
                    profile: &profiles[program],
                };
                plans.push(outline.plan(&mut rng));
                break;
            }
            draw -= often;
        }
        at_s += next_arrival(arrivals, number, gap_s, &mut rng);
    }
    Workload { name: "gridmix".into(), jobs: plans }
}

/// Returns `jobs` jobs of several programs and users, with log-normal, heavy-tailed sizes.
pub fn mixed(profiles: &Profiles, arrivals: Arrivals, jobs: u32, gap_s: f64, seed: u64) -> Workload {
    let mut rng = Rng::of(seed, "mixed");
    let programs = ["wordcount", "grep", "sort"];
    let mut at_s = 0.0;
    let mut plans = Vec::with_capacity(jobs as usize);
    for number in 0..jobs {
        let maps = (4.0 * rng.spread(1.5)).round().clamp(1.0, 2000.0) as u32;
        let program = programs[rng.index(programs.len())];
        let outline = Outline {
            at_s,
            name: format!("{program}-{number}"),
            group: program.to_owned(),
            user: format!("user{}", number % 4),
            maps,
            block: 64_000_000,
            reduces: maps.div_ceil(8).min(64),
            profile: &profiles[program],
        };
        plans.push(outline.plan(&mut rng));
        at_s += next_arrival(arrivals, number, gap_s, &mut rng);
    }
    Workload { name: "mixed".into(), jobs: plans }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    #[test]
    fn workload_has_the_requested_number_of_jobs_and_depends_only_on_the_seed() {
        for arrivals in [Arrivals::Poisson, Arrivals::Bursty] {
            let one = gridmix(&profile::built_in(), arrivals, 80, 30.0, 7);
            assert_eq!(one.jobs.len(), 80);
            assert_eq!(one, gridmix(&profile::built_in(), arrivals, 80, 30.0, 7));
            let last_s = one.jobs[79].at.as_secs_f64();
            assert!((900.0..5000.0).contains(&last_s), "{last_s}");
            assert_eq!(mixed(&profile::built_in(), arrivals, 20, 5.0, 7).jobs.len(), 20);
        }
    }
}
