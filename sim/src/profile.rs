//! Profiles of programs: rates and selectivities (bytes of output per byte of input), measured or
//! taken from a paper.
//!
//! The run time of a task is computed from its bytes and a profile. The built-in profiles are in
//! `profiles.toml`. A profile file of the user has the same form and overrides them by name.

use crate::toml_file::{self, line_at};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::Spanned;

/// Rates and selectivities of one program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Profile {
    /// Input rate of a map, MB per second, on a machine of speed 1.
    pub map_mbps: f64,
    /// Bytes of map output per byte of input, after the combiner.
    pub map_out: f64,
    /// Input rate of a reduce, MB per second, on a machine of speed 1.
    pub reduce_mbps: f64,
    /// Bytes of reduce output per byte of its input.
    pub reduce_out: f64,
    /// Rate of the merge before the reduce, MB per second.
    pub merge_mbps: f64,
    /// Seconds from launch to the first record.
    pub start_s: f64,
    /// Variation of task times: the sigma of a log-normal distribution.
    pub spread: f64,
}

/// The valid rates, MB per second, bytes of output per byte of input, seconds of a start, and spreads.
/// Other values are mistakes in the unit, and durations would not fit the simulated time.
pub(crate) const RATES: [f64; 2] = [0.001, 1e9];
const OUT_MAX: f64 = 1e4;
const START_S_MAX: f64 = 86_400.0;
const SPREAD_MAX: f64 = 3.0;

/// Profiles by name of the program.
pub type Profiles = BTreeMap<String, Profile>;

/// Why a file of profiles cannot be used, with the line of the file.
#[derive(Debug, thiserror::Error)]
#[error("{line}: {what}")]
pub struct ProfileError {
    line: usize,
    what: String,
}

/// A profile as written in a file. Missing fields are taken from the built-in profile of that name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileRecord {
    map_mbps: Option<f64>,
    map_out: Option<f64>,
    reduce_mbps: Option<f64>,
    reduce_out: Option<f64>,
    merge_mbps: Option<f64>,
    start_s: Option<f64>,
    spread: Option<f64>,
}

impl ProfileRecord {
    /// Takes the missing fields of the record from `base`.
    fn complete_with(self, base: Option<&Profile>) -> Result<Profile, String> {
        let of = |given: Option<f64>, field: &str, built_in: fn(&Profile) -> f64| {
            let missing = || format!("{field} is missing, and no profile of that name is built in");
            given.or_else(|| base.map(built_in)).ok_or_else(missing)
        };
        Ok(Profile {
            map_mbps: of(self.map_mbps, "map_mbps", |base| base.map_mbps)?,
            map_out: of(self.map_out, "map_out", |base| base.map_out)?,
            reduce_mbps: of(self.reduce_mbps, "reduce_mbps", |base| base.reduce_mbps)?,
            reduce_out: of(self.reduce_out, "reduce_out", |base| base.reduce_out)?,
            merge_mbps: of(self.merge_mbps, "merge_mbps", |base| base.merge_mbps)?,
            start_s: of(self.start_s, "start_s", |base| base.start_s)?,
            spread: self.spread.or_else(|| base.map(|base| base.spread)).unwrap_or(0.0),
        })
    }
}

/// Returns the built-in profiles.
pub fn built_in() -> Profiles {
    parse_over(include_str!("profiles.toml"), &Profiles::new()).expect("a test parses the built-in profiles")
}

/// Parses TOML with one table per program. Missing fields are taken from the built-in profiles.
pub fn parse(text: &str) -> Result<Profiles, ProfileError> {
    parse_over(text, &built_in())
}

/// Parses TOML. Missing fields are taken from the profiles in `base`.
fn parse_over(text: &str, base: &Profiles) -> Result<Profiles, ProfileError> {
    let given: BTreeMap<String, Spanned<ProfileRecord>> =
        toml_file::parse(text).map_err(|(line, what)| ProfileError { line, what })?;
    let mut profiles = Profiles::new();
    for (name, given) in given {
        let line = line_at(text, given.span().start);
        let bad = |what: String| ProfileError { line, what: format!("{name}: {what}") };
        let profile = given.into_inner().complete_with(base.get(&name)).map_err(bad)?;
        profile.check().map_err(bad)?;
        profiles.insert(name, profile);
    }
    Ok(profiles)
}

impl Profile {
    fn check(&self) -> Result<(), String> {
        // A number of many digits is not readable.
        let shown = |value: f64| if value.abs() < 1e15 { value.to_string() } else { format!("{value:e}") };
        let Profile { map_mbps, map_out, reduce_mbps, reduce_out, merge_mbps, start_s, spread } = *self;
        let rates = [("map_mbps", map_mbps), ("reduce_mbps", reduce_mbps), ("merge_mbps", merge_mbps)];
        for (field, value) in rates {
            if !(RATES[0]..=RATES[1]).contains(&value) {
                let ([least, most], value) = (RATES, shown(value));
                return Err(format!(
                    "{field} = {value} is not valid: it must be from {least} to {most} MB/s"
                ));
            }
        }
        let others = [
            ("map_out", map_out, OUT_MAX),
            ("reduce_out", reduce_out, OUT_MAX),
            ("start_s", start_s, START_S_MAX),
            ("spread", spread, SPREAD_MAX),
        ];
        for (field, value, most) in others {
            if !(0.0..=most).contains(&value) {
                let value = shown(value);
                return Err(format!("{field} = {value} is not valid: it must be from 0 to {most}"));
            }
        }
        Ok(())
    }
}

/// Writes profiles as TOML.
pub fn render(profiles: &Profiles) -> String {
    toml::to_string(profiles).expect("numbers and names can be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_profiles_parse_and_round_trip() {
        let profiles = built_in();
        assert!(profiles.contains_key("wordcount") && profiles.contains_key("fcs-terasort"));
        assert_eq!(parse(&render(&profiles)).expect("the profiles parse"), profiles);
    }

    #[test]
    fn invalid_and_missing_fields_are_named() {
        let text =
            render(&BTreeMap::from([("x".to_owned(), Profile { map_mbps: 0.0, ..built_in()["wordcount"] })]));
        let error = parse(&text).expect_err("a rate of 0").to_string();
        assert!(error.contains("x: map_mbps = 0"), "{error}");
        let error = parse("\n[wordcount]\nmap_mbps = -1").expect_err("below 0").to_string();
        assert!(error.starts_with("2: wordcount: map_mbps = -1 is not valid"), "{error}");
        for (text, wanted) in [
            ("[wordcount]\nmap_mbps = \"a\"", "2: map_mbps: invalid type: string \"a\""),
            ("[wordcount]\nmap_mbps = ", "2: map_mbps: "),
            ("[wordcount]\nnone = 1", "2: unknown field `none`"),
        ] {
            let error = parse(text).expect_err(wanted).to_string();
            assert!(error.starts_with(wanted), "{error}");
            let has_line_again = error.contains("line 2") || error.contains("2 |");
            assert!(!has_line_again && error.lines().count() == 1, "{error}");
        }
        for bad in ["map_mbps = 1e300", "reduce_mbps = nan", "merge_mbps = 1e-9", "map_out = 1e9"] {
            assert!(parse(&format!("[grep]\n{bad}")).is_err(), "{bad}");
        }
        for bad in ["reduce_out = inf", "start_s = 1e6", "spread = 50.0", "spread = -0.1"] {
            let error = parse(&format!("[grep]\n{bad}")).expect_err(bad).to_string();
            assert!(error.contains(" is not valid: it must be from 0 to "), "{error}");
        }
        let error = parse("[x]\nmap_mbps = 1").expect_err("more is needed").to_string();
        assert!(error.contains("x: map_out is missing"), "{error}");
        let part = parse("[wordcount]\nmap_mbps = 1").expect("the rest is built in")["wordcount"];
        assert_eq!(part, Profile { map_mbps: 1.0, ..built_in()["wordcount"] });
    }
}
