//! Writes the input of teragen: one small file per map, which says which records to generate.

use crate::output::Usage;
use anyhow::{Result, bail};
use client::StagingFolder;
use std::collections::BTreeMap;

const MAPS_MAX: u64 = 10_000;

/// Returns the number of records and the number of maps, from the settings `rows` and `maps`.
/// Refuses values out of range.
pub(super) fn rows_and_maps(conf: &BTreeMap<String, String>) -> Result<(u64, u64)> {
    let number = |key: &str, default: Option<u64>| match (conf.get(key), default) {
        (Some(text), _) => {
            text.parse().map_err(|_| Usage(format!("--conf {key}={text}: must be a whole number")))
        }
        (None, Some(default)) => Ok(default),
        (None, None) => {
            Err(Usage(format!("teragen needs --conf {key}=N: the number of 100-byte records to generate")))
        }
    };
    let (rows, maps) = (number("rows", None)?, number("maps", Some(2))?);
    if !(1..=MAPS_MAX).contains(&maps) {
        bail!(Usage(format!("--conf maps={maps}: must be from 1 to {MAPS_MAX}")));
    }
    if rows.checked_mul(maps).is_none() {
        bail!(Usage(format!("--conf rows={rows}: the number is too large")));
    }
    Ok((rows, maps))
}

/// Writes one input file per map and returns the paths of these files.
pub(super) async fn write_range_files(
    staging: &mut StagingFolder<'_>,
    conf: &BTreeMap<String, String>,
) -> Result<Vec<String>> {
    let (rows, maps) = rows_and_maps(conf)?;
    let mut paths = Vec::new();
    for map in 0..maps {
        let (first, end) = (rows * map / maps, rows * (map + 1) / maps);
        let line = format!("{first} {}\n", end - first);
        paths.push(staging.put_bytes(&format!("range-{map:05}"), line.into_bytes()).await?);
    }
    Ok(paths)
}
