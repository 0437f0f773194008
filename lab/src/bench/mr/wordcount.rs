//! Measures wordcount, compared with the plain program.

use super::{Args, cluster::Cluster, comparison::Comparison};
use crate::bench::measurement::Measurement;
use anyhow::{Context, Result, ensure};
use std::path::Path;

const LIMIT_RATIO: f64 = 2.5;
const OUTPUT: &str = "/wordcount/out";
const INPUT: &str = "/wordcount/in";

pub(super) async fn measure(args: &Args, cluster: &Cluster, folder: &Path) -> Result<Vec<Measurement>> {
    let (text, counts) = (folder.join("text"), folder.join("counts"));
    // The file was just written, so it is in the page cache, as is its copy in the cluster.
    plain::make_text(&text, args.size.0, plain::SEED)?;
    cluster.put(&text, INPUT).await?;
    let reduces = args.nodes.to_string();
    let mut comparison = Comparison::default();
    for round in 0..args.rounds {
        let baseline = cluster.run_plain_program("wordcount", &text, &counts).await?;
        let arguments = ["wordcount", "--input", INPUT, "--output", OUTPUT, "--reduces", &reduces];
        let (job, ran) = cluster.submit(&arguments).await?;
        comparison.add(ran, cluster.cpu_seconds_by_phase(&job).await?, baseline);
        if round == 0 {
            check_same_counts(cluster, &counts).await?;
        }
        cluster.delete(OUTPUT).await?;
    }
    cluster.delete("/wordcount").await?;
    std::fs::remove_file(&text).context("cannot remove the text")?;
    Ok(comparison.figures("wordcount", LIMIT_RATIO))
}

/// Checks that the outputs of the job and of the plain program have the same lines, in any order.
async fn check_same_counts(cluster: &Cluster, counts: &Path) -> Result<()> {
    let mut output = Vec::new();
    cluster
        .output(OUTPUT, |bytes| {
            output.extend_from_slice(bytes);
            Ok(())
        })
        .await?;
    let expected = std::fs::read(counts).context("cannot read the counts of the plain program")?;
    ensure!(
        sorted_lines(&output) == sorted_lines(&expected),
        "the counts of the job differ from those of the plain program"
    );
    Ok(())
}

fn sorted_lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_without_their_order() {
        assert_eq!(sorted_lines(b"a\t1\nb\t2\n"), sorted_lines(b"b\t2\na\t1\n"));
        assert_ne!(sorted_lines(b"a\t1\n"), sorted_lines(b"a\t1\na\t1\n"));
    }
}
