//! What teragen reads: small files that say which records each map makes.

use super::submit::Stage;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

const MAPS_MAX: u64 = 10_000;

/// Writes one file a map, from `rows` and `maps` in the settings; their folder.
pub(super) async fn ranges(stage: &mut Stage<'_>, conf: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let number = |key: &str, default: Option<u64>| -> Result<u64> {
        match (conf.get(key), default) {
            (Some(text), _) => text.parse().with_context(|| format!("--conf {key}={text}: not a number")),
            (None, Some(default)) => Ok(default),
            (None, None) => anyhow::bail!("teragen needs --conf {key}=N: how many 100-byte records to make"),
        }
    };
    let rows = number("rows", None)?;
    let maps = number("maps", Some(2))?;
    ensure!((1..=MAPS_MAX).contains(&maps), "--conf maps={maps}: must be from 1 to {MAPS_MAX}");
    let mut paths = Vec::new();
    for map in 0..maps {
        let (first, end) = (rows * map / maps, rows * (map + 1) / maps);
        let line = format!("{first} {}\n", end - first);
        paths.push(stage.put_bytes(&format!("range-{map:05}"), line.into_bytes()).await?);
    }
    Ok(paths)
}
