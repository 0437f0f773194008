//! What each built-in program does to its input, measured from jobs that really ran.
//!
//! A map's time is taken for `start + bytes / rate`: the straight line nearest to all maps of the program (least squares), and
//! `spread` is how far they scatter about it. Where all maps are alike no line can be told, and starting is in the rate.
//! A machine that had other work to do made tasks wait for it; their CPU time does not know of that, and is taken if
//! asked for. Bytes are those on disk and wire: of map output that compresses well, few.
//! Deliberately absent: the merge, which histories do not tell from reducing; it is in the rate of reduces. What was not measured
//! is not made up: it is left out, and a comment says so.

use super::History;
use crate::profile;
use mrcore::{Phase, metrics::stats::mean};
use std::{collections::BTreeMap, fmt::Write as _};

/// All that was seen of a program.
#[derive(Default)]
struct ProgramSamples {
    jobs: usize,
    /// Bytes and seconds of each map.
    maps: Vec<(f64, f64)>,
    reduces: usize,
    /// Bytes out of maps, out of reduces, and seconds of reduces.
    map_out: f64,
    reduce_out: f64,
    reduce_s: f64,
}

impl History {
    /// Of each built-in program, by the time its tasks took or by their CPU time: the more jobs of it, and the less alike
    /// their maps, the better. Jobs that failed do not count.
    pub fn calibrate(&self, by_processor: bool) -> Vec<Calibrated> {
        let mut programs: BTreeMap<&str, ProgramSamples> = BTreeMap::new();
        for (at, (job, program)) in self.workload.jobs.iter().zip(&self.programs).enumerate() {
            let Some(name) = program.strip_prefix("builtin:") else { continue };
            if self.real.get(at).is_some_and(|real| !real.succeeded) {
                continue;
            }
            let used = self.processor.get(at).filter(|_| by_processor);
            let seconds = |phase: Phase, at: usize, elapsed: f32| {
                let used = used.and_then(|used| used[phase].get(at)).copied().filter(|used| *used > 0.0);
                used.unwrap_or(f64::from(elapsed))
            };
            let seen = programs.entry(name).or_default();
            seen.jobs += 1;
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
        programs.into_iter().map(|(name, seen)| seen.calibrated(name)).collect()
    }
}

/// What a program does, as far as it was measured, and what from.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The program.
    pub name: String,
    /// Jobs that succeeded.
    pub jobs: usize,
    /// Their maps.
    pub maps: usize,
    /// And the input of these.
    pub bytes: f64,
    /// Their reduces.
    pub reduces: usize,
    /// Input of a map, MB a second; none if maps read nothing or took no time.
    pub map_mbps: Option<f64>,
    /// Map output for each byte of input.
    pub map_out: f64,
    /// From launch to the first record; none where maps are too much alike to tell.
    pub start_s: Option<f64>,
    /// How much maps scatter; none of one map.
    pub spread: Option<f64>,
    /// Input of a reduce, MB a second, and output for each byte of it; none if none read anything.
    pub reduce: Option<(f64, f64)>,
}

impl Calibrated {
    /// As a part of a file of profiles. Beside each figure stands how many tasks it is of; above all, what makes it doubtful.
    pub fn render(&self) -> String {
        let Self { name, jobs, maps, bytes, reduces, .. } = self;
        let mut text = format!(
            "# {name}: {}, {}, {}, {:.0} MB of input\n",
            crate::count(*jobs, "job"),
            crate::count(*maps, "map"),
            crate::count(*reduces, "reduce"),
            (bytes / 1e6).max(1.0).round()
        );
        if *maps < 8 || *bytes < 64e6 {
            text += "# little to go by: run more or larger jobs of it\n";
        }
        if self.spread.is_some_and(|spread| spread > 0.3) {
            text += "# its maps differ much for their size: was the machine busy? (--processor-time)\n";
        }
        let Some(map_mbps) = self.map_mbps else {
            return text + "# no profile: its maps read nothing, or took no time\n";
        };
        let profile = self.lines(map_mbps);
        if self.reduce.is_some() || profile::built_in().contains_key(name) {
            return text + &profile;
        }
        text += "# not to be used as it is: no reduce was measured, and nothing is built in that would stand in for it\n";
        profile.lines().fold(text, |text, line| text + "# " + line + "\n")
    }

    fn lines(&self, map_mbps: f64) -> String {
        let (maps, reduces) = (crate::count(self.maps, "map"), crate::count(self.reduces, "reduce"));
        let mut text = format!("[{}]\n", self.name);
        let mut say = |key: &str, value: f64, of: &str| {
            // Three digits are more than enough, and what is next to nothing is nothing.
            let value =
                format!("{value:.2e}").parse::<f64>().ok().filter(|value| *value > 1e-9).unwrap_or(0.0);
            let _ = writeln!(text, "{:<24}# {of}", format!("{key} = {value:?}"));
        };
        say("map_mbps", map_mbps, &maps);
        say("map_out", self.map_out, &maps);
        if let Some((rate, out)) = self.reduce {
            say("reduce_mbps", rate, &reduces);
            say("reduce_out", out, &reduces);
            say("merge_mbps", 1e6, "not measured: merging is in reduce_mbps, and this adds nothing to it");
        }
        match self.start_s {
            Some(start_s) => say("start_s", start_s, &maps),
            None => say("start_s", 0.0, "not measured: maps are too much alike; it is in map_mbps"),
        }
        if let Some(spread) = self.spread {
            say("spread", spread, &maps);
        } else {
            text += "# spread: not measured, of one map\n";
        }
        if self.reduce.is_none() {
            text += "# reduce_mbps, reduce_out, merge_mbps: not measured, for no reduce read anything; as they are built in\n";
        }
        text
    }
}

impl ProgramSamples {
    fn calibrated(self, name: &str) -> Calibrated {
        let read: f64 = self.maps.iter().map(|(bytes, _)| bytes).sum();
        let (start_s, s_per_byte) = line(&self.maps);
        let off = self.maps.iter().filter(|(_, seconds)| *seconds > 0.0).map(|(bytes, seconds)| {
            let expected = (start_s.unwrap_or(0.0) + bytes * s_per_byte).max(1e-6);
            (seconds / expected).ln().powi(2)
        });
        let off: Vec<f64> = off.collect();
        let rate = |bytes: f64, seconds: f64| {
            (bytes >= 1.0 && seconds >= 1e-6).then(|| (bytes / 1e6 / seconds).max(0.001))
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
        }
    }
}

/// Seconds at no bytes, if they can be told from those for each byte: the nearest line that does not begin below 0 nor fall.
fn line(maps: &[(f64, f64)]) -> (Option<f64>, f64) {
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

    fn close(got: Option<f64>, wanted: f64) {
        assert!(got.is_some_and(|got| (got - wanted).abs() < 1e-6), "{got:?} is not {wanted}");
    }

    fn seen() -> ProgramSamples {
        // Half a second and 10 MB/s: 1.5 s for 10 MB, 2.5 s for 20 MB, 10.5 s for 100 MB.
        let maps = vec![(10e6, 1.5), (20e6, 2.5), (100e6, 10.5)];
        ProgramSamples { jobs: 1, maps, reduces: 2, map_out: 65e6, reduce_out: 13e6, reduce_s: 6.5 }
    }

    #[test]
    fn start_time_is_separated_from_read_time() {
        let one = seen().calibrated("wordcount");
        close(one.start_s, 0.5);
        close(one.map_mbps, 10.0);
        close(one.spread, 0.0);
        close(Some(one.map_out), 0.5);
        close(one.reduce.map(|reduce| reduce.0), 10.0);
        close(one.reduce.map(|reduce| reduce.1), 0.2);
    }

    #[test]
    fn equal_maps_give_only_a_rate() {
        // 10 and 40 s for the same: 25 s on average, and both off by a factor.
        let seen = ProgramSamples { maps: vec![(100e6, 10.0), (100e6, 40.0)], ..ProgramSamples::default() };
        let one = seen.calibrated("grep");
        assert_eq!((one.start_s, one.reduce), (None, None));
        close(one.map_mbps, 4.0);
        close(one.spread, f64::midpoint(0.4_f64.ln().powi(2), 1.6_f64.ln().powi(2)).sqrt());
        // A line that would begin below nothing is none.
        assert_eq!(line(&[(10e6, 0.1), (20e6, 10.0)]).0, None);
    }

    #[test]
    fn calibrated_profile_round_trips_with_its_source() {
        let text = seen().calibrated("wordcount").render();
        assert!(
            text.starts_with("# wordcount: 1 job, 3 maps, 2 reduces, 130 MB of input\n# little to go by"),
            "{text}"
        );
        assert!(text.contains("\nmap_mbps = 10.0         # 3 maps\n") && !text.contains("busy"), "{text}");
        assert!(text.contains("\nreduce_mbps = 10.0      # 2 reduces\n"), "{text}");
        assert!(text.contains("\nmerge_mbps = 1000000.0  # not measured"), "{text}");
        let read = profile::parse(&text).expect("it reads")["wordcount"];
        close(Some(read.map_mbps), 10.0);
        let busy = Calibrated { spread: Some(0.6), maps: 100, ..seen().calibrated("wordcount") }.render();
        assert!(busy.contains("busy") && !busy.contains("little"), "{busy}");
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
        close(Some(read.reduce_mbps), profile::built_in()["grep"].reduce_mbps);
        let unheard_of = map_only("own");
        assert!(
            unheard_of.contains("not to be used as it is")
                && profile::parse(&unheard_of).expect("it reads").is_empty()
        );
        let idle = ProgramSamples { maps: vec![(0.0, 3.0)], ..ProgramSamples::default() }
            .calibrated("grep")
            .render();
        assert!(idle.ends_with("# no profile: its maps read nothing, or took no time\n"), "{idle}");
    }
}
