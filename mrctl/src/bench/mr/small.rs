//! One map, one reduce, one kilobyte: from submit to done.

use super::cluster::Cluster;
use crate::{
    bench::measurement::{Limit, Measurement, median},
    job::wire::Submission,
};
use anyhow::Result;
use std::time::Instant;

/// Jobs of each figure.
pub(super) const JOBS: usize = 50;
const WARM_UP: usize = 5;
const LIMIT_MS: f64 = 100.0;
const INPUT: &str = "/small/in";

pub(super) async fn measure(cluster: &Cluster) -> Result<Vec<Measurement>> {
    cluster.put_bytes(b"one slot waits, the others go on\n".repeat(31), INPUT).await?;
    let (mut here, mut existing) = (Vec::new(), Vec::new());
    let since = Instant::now();
    for number in 0..WARM_UP + JOBS {
        let output = format!("/small/here-{number}");
        here.push(1000.0 * cluster.submit_here(submission(&output)).await?);
    }
    let here_wall = since.elapsed().as_secs_f64();
    let since = Instant::now();
    for number in 0..WARM_UP + JOBS {
        let output = format!("/small/there-{number}");
        let arguments = ["wordcount", "--input", INPUT, "--output", &output];
        existing.push(1000.0 * cluster.submit_uncounted(&arguments).await?.1);
    }
    let there_wall = since.elapsed().as_secs_f64();
    cluster.delete("/small").await?;
    let mut figures = Vec::new();
    let runs =
        [(here, here_wall, "over a connection that is there"), (existing, there_wall, "by `mrctl submit`")];
    for (mut times, wall_seconds, how) in runs {
        times.drain(..WARM_UP);
        let late = late(times.clone());
        figures.push(Measurement {
            limit: Some(Limit::AtMost(LIMIT_MS)),
            wall_seconds,
            ..Measurement::unlimited(format!("small job {how}, median"), median(times), "ms")
        });
        figures.push(Measurement::unlimited(format!("small job {how}, 95 of 100 within"), late, "ms"));
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

/// What 95 of 100 stay within.
fn late(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get((times.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_late_ones_are_seen() {
        assert!((late((1..=100).map(f64::from).collect()) - 95.0).abs() < 1e-9);
        assert!((late(vec![7.0]) - 7.0).abs() < 1e-9);
    }
}
