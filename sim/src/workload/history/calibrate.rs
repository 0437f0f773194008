//! Measures the profile of each built-in program from the histories of real jobs.
//!
//! The time of a map is modelled as `start + bytes / rate`, fitted by least squares over all maps
//! of the program. `spread` is the deviation from that line. If all maps have the same size,
//! `start` cannot be determined and is part of the rate. On a busy machine the durations of tasks
//! include waiting; CPU time does not, and is used on request. Bytes are those on disk and network,
//! that is, after compression.
//!
//! The rate of merging is not measured: histories do not separate merging from reducing, so merging
//! is part of the rate of reduces. Values that were not measured are omitted, with a comment.

use super::{Disturbances, History};
use crate::profile::{self, Profile};
use mrcore::{Phase, job::Program, metrics::stats::mean};
use std::{collections::BTreeMap, fmt::Write as _};

/// Rate of merging in a measured profile, MB per second: so high that it takes no time, because it is
/// part of the rate of reduces.
const MERGE_INCLUDED_MBPS: f64 = 1e6;

/// With less input, most of the time of tasks is not spent on it.
const TINY_BYTES: f64 = 1e6;

/// Returns a number of bytes in MB, or in smaller units with all digits that matter.
fn megabytes(bytes: f64) -> String {
    match bytes {
        ..1e3 => format!("{bytes:.0} bytes"),
        ..1e6 => format!("{:.1} kB", bytes / 1e3),
        ..1e7 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.0} MB", bytes / 1e6),
    }
}

/// All samples of a program.
#[derive(Default)]
struct ProgramSamples {
    jobs: usize,
    /// Bytes and seconds of each map.
    maps: Vec<(f64, f64)>,
    reduces: usize,
    /// Total output bytes of maps.
    map_out: f64,
    /// Total output bytes of reduces.
    reduce_out: f64,
    /// Total seconds of reduces.
    reduce_s: f64,
    disturbances: Disturbances,
}

impl History {
    /// Measures each built-in program, from the durations of its tasks or from their CPU time. The
    /// result is better with more jobs and with maps of different sizes. Failed jobs are ignored.
    pub fn calibrate(&self, by_cpu_time: bool) -> Vec<Calibrated> {
        let mut programs: BTreeMap<&str, ProgramSamples> = BTreeMap::new();
        for (at, (job, program)) in self.workload.jobs.iter().zip(&self.programs).enumerate() {
            let Program::Builtin(name) = program else { continue };
            if self.real.get(at).is_some_and(|real| !real.succeeded) {
                continue;
            }
            let used = self.cpu_s.get(at).filter(|_| by_cpu_time);
            let seconds = |phase: Phase, at: usize, elapsed: f32| {
                let used = used.and_then(|used| used[phase].get(at)).copied().filter(|used| *used > 0.0);
                used.unwrap_or(f64::from(elapsed))
            };
            let seen = programs.entry(name).or_default();
            seen.jobs += 1;
            seen.disturbances.add(self.disturbances.get(at).copied().unwrap_or_default());
            let read: f64 = job.maps.iter().map(|map| map.bytes as f64).sum();
            let maps = job.maps.iter().enumerate();
            seen.maps.extend(maps.map(|(at, map)| (map.bytes as f64, seconds(Phase::Map, at, map.work_s))));
            seen.map_out += read * job.map_out;
            seen.reduces += job.reduces.len();
            seen.reduce_out += read * job.map_out * job.reduce_out;
            let reduces = job.reduces.iter().enumerate();
            seen.reduce_s +=
                reduces.map(|(at, reduce)| seconds(Phase::Reduce, at, reduce.fixed_s)).sum::<f64>();
        }
        let calibrated =
            |(name, seen): (&str, ProgramSamples)| Calibrated { by_cpu_time, ..seen.calibrated(name) };
        programs.into_iter().map(calibrated).collect()
    }
}

/// The measured profile of a program, and the number of samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// Name of the program.
    pub name: String,
    /// Number of jobs that succeeded.
    pub jobs: usize,
    /// Number of maps of these jobs.
    pub maps: usize,
    /// Input bytes of these maps.
    pub bytes: f64,
    /// Number of reduces of these jobs.
    pub reduces: usize,
    /// Input rate of a map, MB per second; `None` if maps read no bytes or took no time.
    pub map_mbps: Option<f64>,
    /// Bytes of map output per byte of input.
    pub map_out: f64,
    /// Seconds from launch to the first record; `None` if all maps have similar sizes.
    pub start_s: Option<f64>,
    /// Variation of map times; `None` for a single map.
    pub spread: Option<f64>,
    /// Input rate of a reduce in MB per second, and output bytes per input byte; `None` if no
    /// reduce read anything.
    pub reduce: Option<(f64, f64)>,
    /// Whether seconds are CPU time.
    pub by_cpu_time: bool,
    /// What disturbed these tasks.
    pub disturbances: Disturbances,
}

impl Calibrated {
    /// Returns the profile; `None` if there was too little input to measure maps or reduces. Reduces
    /// include their merge. Maps of equal sizes do not show the time that a start takes; it is 0 then.
    pub fn profile(&self) -> Option<Profile> {
        let (reduce_mbps, reduce_out) = self.reduce?;
        Some(Profile {
            map_mbps: self.map_mbps?,
            map_out: self.map_out,
            reduce_mbps,
            reduce_out,
            merge_mbps: MERGE_INCLUDED_MBPS,
            start_s: self.start_s.unwrap_or(0.0),
            spread: self.spread.unwrap_or(0.0),
        })
    }

    /// Returns the profile as TOML. A comment after each value gives the number of measured tasks;
    /// comments above the profile contain warnings.
    pub fn render(&self) -> String {
        let Self { name, jobs, maps, bytes, reduces, .. } = self;
        let mut text = format!(
            "# {name}: {}, {}, {}, {} of input\n",
            crate::count(*jobs, "job"),
            crate::count(*maps, "map"),
            crate::count(*reduces, "reduce"),
            megabytes(*bytes)
        );
        if *bytes < TINY_BYTES {
            text += "# doubtful, because of so little input: its rates are those of starting a task\n";
        }
        if *maps < 8 || *bytes < 64e6 {
            text += "# few samples: run more or larger jobs of this program\n";
        }
        if self.spread.is_some_and(|spread| spread > 0.3) {
            text += "# map times vary much for their size";
            text += if self.by_cpu_time { "\n" } else { ": if the machine was busy, use --cpu-time\n" };
        }
        if let Some(what) = self.disturbances.describe() {
            let _ = writeln!(text, "# doubtful, because of {what}: measure undisturbed jobs");
        }
        let Some(map_mbps) = self.map_mbps else {
            return text + "# no profile: the maps read too little to measure a rate, or took no time\n";
        };
        let profile = self.profile_lines(map_mbps);
        if self.reduce.is_some() || profile::built_in().contains_key(name) {
            return text + &profile;
        }
        text += "# incomplete: no reduce was measured, and there is no built-in profile to complete it\n";
        profile.lines().fold(text, |text, line| text + "# " + line + "\n")
    }

    fn profile_lines(&self, map_mbps: f64) -> String {
        let (maps, reduces) = (crate::count(self.maps, "map"), crate::count(self.reduces, "reduce"));
        let mut text = format!("[{}]\n", self.name);
        let mut say = |key: &str, value: f64, of: &str| {
            // Three digits are enough. Values below 1e-9 are written as 0.
            let value =
                format!("{value:.2e}").parse::<f64>().ok().filter(|value| *value > 1e-9).unwrap_or(0.0);
            let _ = writeln!(text, "{:<24}# {of}", format!("{key} = {value:?}"));
        };
        say("map_mbps", map_mbps, &maps);
        say("map_out", self.map_out, &maps);
        if let Some((rate, out)) = self.reduce {
            say("reduce_mbps", rate, &reduces);
            say("reduce_out", out, &reduces);
            say("merge_mbps", MERGE_INCLUDED_MBPS, "not measured: merging is part of reduce_mbps");
        }
        match self.start_s {
            Some(start_s) => say("start_s", start_s, &maps),
            None => say("start_s", 0.0, "not measured: maps have similar sizes; it is part of map_mbps"),
        }
        if let Some(spread) = self.spread {
            say("spread", spread, &maps);
        } else {
            text += "# spread: not measured, there is only one map\n";
        }
        if self.reduce.is_none() {
            text += "# reduce_mbps, reduce_out, merge_mbps: not measured, because reduces read nothing or too little; the built-in values apply\n";
        }
        text
    }
}

impl Disturbances {
    /// Returns the numbers above 0 with their nouns; `None` if there are none.
    fn describe(&self) -> Option<String> {
        let Self { failed, killed, split, paused, outputs_lost } = *self;
        let of = |number: u32, noun: &str| (number > 0).then(|| crate::count(number as usize, noun));
        let parts = [
            of(failed, "failed attempt"),
            of(killed, "killed attempt"),
            of(split, "split map"),
            of(paused, "paused reduce"),
            of(outputs_lost, "lost map output"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

impl ProgramSamples {
    fn calibrated(self, name: &str) -> Calibrated {
        let read: f64 = self.maps.iter().map(|(bytes, _)| bytes).sum();
        let (start_s, s_per_byte) = fit_line(&self.maps);
        let off = self.maps.iter().filter(|(_, seconds)| *seconds > 0.0).map(|(bytes, seconds)| {
            let expected = (start_s.unwrap_or(0.0) + bytes * s_per_byte).max(1e-6);
            (seconds / expected).ln().powi(2)
        });
        let off: Vec<f64> = off.collect();
        let rate = |bytes: f64, seconds: f64| {
            let rate = (bytes >= 1.0 && seconds >= 1e-6).then(|| bytes / 1e6 / seconds);
            rate.filter(|rate| *rate >= profile::RATES[0])
        };
        Calibrated {
            name: name.to_owned(),
            jobs: self.jobs,
            maps: self.maps.len(),
            bytes: read,
            reduces: self.reduces,
            map_mbps: rate(read, read * s_per_byte),
            map_out: self.map_out / read.max(1.0),
            start_s,
            spread: (off.len() > 1).then(|| mean(&off).sqrt()),
            reduce: rate(self.map_out, self.reduce_s).map(|rate| (rate, self.reduce_out / self.map_out)),
            by_cpu_time: false,
            disturbances: self.disturbances,
        }
    }
}

/// Fits a line through the maps: seconds as a function of bytes. Returns the seconds at zero bytes
/// and the seconds per byte. If the line would start below 0 or not rise, returns `None` and the
/// total seconds divided by the total bytes.
fn fit_line(maps: &[(f64, f64)]) -> (Option<f64>, f64) {
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
    if slope > 0.0 && start >= 0.0 { (Some(start), slope) } else { (None, seconds / bytes.max(1.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(got: Option<f64>, wanted: f64) {
        assert!(got.is_some_and(|got| (got - wanted).abs() < 1e-6), "{got:?} is not {wanted}");
    }

    fn samples() -> ProgramSamples {
        // Start of 0.5 s and rate of 10 MB/s: 1.5 s for 10 MB, 2.5 s for 20 MB, 10.5 s for 100 MB.
        let maps = vec![(10e6, 1.5), (20e6, 2.5), (100e6, 10.5)];
        ProgramSamples {
            jobs: 1,
            maps,
            reduces: 2,
            map_out: 65e6,
            reduce_out: 13e6,
            reduce_s: 6.5,
            ..ProgramSamples::default()
        }
    }

    #[test]
    fn start_time_is_separated_from_read_time() {
        let one = samples().calibrated("wordcount");
        assert_close(one.start_s, 0.5);
        assert_close(one.map_mbps, 10.0);
        assert_close(one.spread, 0.0);
        assert_close(Some(one.map_out), 0.5);
        assert_close(one.reduce.map(|reduce| reduce.0), 10.0);
        assert_close(one.reduce.map(|reduce| reduce.1), 0.2);
    }

    #[test]
    fn maps_of_equal_size_give_a_rate_but_no_start_time() {
        // 10 and 40 s for the same size: 25 s on average, and both deviate by a factor.
        let seen = ProgramSamples { maps: vec![(100e6, 10.0), (100e6, 40.0)], ..ProgramSamples::default() };
        let one = seen.calibrated("grep");
        assert_eq!((one.start_s, one.reduce), (None, None));
        assert_close(one.map_mbps, 4.0);
        assert_close(one.spread, f64::midpoint(0.4_f64.ln().powi(2), 1.6_f64.ln().powi(2)).sqrt());
        // A line that would start below 0 is rejected.
        assert_eq!(fit_line(&[(10e6, 0.1), (20e6, 10.0)]).0, None);
    }

    #[test]
    fn rendered_profile_states_its_samples_and_parses_again() {
        let text = samples().calibrated("wordcount").render();
        assert!(
            text.starts_with("# wordcount: 1 job, 3 maps, 2 reduces, 130 MB of input\n# few samples"),
            "{text}"
        );
        assert!(text.contains("\nmap_mbps = 10.0         # 3 maps\n") && !text.contains("busy"), "{text}");
        assert!(text.contains("\nreduce_mbps = 10.0      # 2 reduces\n"), "{text}");
        assert!(text.contains("\nmerge_mbps = 1000000.0  # not measured"), "{text}");
        let read = profile::parse(&text).expect("it reads")["wordcount"];
        assert_close(Some(read.map_mbps), 10.0);
        let busy = Calibrated { spread: Some(0.6), maps: 100, ..samples().calibrated("wordcount") }.render();
        assert!(busy.contains("use --cpu-time") && !busy.contains("few samples"), "{busy}");
        let busy = Calibrated { spread: Some(0.6), by_cpu_time: true, ..samples().calibrated("wordcount") };
        assert!(!busy.render().contains("--cpu-time"), "{}", busy.render());
        assert!(!text.contains("doubtful"), "{text}");
        let disturbances = Disturbances { killed: 2, outputs_lost: 1, ..Disturbances::default() };
        let doubtful = Calibrated { disturbances, ..samples().calibrated("wordcount") }.render();
        let why = "# doubtful, because of 2 killed attempts, 1 lost map output: ";
        assert!(doubtful.contains(why), "{doubtful}");
    }

    #[test]
    fn unmeasured_values_are_omitted() {
        let map_only = |name: &str| {
            ProgramSamples { jobs: 1, maps: vec![(100e6, 10.0)], map_out: 5e6, ..ProgramSamples::default() }
                .calibrated(name)
                .render()
        };
        let text = map_only("grep");
        for unknown in ["\nreduce_mbps", "\nreduce_out", "\nmerge_mbps", "\nspread"] {
            assert!(!text.contains(unknown), "{unknown} is not known: {text}");
        }
        assert!(text.contains("start_s = 0.0           # not measured"), "{text}");
        let read = profile::parse(&text).expect("it reads")["grep"];
        assert_close(Some(read.reduce_mbps), profile::built_in()["grep"].reduce_mbps);
        let unknown = map_only("own");
        assert!(
            unknown.contains("incomplete: no reduce")
                && profile::parse(&unknown).expect("it reads").is_empty()
        );
        let idle = ProgramSamples { maps: vec![(0.0, 3.0)], ..ProgramSamples::default() }
            .calibrated("grep")
            .render();
        assert!(idle.contains("0 bytes of input") && idle.contains("# no profile: the maps read too little"));
    }

    #[test]
    fn tiny_input_is_stated_and_gives_no_invented_rate() {
        let of = |maps: Vec<(f64, f64)>| {
            let seen = ProgramSamples { jobs: 1, maps, ..ProgramSamples::default() };
            seen.calibrated("grep")
        };
        let small = of(vec![(2_500.0, 0.1)]);
        assert_close(small.map_mbps, 0.025);
        let text = small.render();
        assert!(text.starts_with("# grep: 1 job, 1 map, 0 reduces, 2.5 kB of input\n# doubtful"), "{text}");
        // 100 bytes in 10 s would be 0.00001 MB/s.
        let tiny = of(vec![(100.0, 10.0)]);
        assert_eq!(tiny.map_mbps, None);
        assert!(tiny.render().contains("100 bytes of input") && tiny.render().contains("# no profile: "));
        assert!(!of(vec![(100e6, 10.0)]).render().contains("so little input"));
    }
}
