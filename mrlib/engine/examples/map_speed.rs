//! Measures the speed of maps on one core: prints megabytes of input per second of CPU time, for a
//! wordcount and for a sort of 100-byte records.
//!
//! `cargo run --release -p fermata-engine --example map_speed -- FOLDER [MEBIBYTES]`

use fermata_engine::{
    execution::{MapTask, OutputSink, Progress, TaskIo, run_map},
    input::{ByteSource, LocalFile},
    merge::{Cursor, Merge, SortOrder},
    scratch::Scratch,
    segment::Run,
};
use mrlib_api::{
    Conf, Context, Emit, InputFormat, Job, Liveness, Mapper, OutputFormat, Reducer, TaskControl, TaskError,
    Values,
};
use rustix::time::{ClockId, clock_gettime};
use std::path::{Path, PathBuf};
use types::split_mix::next;

/// Returns the CPU time of all threads of this process, which other processes do not distort.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

struct LocalFiles(PathBuf);

impl TaskIo for LocalFiles {
    fn progress(&mut self, _: &Progress) {}

    fn liveness(&self) -> Liveness {
        Liveness::default()
    }

    fn control(&self) -> TaskControl {
        TaskControl::default()
    }

    fn scratch(&self) -> Scratch {
        Scratch::new(vec![self.0.clone()])
    }

    fn memory_bytes(&self) -> u64 {
        128 << 20
    }

    fn open_input(&mut self, path: &str) -> Result<Box<dyn ByteSource>, TaskError> {
        Ok(Box::new(LocalFile::open(Path::new(path))?))
    }

    fn open_output(&mut self, _: OutputFormat, _: Vec<String>) -> Result<Box<dyn OutputSink>, TaskError> {
        Err("jobs of this benchmark have reduces".into())
    }
}

struct Words;

impl Mapper for Words {
    fn map(&mut self, _: &[u8], line: &[u8], out: &mut dyn Emit, _: &mut Context) -> Result<(), TaskError> {
        line.split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty())
            .try_for_each(|word| out.emit(word, &1u64.to_le_bytes()))
    }
}

struct Sum {
    in_place: bool,
}

impl Reducer for Sum {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _: &mut Context,
    ) -> Result<(), TaskError> {
        let mut sum = 0u64;
        while let Some(value) = values.next()? {
            sum += u64::from_le_bytes(value.try_into().map_err(|_| "not eight bytes")?);
        }
        out.emit(key, &sum.to_le_bytes())
    }

    fn fold(&mut self, into: &mut [u8], value: &[u8]) -> bool {
        let (Ok(sum), Ok(value)) = (<&mut [u8; 8]>::try_from(into), value.try_into()) else { return false };
        if self.in_place {
            *sum = (u64::from_le_bytes(*sum) + u64::from_le_bytes(value)).to_le_bytes();
        }
        self.in_place
    }
}

struct Identity;

impl Mapper for Identity {
    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        _: &mut Context,
    ) -> Result<(), TaskError> {
        out.emit(key, value)
    }
}

/// Generates text in which few words are frequent and many are rare.
fn text(bytes: usize) -> Vec<u8> {
    let mut seed = 1;
    let mut text = Vec::with_capacity(bytes + 100);
    while text.len() < bytes {
        for _ in 0..10 {
            let rank = 1u64 << (next(&mut seed) % 17);
            let word = next(&mut seed) % rank + rank;
            let letters = 3 + word % 6;
            text.extend((0..letters).map(|at| b'a' + ((word * 7919) >> (at * 3) & 15) as u8));
            text.push(b' ');
        }
        text.push(b'\n');
    }
    text
}

fn records(bytes: usize) -> Vec<u8> {
    let mut seed = 2;
    let mut records = Vec::with_capacity(bytes + 100);
    for number in 0..bytes / 100 {
        records.extend_from_slice(&next(&mut seed).to_be_bytes());
        records.extend_from_slice(&next(&mut seed).to_be_bytes()[..2]);
        records.extend_from_slice(format!("{number:032X}").as_bytes());
        records.extend((0..58).map(|_| next(&mut seed) as u8));
    }
    records
}

fn measure(
    name: &str,
    job: &Job,
    source: &Path,
    settings: &[(&str, &str)],
    here: &mut LocalFiles,
) -> Result<(), TaskError> {
    let mut conf = Conf::default();
    for (key, value) in settings {
        conf.set(*key, *value);
    }
    let length = std::fs::metadata(source).map_err(TaskError::io("read the length of the input file"))?.len();
    let task = MapTask {
        source: source.display().to_string(),
        start: 0,
        end: length,
        whole_file: false,
        pin: None,
        reduces: 4,
        map_output: here.0.join("output"),
        fallback_outputs: Vec::new(),
        conf,
    };
    let start = cpu_seconds();
    let outcome = run_map(job, &task, here)?;
    let mapped = cpu_seconds() - start;
    let start = cpu_seconds();
    let mut merged = 0;
    for partition in 0..4 {
        let run = Run::of_file(task.map_output.clone(), partition)?;
        let mut merge = Merge::open(&[run.clone(), run], SortOrder::default())?;
        while merge.next()? {
            merged += merge.key().len() + merge.value().len();
        }
    }
    let merge_rate = merged as f64 / 1e6 / (cpu_seconds() - start);
    println!(
        "{name}: {mapped:.2} s, {:.0} MB/s; {} bytes of output, {} records written; merge of two copies {merge_rate:.0} MB/s",
        length as f64 / 1e6 / mapped,
        outcome.bytes_out,
        outcome.counters["SPILLED_RECORDS"]
    );
    Ok(())
}

fn main() -> Result<(), TaskError> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("usage: map_speed FOLDER [MEBIBYTES]")?);
    let mebibytes: usize =
        arguments.next().map_or(Ok(128), |text| text.parse()).map_err(|_| "MEBIBYTES must be a number")?;
    let (words, sorted) = (folder.join("text"), folder.join("records"));
    std::fs::write(&words, text(mebibytes << 20)).map_err(TaskError::io("write the text"))?;
    std::fs::write(&sorted, records(mebibytes << 20)).map_err(TaskError::io("write the records"))?;
    let mut here = LocalFiles(folder);
    let count = |in_place| Job::map(|_| Ok(Words)).combine(move |_| Ok(Sum { in_place }));
    let sort = Job::map(|_| Ok(Identity)).read(InputFormat::Fixed { record: 100, key: 10 });
    for (name, job, source, settings) in [
        ("wordcount, folded", count(true), &words, &[][..]),
        ("wordcount, combined", count(false), &words, &[]),
        ("wordcount, 8 MiB", count(true), &words, &[("sort.memory", "8MiB")]),
        ("wordcount, no combiner", Job::map(|_| Ok(Words)), &words, &[]),
        ("sort", sort.clone(), &sorted, &[("sort.memory", "1GiB")]),
        (
            "sort, not compressed",
            sort.clone(),
            &sorted,
            &[("sort.memory", "1GiB"), ("map.output.compress", "false")],
        ),
        ("sort, 16 MiB", sort, &sorted, &[("sort.memory", "16MiB")]),
    ] {
        measure(name, &job, source, settings, &mut here)?;
    }
    Ok(())
}
