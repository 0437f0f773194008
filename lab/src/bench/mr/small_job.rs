//! Measures the latency of a job with one map, one reduce and one kilobyte of input.

use super::cluster::Cluster;
use crate::bench::measurement::{Limit, Measurement, median};
use anyhow::Result;
use client::Submission;
use std::time::Instant;

/// The number of jobs of each measurement.
pub(super) const JOBS: usize = 50;
const WARM_UP_JOBS: usize = 5;
const LIMIT_MS: f64 = 100.0;
const INPUT: &str = "/small/in";

pub(super) async fn measure(cluster: &Cluster) -> Result<Vec<Measurement>> {
    cluster.put_bytes(b"one slot waits, the others start\n".repeat(31), INPUT).await?;
    let (mut connected, mut by_command) = (Vec::new(), Vec::new());
    let since = Instant::now();
    for number in 0..WARM_UP_JOBS + JOBS {
        let output = format!("/small/connected-{number}");
        connected.push(1000.0 * cluster.submit_here(submission(&output)).await?);
    }
    let connected_wall = since.elapsed().as_secs_f64();
    let since = Instant::now();
    for number in 0..WARM_UP_JOBS + JOBS {
        let output = format!("/small/command-{number}");
        let arguments = ["wordcount", "--input", INPUT, "--output", &output];
        by_command.push(1000.0 * cluster.submit_without_cost(&arguments).await?.1);
    }
    let command_wall = since.elapsed().as_secs_f64();
    cluster.delete("/small").await?;
    let mut figures = Vec::new();
    let runs = [
        (connected, connected_wall, "over an open connection"),
        (by_command, command_wall, "by `mrctl submit`"),
    ];
    for (mut times, wall_seconds, how) in runs {
        times.drain(..WARM_UP_JOBS);
        let p95 = p95(times.clone());
        figures.push(Measurement {
            limit: Some(Limit::AtMost(LIMIT_MS)),
            wall_seconds,
            ..Measurement::unlimited(format!("small job {how}, median"), median(times), "ms")
        });
        figures.push(Measurement::unlimited(format!("small job {how}, p95"), p95, "ms"));
    }
    Ok(figures)
}

fn submission(output: &str) -> Submission {
    Submission {
        name: "small".into(),
        builtin: Some("wordcount".into()),
        inputs: vec![INPUT.into()],
        output: output.into(),
        reduces: 1,
        ..Submission::default()
    }
}

/// Returns the 95th percentile.
fn p95(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p95_of_100_values_is_the_95th() {
        assert!((p95((1..=100).map(f64::from).collect()) - 95.0).abs() < 1e-9);
        assert!((p95(vec![7.0]) - 7.0).abs() < 1e-9);
    }
}
