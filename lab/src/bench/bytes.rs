//! Measures reads and writes on a one-node cluster. Each is compared with a plain program that
//! moves the same bytes on the same disk.

use super::{
    CpuMeter,
    measurement::{Limit, Measurement, median},
    socket,
};
use anyhow::{Context, Result, ensure};
use clusters::local::{Launch, Layout};
use dfs_client::{Client, ClientOptions, LocatedBlock, PutOptions, PutSource, path::DfsPath};
use memmap2::Mmap;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
    time::{Duration, Instant},
};

/// The number of rounds of a measurement.
pub(crate) const ROUNDS: usize = 5;
/// The number of rounds of a read. A read takes only a quarter of a second, and in this time two
/// busy threads may not get a core each, so the median needs more rounds.
const READ_ROUNDS: usize = 15;
/// Size of the buffer for plain copies, in bytes.
const BUFFER: usize = 1 << 20;

/// The rounds of one measurement and of its baseline.
#[derive(Default)]
struct Rounds {
    /// MB/s of the cluster.
    rates: Vec<f64>,
    /// MB/s of the plain program.
    plain_rates: Vec<f64>,
    /// Seconds of each round in the cluster.
    wall_seconds: Vec<f64>,
    /// CPU seconds of the daemons.
    cpu_seconds: Vec<f64>,
}

impl Rounds {
    fn add(&mut self, bytes: u64, ours: Duration, cpu: f64, plain: Duration) {
        self.rates.push(rate(bytes, ours));
        self.plain_rates.push(rate(bytes, plain));
        self.wall_seconds.push(ours.as_secs_f64());
        self.cpu_seconds.push(cpu);
    }

    fn into_measurement(self, name: &str, limit: Option<Limit>, baseline_name: &'static str) -> Measurement {
        Measurement {
            limit,
            baseline: Some(median(self.plain_rates)),
            baseline_name: Some(baseline_name),
            wall_seconds: median(self.wall_seconds),
            daemon_cpu_seconds: median(self.cpu_seconds),
            ..Measurement::unlimited(name, median(self.rates), "MB/s")
        }
    }
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}

/// Runs the selected write and read measurements.
pub(crate) async fn measure(
    folder: &Path,
    layout: Layout,
    size: u64,
    write: bool,
    read: bool,
) -> Result<Vec<Measurement>> {
    let source = folder.join("source");
    make_source(&source, size)?;
    let launch = Launch::start_files(layout, None).await?;
    let client = launch.client().await?;
    let mut figures = Vec::new();
    if write {
        figures.push(measure_write(&launch, &client, &source, size).await?);
    }
    if read {
        let path = DfsPath::parse("/read")?;
        put(&client, &source, &path).await?;
        figures.push(measure_tcp(&launch, &source, &path, size).await?);
        figures.extend(measure_local(&launch, &client, &source, &path, size).await?);
    }
    Ok(figures)
}

/// Writes random bytes, which no file system can compress, and leaves them in the page cache.
fn make_source(path: &Path, size: u64) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = File::create(path).with_context(failed)?;
    let mut random = SmallRng::seed_from_u64(7);
    let mut buffer = vec![0; BUFFER];
    let mut left = size;
    while left > 0 {
        random.fill_bytes(&mut buffer);
        let part = left.min(BUFFER as u64);
        file.write_all(&buffer[..part as usize]).with_context(failed)?;
        left -= part;
    }
    file.sync_data().with_context(failed)
}

async fn put(client: &Client, source: &Path, path: &DfsPath) -> Result<Duration> {
    let since = Instant::now();
    let options = PutOptions { replication: Some(1), ..PutOptions::default() };
    client.put(PutSource::File(source.into()), path, options, &()).await?;
    Ok(since.elapsed())
}

/// Copies the source to a new file like `dd conv=fdatasync`.
fn plain_write(source: &Path, to: &Path) -> Result<Duration> {
    let failed = || format!("cannot write {}", to.display());
    let mut from = File::open(source).context("cannot open the source")?;
    let mut buffer = vec![0; BUFFER];
    let since = Instant::now();
    let mut file = File::create(to).with_context(failed)?;
    loop {
        match from.read(&mut buffer).context("cannot read the source")? {
            0 => break,
            read => file.write_all(&buffer[..read]).with_context(failed)?,
        }
    }
    file.sync_data().with_context(failed)?;
    let took = since.elapsed();
    std::fs::remove_file(to).with_context(failed)?;
    Ok(took)
}

async fn measure_write(launch: &Launch, client: &Client, source: &Path, size: u64) -> Result<Measurement> {
    let mut rounds = Rounds::default();
    let copy = source.with_file_name("plain");
    for round in 0..ROUNDS {
        let plain = plain_write(source, &copy)?;
        let path = DfsPath::parse(&format!("/write-{round}"))?;
        let cpu = CpuMeter::new(launch);
        let ours = put(client, source, &path).await?;
        rounds.add(size, ours, cpu.seconds(), plain);
        client.delete(&path, false).await?;
        await_deleted(client, size).await?;
    }
    let name = "sequential write + fdatasync of the same bytes on the same disk";
    Ok(rounds.into_measurement("write, 1 replica", Some(Limit::OfBaseline(0.6)), name))
}

/// Waits until the files of this round are deleted, so that the deletion does not slow down the
/// next round.
async fn await_deleted(client: &Client, size: u64) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while client.report().await?.used >= size && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn measure_tcp(launch: &Launch, source: &Path, path: &DfsPath, size: u64) -> Result<Measurement> {
    let mut config = launch.layout.config.client.clone();
    config.short_circuit = false;
    let client =
        Client::connect(ClientOptions::new(&launch.state.namenode, config).with(launch.credentials()?))
            .await?;
    let mut rounds = Rounds::default();
    for _ in 0..READ_ROUNDS {
        let plain = socket::transfer(source)?;
        let cpu = CpuMeter::new(launch);
        let since = Instant::now();
        let mut reader = client.open(path).await?;
        let mut total = 0;
        while let Some(bytes) = reader.next().await? {
            total += bytes.len() as u64;
        }
        let ours = since.elapsed();
        ensure!(total == size, "read {total} of {size} bytes");
        rounds.add(size, ours, cpu.seconds(), plain);
    }
    let name = "sendfile of the same file from the page cache over a local socket, without checksums";
    Ok(rounds.into_measurement("read over TCP, verified", Some(Limit::OfBaseline(0.8)), name))
}

async fn measure_local(
    launch: &Launch,
    client: &Client,
    source: &Path,
    path: &DfsPath,
    size: u64,
) -> Result<Vec<Measurement>> {
    let (_, blocks) = client.locate(path, 0, size).await?;
    let (mut raw, mut verified) = (Rounds::default(), Rounds::default());
    for _ in 0..ROUNDS {
        let since = Instant::now();
        let expected = sum(&map(source)?);
        let plain = since.elapsed();
        for (rounds, verify) in [(&mut raw, false), (&mut verified, true)] {
            let cpu = CpuMeter::new(launch);
            let since = Instant::now();
            let found = sum_blocks(client, &blocks, verify).await?;
            let ours = since.elapsed();
            ensure!(found == expected, "the blocks differ from the source");
            rounds.add(size, ours, cpu.seconds(), plain);
        }
    }
    let name = "mmap of a file of the same size, the same summing";
    Ok(vec![
        raw.into_measurement("read by short circuit", Some(Limit::OfBaseline(0.9)), name),
        verified.into_measurement("read by short circuit, verified", None, name),
    ])
}

async fn sum_blocks(client: &Client, blocks: &[LocatedBlock], verify: bool) -> Result<u64> {
    let mut total = 0u64;
    for block in blocks {
        let local = client.open_local_block(block).await?;
        let local = local.context("a block has no replica on this machine, or short circuit is off")?;
        if verify {
            local.verify(0..block.length)?;
        }
        total = total.wrapping_add(sum(local.bytes()));
    }
    Ok(total)
}

/// Returns a sum that is cheap to compute but reads every byte. The sum of a file equals the sum of
/// its parts if the lengths of the parts are multiples of 8.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0u64, |total, word| total.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(words, |total, byte| total.wrapping_add(u64::from(*byte)))
}

#[allow(unsafe_code, reason = "a memory map is what the baseline measures")]
fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    // SAFETY: the file is in the temporary folder of the benchmark; no process writes or truncates
    // it while it is mapped.
    let map = unsafe { Mmap::map(&file) };
    map.with_context(|| format!("cannot map {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_a_file_is_the_sum_of_its_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source");
        make_source(&path, (2 << 20) + 13).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), (2 << 20) + 13);
        let (one, other) = bytes.split_at(1 << 20);
        assert_eq!(sum(&map(&path).unwrap()), sum(one).wrapping_add(sum(other)));
        assert!(sum(&bytes) != 0);
    }

    #[test]
    fn plain_write_removes_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source");
        make_source(&path, 3 << 20).unwrap();
        let copy = folder.path().join("plain");
        assert!(plain_write(&path, &copy).unwrap() > Duration::ZERO);
        assert!(!copy.exists());
    }
}
