//! Measures the CPU time and memory of an idle cluster.

use super::{cluster::Cluster, usage::Usage, usage::children};
use crate::bench::measurement::{Limit, Measurement};
use anyhow::{Context, Result};
use clusters::local::{Kind, memory_bytes};
use std::time::{Duration, Instant};

/// The duration of the measurement.
pub(super) const MEASURED_TIME: Duration = Duration::from_secs(20);
/// The pause before the measurement, so that remaining work of earlier jobs is not counted.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const CPU_LIMIT_PERCENT: f64 = 1.0;
const MEMORY_LIMIT_MIB: f64 = 30.0;
const KINDS: [Kind; 4] = [Kind::Namenode, Kind::Datanode, Kind::Jobtracker, Kind::Tasktracker];

pub(super) async fn measure(cluster: &Cluster) -> Result<Vec<Measurement>> {
    tokio::time::sleep(SETTLE_TIME).await;
    let before = Usage::of(&cluster.launch).await?;
    let since = Instant::now();
    tokio::time::sleep(MEASURED_TIME).await;
    let wall_seconds = since.elapsed().as_secs_f64();
    let usage = Usage::of(&cluster.launch).await?.since(&before);
    let percent = |seconds: f64| 100.0 * seconds / wall_seconds;
    let mut figures = vec![Measurement {
        limit: Some(Limit::AtMost(CPU_LIMIT_PERCENT)),
        wall_seconds,
        daemon_cpu_seconds: usage.total(),
        ..Measurement::unlimited("idle cluster, of one core", percent(usage.total()), "%")
    }];
    for (kind, seconds) in &usage.0 {
        figures.push(Measurement::unlimited(
            format!("idle: all of {kind}, of one core"),
            percent(*seconds),
            "%",
        ));
    }
    let mib = |pid: u32| memory_bytes(pid).map(|bytes| bytes as f64 / f64::from(1 << 20));
    let daemons = &cluster.launch.state.daemons;
    for kind in KINDS {
        let mut largest = 0.0_f64;
        for daemon in daemons.iter().filter(|daemon| daemon.kind == kind) {
            let memory = mib(daemon.identity.pid);
            largest = largest.max(memory.with_context(|| format!("{} has died", daemon.name))?);
        }
        let name = format!("idle: largest {}, resident", kind.program());
        figures.push(Measurement {
            limit: Some(Limit::AtMost(MEMORY_LIMIT_MIB)),
            ..Measurement::unlimited(name, largest, "MiB")
        });
    }
    let mut warm = 0.0_f64;
    for daemon in daemons.iter().filter(|daemon| daemon.kind == Kind::Tasktracker) {
        let tasks = children(daemon.identity.pid)?;
        warm = tasks.into_iter().filter_map(mib).fold(warm, f64::max);
    }
    figures.push(Measurement::unlimited("idle: largest warm task process, resident", warm, "MiB"));
    Ok(figures)
}
