//! Measures terasort, compared with the plain program and with GNU sort of the same file.

use super::{Args, cluster::Cluster, comparison::Comparison};
use crate::bench::measurement::{Limit, Measurement, median};
use anyhow::{Context, Result, bail, ensure};
use engine::programs::Checksum;
use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};
use tokio::process::Command;

const LIMIT_RATIO: f64 = 5.0;
const OUTPUT: &str = "/terasort/out";
const INPUT: &str = "/terasort/in";
const VALIDATION_OUTPUT: &str = "/terasort/verdict";

pub(super) async fn measure(args: &Args, cluster: &Cluster, folder: &Path) -> Result<Vec<Measurement>> {
    let (records, sorted, other) = (folder.join("records"), folder.join("sorted"), folder.join("gnu-sorted"));
    plain::make_records(&records, args.size.0, plain::SEED)?;
    cluster.put(&records, INPUT).await?;
    let reduces = args.nodes.to_string();
    let gnu = has_gnu_sort().await;
    if !gnu {
        args.print_status("terasort: no GNU sort on this machine; its row is omitted");
    }
    let (mut comparison, mut gnu_walls) = (Comparison::default(), Vec::new());
    for round in 0..args.rounds {
        let baseline = cluster.run_plain_program("sort", &records, &sorted).await?;
        if gnu {
            let mut command = Command::new("sort");
            command.env("LC_ALL", "C").arg("--parallel=2").arg("-T").arg(folder).arg("-o");
            gnu_walls.push(cluster.run(command.arg(&other).arg(&records)).await?.wall);
        }
        let arguments = ["terasort", "--input", INPUT, "--output", OUTPUT, "--reduces", &reduces];
        let (job, ran) = cluster.submit(&arguments).await?;
        comparison.add(ran, cluster.cpu_seconds_by_phase(&job).await?, baseline);
        if round == 0 {
            check_same_bytes(cluster, &sorted).await?;
            validate(cluster, &records).await?;
        }
        cluster.delete(OUTPUT).await?;
    }
    cluster.delete("/terasort").await?;
    for path in [&records, &sorted] {
        std::fs::remove_file(path).context("cannot remove the records")?;
    }
    let mut figures = comparison.figures("terasort", LIMIT_RATIO);
    if gnu {
        std::fs::remove_file(&other).context("cannot remove the records")?;
        figures.insert(
            1,
            Measurement {
                limit: Some(Limit::AtMostOfBaseline(1.0)),
                baseline: Some(median(gnu_walls)),
                baseline_name: Some("GNU sort --parallel=2 of the same file, LC_ALL=C"),
                ..Measurement::unlimited("terasort, time against GNU sort", comparison.wall(), "s")
            },
        );
    }
    Ok(figures)
}

async fn has_gnu_sort() -> bool {
    let version = Command::new("sort").arg("--version").output().await;
    version.is_ok_and(|version| String::from_utf8_lossy(&version.stdout).contains("GNU coreutils"))
}

/// Checks that the concatenated output parts of the job equal the output of the plain program.
async fn check_same_bytes(cluster: &Cluster, sorted: &Path) -> Result<()> {
    let mut plain =
        BufReader::new(File::open(sorted).context("cannot open the output of the plain program")?);
    let mut expected = Vec::new();
    let mut at = 0;
    cluster
        .output(OUTPUT, |bytes| {
            expected.resize(bytes.len(), 0);
            plain
                .read_exact(&mut expected)
                .context("the output of the job is longer than that of the plain program")?;
            ensure!(
                expected == bytes,
                "the output of the job differs from that of the plain program after byte {at}"
            );
            at += bytes.len();
            Ok(())
        })
        .await?;
    let rest = plain.read(&mut [0]).context("cannot read the output of the plain program")?;
    ensure!(rest == 0, "the output of the job ends after {at} bytes, that of the plain program is longer");
    Ok(())
}

/// Runs teravalidate and compares its checksum with that of the input.
async fn validate(cluster: &Cluster, records: &Path) -> Result<()> {
    let arguments = ["teravalidate", "--input", OUTPUT, "--output", VALIDATION_OUTPUT, "--reduces", "1"];
    cluster.submit(&arguments).await?;
    let mut verdict = Vec::new();
    cluster
        .output(VALIDATION_OUTPUT, |bytes| {
            verdict.extend_from_slice(bytes);
            Ok(())
        })
        .await?;
    let verdict = String::from_utf8_lossy(&verdict).into_owned();
    let mut file = BufReader::with_capacity(1 << 20, File::open(records).context("cannot open the records")?);
    let (mut record, mut checksum, mut count) = ([0; plain::RECORD_BYTES], Checksum::default(), 0_u64);
    while file.read_exact(&mut record).is_ok() {
        checksum.add(&record);
        count += 1;
    }
    let expected = format!("records\t{count}\nchecksum\t{checksum}\nout-of-order\t0\n");
    if verdict != expected {
        bail!("teravalidate printed {verdict:?}, expected {expected:?}");
    }
    Ok(())
}
