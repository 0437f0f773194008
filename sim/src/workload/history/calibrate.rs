//! What each built-in program does to its input, measured from jobs that really ran.
//!
//! A map's time is taken for `start + bytes / rate`: the straight line nearest to all maps of the program (least squares), and
//! `spread` is how far they scatter about it. Where all maps are alike no line can be told, and starting is in the rate.
//! A machine that had other work to do made tasks wait for it; their processor time does not know of that, and is taken if
//! asked for. Bytes are those on disk and wire: of map output that compresses well, few.
//! Deliberately absent: the merge, which histories do not tell from reducing; it is in the rate of reduces.

use super::History;
use crate::profile::{Profile, render};
use mrcore::Phase;
use std::collections::BTreeMap;

/// All that was seen of a program.
#[derive(Default)]
struct Seen {
    jobs: usize,
    /// Bytes and seconds of each map.
    maps: Vec<(f64, f64)>,
    /// Bytes out of maps, out of reduces, and seconds of reduces.
    map_out: f64,
    reduce_out: f64,
    reduce_s: f64,
}

impl History {
    /// Of each built-in program, by the time its tasks took or by their processor time: the more jobs of it, and the less alike
    /// their maps, the better. Jobs that failed do not count.
    pub fn calibrate(&self, by_processor: bool) -> Vec<Calibrated> {
        let mut programs: BTreeMap<&str, Seen> = BTreeMap::new();
        for (at, (job, program)) in self.workload.jobs.iter().zip(&self.programs).enumerate() {
            let Some(name) = program.strip_prefix("builtin:") else { continue };
            if self.real.get(at).is_some_and(|real| !real.succeeded) {
                continue;
            }
            let used = self.processor.get(at).filter(|_| by_processor);
            let seconds = |phase: Phase, at: usize, took: f32| {
                let used = used.and_then(|used| used[phase].get(at)).copied().filter(|used| *used > 0.0);
                used.unwrap_or(f64::from(took))
            };
            let seen = programs.entry(name).or_default();
            seen.jobs += 1;
            let read: f64 = job.maps.iter().map(|map| map.bytes as f64).sum();
            let maps = job.maps.iter().enumerate();
            seen.maps.extend(maps.map(|(at, map)| (map.bytes as f64, seconds(Phase::Map, at, map.work_s))));
            seen.map_out += read * job.map_out;
            seen.reduce_out += read * job.map_out * job.reduce_out;
            let reduces = job.reduces.iter().enumerate();
            seen.reduce_s +=
                reduces.map(|(at, reduce)| seconds(Phase::Reduce, at, reduce.fixed_s)).sum::<f64>();
        }
        let one = |(name, seen): (&str, Seen)| Calibrated {
            name: name.to_owned(),
            profile: seen.profile(),
            jobs: seen.jobs,
            maps: seen.maps.len(),
            bytes: seen.maps.iter().map(|(bytes, _)| bytes).sum(),
        };
        programs.into_iter().map(one).collect()
    }
}

/// A profile, and what it was measured from.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The program.
    pub name: String,
    /// What it does.
    pub profile: Profile,
    /// Jobs that succeeded.
    pub jobs: usize,
    /// Their maps.
    pub maps: usize,
    /// And the input of these.
    pub bytes: f64,
}

impl Calibrated {
    /// As a part of a file of profiles. Above it stands what it was measured from, and what makes it doubtful.
    pub fn render(&self) -> String {
        let Self { name, profile, jobs, maps, bytes } = self;
        let mut text =
            format!("# {jobs} jobs, {maps} maps, {:.0} MB of input\n", (bytes / 1e6).max(1.0).round());
        if *maps < 8 || *bytes < 64e6 {
            text += "# little to go by: run more or larger jobs of it\n";
        }
        if profile.spread > 0.3 {
            text += "# its maps differ much for their size: was the machine busy? (--processor-time)\n";
        }
        text + &render(&BTreeMap::from([(name.clone(), rounded(*profile))]))
    }
}

/// Three digits are more than enough.
fn rounded(profile: Profile) -> Profile {
    let round = |value: f64| format!("{value:.2e}").parse::<f64>().unwrap_or(value);
    let Profile { map_mbps, map_out, reduce_mbps, reduce_out, merge_mbps, start_s, spread } = profile;
    Profile {
        map_mbps: round(map_mbps),
        map_out: round(map_out),
        reduce_mbps: round(reduce_mbps),
        reduce_out: round(reduce_out),
        merge_mbps,
        start_s: round(start_s),
        spread: round(spread),
    }
}

impl Seen {
    fn profile(&self) -> Profile {
        let read: f64 = self.maps.iter().map(|(bytes, _)| bytes).sum();
        let (start_s, s_per_byte) = line(&self.maps);
        let off = self.maps.iter().filter(|(_, seconds)| *seconds > 0.0).map(|(bytes, seconds)| {
            let expected = (start_s + bytes * s_per_byte).max(1e-6);
            (seconds / expected).ln().powi(2)
        });
        let off: Vec<f64> = off.collect();
        Profile {
            map_mbps: (1e-6 / s_per_byte.max(1e-12)).clamp(0.001, 1e6),
            map_out: self.map_out / read.max(1.0),
            reduce_mbps: (self.map_out / 1e6 / self.reduce_s.max(1e-3)).max(0.001),
            reduce_out: if self.map_out > 0.0 { self.reduce_out / self.map_out } else { 1.0 },
            merge_mbps: 1e6,
            start_s,
            spread: mrcore::metrics::stats::mean(&off).sqrt(),
        }
    }
}

/// Seconds at no bytes, and for each byte: the nearest line that does not begin below 0 nor fall.
fn line(maps: &[(f64, f64)]) -> (f64, f64) {
    let count = maps.len().max(1) as f64;
    let (bytes, seconds) = maps.iter().fold((0.0, 0.0), |sum, map| (sum.0 + map.0, sum.1 + map.1));
    let (mean_bytes, mean_seconds) = (bytes / count, seconds / count);
    let (mut square, mut product) = (0.0, 0.0);
    for (bytes, seconds) in maps {
        square += (bytes - mean_bytes).powi(2);
        product += (bytes - mean_bytes) * (seconds - mean_seconds);
    }
    let slope = if square > 0.0 { product / square } else { 0.0 };
    let start = mean_seconds - slope * mean_bytes;
    if slope > 0.0 && start >= 0.0 { (start, slope) } else { (0.0, seconds / bytes.max(1.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 1e-6, "{got} is not {wanted}");
    }

    #[test]
    fn starting_is_told_from_reading() {
        // Half a second and 10 MB/s: 1.5 s for 10 MB, 2.5 s for 20 MB, 10.5 s for 100 MB.
        let maps = vec![(10e6, 1.5), (20e6, 2.5), (100e6, 10.5)];
        let seen = Seen { jobs: 1, maps, map_out: 65e6, reduce_out: 13e6, reduce_s: 6.5 };
        let profile = seen.profile();
        close(profile.start_s, 0.5);
        close(profile.map_mbps, 10.0);
        close(profile.spread, 0.0);
        close(profile.map_out, 0.5);
        close(profile.reduce_mbps, 10.0);
        close(profile.reduce_out, 0.2);
    }

    #[test]
    fn maps_that_are_alike_tell_a_rate_alone() {
        // 10 and 40 s for the same: 25 s on average, and both off by a factor.
        let seen = Seen { maps: vec![(100e6, 10.0), (100e6, 40.0)], ..Seen::default() };
        let profile = seen.profile();
        close(profile.start_s, 0.0);
        close(profile.map_mbps, 4.0);
        close(profile.spread, f64::midpoint(0.4_f64.ln().powi(2), 1.6_f64.ln().powi(2)).sqrt());
        // A line that would begin below nothing is none.
        close(line(&[(10e6, 0.1), (20e6, 10.0)]).0, 0.0);
    }

    #[test]
    fn what_it_is_of_stands_above_it_and_it_reads_back() {
        let profile = crate::profile::built_in()["wordcount"];
        let one = Calibrated { name: "wordcount".into(), profile, jobs: 1, maps: 3, bytes: 12e6 };
        let text = one.render();
        assert!(text.starts_with("# 1 jobs, 3 maps, 12 MB of input\n# little to go by"), "{text}");
        assert!(!text.contains("busy"), "{text}");
        let busy = Calibrated { profile: Profile { spread: 0.6, ..profile }, maps: 100, bytes: 1e9, ..one };
        let text = busy.render();
        assert!(text.contains("busy") && !text.contains("little"), "{text}");
        let read = crate::profile::parse(&text).expect("it reads")["wordcount"];
        assert!((read.map_mbps / profile.map_mbps - 1.0).abs() < 0.01);
    }
}
