//! What a program does to its input: rates and selectivities, measured or from a paper's time.
//!
//! A profile is what turns a job's bytes into times. The built-in ones are in `profiles.toml`; a user's file has the
//! same form and wins over them by name.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Profile {
    /// Input a map reads, MB a second, on a machine of speed 1.
    pub map_mbps: f64,
    /// Map output for each byte of input, after combining.
    pub map_out: f64,
    /// Input a reduce reads, MB a second, on a machine of speed 1.
    pub reduce_mbps: f64,
    /// Reduce output for each byte of its input.
    pub reduce_out: f64,
    /// What merging takes before reducing, MB a second.
    pub merge_mbps: f64,
    /// From launch to the first record.
    pub start_s: f64,
    /// How much task times scatter: the sigma of a log-normal.
    pub spread: f64,
}

/// Programs by name.
pub type Profiles = BTreeMap<String, Profile>;

/// A file of profiles that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("profiles: {0}")]
pub struct ProfileError(String);

/// One program as a file has it: what it does not say is as it is built in.
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
    fn over(self, base: Option<&Profile>) -> Result<Profile, String> {
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

/// Those that come with Fermata.
pub fn built_in() -> Profiles {
    parse_over(include_str!("profiles.toml"), &Profiles::new()).expect("a test reads it")
}

/// Reads TOML: a table for each program, over the built-in ones.
pub fn parse(text: &str) -> Result<Profiles, ProfileError> {
    parse_over(text, &built_in())
}

fn parse_over(text: &str, base: &Profiles) -> Result<Profiles, ProfileError> {
    let given: BTreeMap<String, ProfileRecord> =
        toml::from_str(text).map_err(|error| ProfileError(error.to_string().trim().replace('\n', " ")))?;
    let mut profiles = Profiles::new();
    for (name, given) in given {
        let bad = |what: String| ProfileError(format!("{name}: {what}"));
        let profile = given.over(base.get(&name)).map_err(bad)?;
        profile.check().map_err(bad)?;
        profiles.insert(name, profile);
    }
    Ok(profiles)
}

impl Profile {
    fn check(&self) -> Result<(), String> {
        let Profile { map_mbps, map_out, reduce_mbps, reduce_out, merge_mbps, start_s, spread } = *self;
        let rates = [("map_mbps", map_mbps), ("reduce_mbps", reduce_mbps), ("merge_mbps", merge_mbps)];
        for (field, value) in rates {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("{field} = {value} is not a rate above 0"));
            }
        }
        let others =
            [("map_out", map_out), ("reduce_out", reduce_out), ("start_s", start_s), ("spread", spread)];
        for (field, value) in others {
            if !(value.is_finite() && value >= 0.0) {
                return Err(format!("{field} = {value} is not a number from 0 on"));
            }
        }
        Ok(())
    }
}

/// As a file.
pub fn render(profiles: &Profiles) -> String {
    toml::to_string(profiles).expect("numbers and names can be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_ones_read_and_read_back() {
        let profiles = built_in();
        assert!(profiles.contains_key("wordcount") && profiles.contains_key("fcs-terasort"));
        assert_eq!(parse(&render(&profiles)).expect("it reads back"), profiles);
    }

    #[test]
    fn bad_numbers_are_named() {
        let text =
            render(&BTreeMap::from([("x".to_owned(), Profile { map_mbps: 0.0, ..built_in()["wordcount"] })]));
        let error = parse(&text).expect_err("a rate of 0").to_string();
        assert!(error.contains("x: map_mbps = 0"), "{error}");
        let error = parse("[x]\nmap_mbps = 1").expect_err("more is needed").to_string();
        assert!(error.contains("x: map_out is missing"), "{error}");
        let part = parse("[wordcount]\nmap_mbps = 1").expect("the rest is built in")["wordcount"];
        assert_eq!(part, Profile { map_mbps: 1.0, ..built_in()["wordcount"] });
    }
}
