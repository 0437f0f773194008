//! What a program does to its input: rates and selectivities, measured or from a paper's time.
//!
//! A profile is what turns a job's bytes into times. The built-in ones are in `profiles.toml`; a user's file has the
//! same form and wins over them by name.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    #[serde(default)]
    pub spread: f64,
}

/// Programs by name.
pub type Profiles = BTreeMap<String, Profile>;

/// A file of profiles that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("profiles: {0}")]
pub struct BadProfiles(String);

/// Those that come with Fermata.
pub fn built_in() -> Profiles {
    parse(include_str!("profiles.toml")).expect("a test reads it")
}

/// Reads TOML: a table for each program.
pub fn parse(text: &str) -> Result<Profiles, BadProfiles> {
    let profiles: Profiles =
        toml::from_str(text).map_err(|error| BadProfiles(error.to_string().trim().replace('\n', " ")))?;
    for (name, profile) in &profiles {
        let Profile { map_mbps, map_out, reduce_mbps, reduce_out, merge_mbps, start_s, spread } = *profile;
        let rates = [("map_mbps", map_mbps), ("reduce_mbps", reduce_mbps), ("merge_mbps", merge_mbps)];
        for (field, value) in rates {
            if !(value.is_finite() && value > 0.0) {
                return Err(BadProfiles(format!("{name}: {field} = {value} is not a rate above 0")));
            }
        }
        let others =
            [("map_out", map_out), ("reduce_out", reduce_out), ("start_s", start_s), ("spread", spread)];
        for (field, value) in others {
            if !(value.is_finite() && value >= 0.0) {
                return Err(BadProfiles(format!("{name}: {field} = {value} is not a number from 0 on")));
            }
        }
    }
    Ok(profiles)
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
        assert!(parse("[x]\nmap_mbps = 1").is_err());
    }
}
