//! Local mode: runs a job in this process on local files, for debugging. It uses the same engine,
//! sort and merge as a cluster.
//!
//! The output folder is created at the start, and the parts appear in it when all tasks are done.
//! After a failure the folder is removed.

use crate::{
    execution::{
        MapTask, OutputSink, Progress, ReduceEnd, ReduceTask, TaskIo, TaskOutcome, run_map, run_reduce,
        sample_keys,
    },
    fetch::MapFeed,
    input::{ByteSource, LocalFile},
    output::{PieceWriter, RecordWriter, Target},
    partition::encode_splits,
    process,
    scratch::Scratch,
    settings::Settings,
};
use crossbeam::channel;
use mrlib_api::{
    Conf, InputFormat, Job, Liveness, OutputFormat, TaskControl, TaskError,
    codec::{Codec, Coding},
    settings::SPLIT_KEYS,
    task_settings,
};
use proto::mr::{MapAvailable, MapEvent, TaskMapEvents, map_event};
use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

/// Memory for sorting and merging in each task, unless `sort.memory` is set.
const MEMORY_BYTES: u64 = 256 << 20;
/// Size of splits, unless `split.size` is set.
const SPLIT_BYTES: u64 = 64 << 20;

/// Number of keys sampled per reduce of a job with total order.
const SAMPLES_PER_REDUCE: usize = 1000;

/// Input, output and options of a local run.
#[derive(Debug, Clone)]
pub struct LocalRun {
    /// Input files and folders.
    pub inputs: Vec<PathBuf>,
    /// The output folder, which must not exist.
    pub output: PathBuf,
    /// Number of reduces; 0 for a map-only job.
    pub reduces: u32,
    /// Number of tasks that run at the same time.
    pub threads: usize,
    /// The settings of the job.
    pub conf: Conf,
}

/// Runs a job to its end. Returns its counters.
pub fn run_local(job: &Job, run: &LocalRun) -> Result<BTreeMap<String, u64>, TaskError> {
    let splits = splits(job, run)?;
    let what = format!("create output folder {}", run.output.display());
    fs::create_dir(&run.output).map_err(TaskError::io(what))?;
    let ran = run_tasks(job, run, &splits);
    if ran.is_err() {
        // The first error is shown, so errors of the removal are ignored.
        let _ = fs::remove_dir_all(&run.output);
    }
    ran
}

fn run_tasks(job: &Job, run: &LocalRun, splits: &[Split]) -> Result<BTreeMap<String, u64>, TaskError> {
    let temporary = run.output.join("_temporary");
    fs::create_dir(&temporary).map_err(io_error("create", &temporary))?;
    let (conf, control) = (run.conf.clone(), TaskControl::default());
    let mut job_run = LocalJob { job, run, splits, conf, temporary, control };
    job_run.find_ranges()?;
    let job_run = job_run;
    let mut counters = job_run.run_all(splits.len(), &|index| job_run.map(index))?;
    if run.reduces > 0 {
        let reduced = job_run.run_all(run.reduces as usize, &|index| job_run.reduce(index))?;
        add_counters(&mut counters, reduced);
    }
    job_run.publish()?;
    counters.insert("CPU_MILLISECONDS".into(), process::cpu_milliseconds());
    Ok(counters)
}

fn io_error(verb: &str, path: &Path) -> impl FnOnce(std::io::Error) -> TaskError {
    TaskError::io(format!("{verb} {}", path.display()))
}

fn add_counters(counters: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>) {
    for (name, value) in more {
        *counters.entry(name).or_default() += value;
    }
}

struct Split {
    path: PathBuf,
    start: u64,
    end: u64,
    whole_file: bool,
}

fn splits(job: &Job, run: &LocalRun) -> Result<Vec<Split>, TaskError> {
    let Settings { input: format, codec, .. } = Settings::new(job, &run.conf)?;
    let size = run.conf.parse("split.size", daemon::Bytes(SPLIT_BYTES))?.0.max(1);
    let mut splits = Vec::new();
    for path in files(&run.inputs, run.conf.parse("input.recursive", true)?)? {
        let length = fs::metadata(&path).map_err(io_error("read", &path))?.len();
        if length == 0 {
            continue;
        }
        let whole_file = format == InputFormat::WholeFile || coding(codec, &path)? == Coding::Gzip;
        if whole_file {
            splits.push(Split { path, start: 0, end: length, whole_file });
            continue;
        }
        for start in (0..length).step_by(size as usize) {
            let end = (start + size).min(length);
            splits.push(Split { path: path.clone(), start, end, whole_file });
        }
    }
    Ok(splits)
}

fn coding(codec: Codec, path: &Path) -> Result<Coding, TaskError> {
    codec.coding_by_name(&path.display().to_string()).map_err(|error| TaskError::Fatal(error.to_string()))
}

/// Lists the input files: files as given, and the files in folders, with subfolders if `recursive`.
/// Names in folders that begin with `_` or `.` are ignored. A file that several inputs stand for is
/// listed once.
fn files(inputs: &[PathBuf], recursive: bool) -> Result<Vec<PathBuf>, TaskError> {
    let mut files = Vec::new();
    for input in inputs {
        if !fs::metadata(input).map_err(io_error("read input", input))?.is_dir() {
            files.push(input.clone());
            continue;
        }
        let mut folders = vec![input.clone()];
        while let Some(folder) = folders.pop() {
            let (mut inside, mut below) = (Vec::new(), Vec::new());
            for entry in fs::read_dir(&folder).map_err(io_error("read input", &folder))? {
                let entry = entry.map_err(io_error("read input", &folder))?;
                let path = entry.path();
                if entry.file_name().to_string_lossy().starts_with(['_', '.']) {
                    continue;
                }
                if path.is_file() {
                    inside.push(path);
                } else if recursive && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    below.push(path);
                }
            }
            inside.sort();
            below.sort_by(|a, b| b.cmp(a));
            files.append(&mut inside);
            folders.append(&mut below);
        }
    }
    let mut seen = HashSet::new();
    files.retain(|path| seen.insert(fs::canonicalize(path).unwrap_or_else(|_| path.clone())));
    Ok(files)
}

/// A job that runs in local mode.
struct LocalJob<'a> {
    job: &'a Job,
    run: &'a LocalRun,
    splits: &'a [Split],
    conf: Conf,
    temporary: PathBuf,
    control: TaskControl,
}

impl LocalJob<'_> {
    /// Samples the input of a job with total order and writes the file of split keys.
    fn find_ranges(&mut self) -> Result<(), TaskError> {
        let wanted = self.job.total_order && self.job.partitioner.is_none() && self.run.reduces > 1;
        if !wanted || self.conf.get(SPLIT_KEYS).is_some() {
            return Ok(());
        }
        let mut files: Vec<(String, u64)> = Vec::new();
        for split in self.splits {
            let path = split.path.display().to_string();
            match files.last_mut() {
                Some((last, length)) if *last == path => *length = split.end,
                _ => files.push((path, split.end)),
            }
        }
        let mut io = self.io("sample", PathBuf::new())?;
        let keys = self.run.reduces as usize * SAMPLES_PER_REDUCE;
        let sample = sample_keys(self.job, &self.conf, &files, keys, &mut |path| io.open_input(path))?;
        let path = self.temporary.join("splits");
        fs::write(&path, encode_splits(sample, self.run.reduces, self.job.order))
            .map_err(io_error("write", &path))?;
        self.conf.set(SPLIT_KEYS, path.display().to_string());
        Ok(())
    }

    /// Runs tasks in parallel. The first failure stops the others.
    fn run_all(
        &self,
        tasks: usize,
        run_task: &(dyn Fn(usize) -> Result<TaskOutcome, TaskError> + Sync),
    ) -> Result<BTreeMap<String, u64>, TaskError> {
        let threads = self.run.threads.clamp(1, tasks.max(1));
        let (queue, indexes) = channel::bounded(tasks);
        (0..tasks).try_for_each(|index| queue.try_send(index)).expect("the queue has room for all tasks");
        drop(queue);
        let (sender, outcomes) = channel::bounded(threads);
        thread::scope(|scope| {
            for _ in 0..threads {
                let (indexes, sender) = (indexes.clone(), sender.clone());
                scope.spawn(move || {
                    let run = |index| self.control.check().and_then(|()| run_task(index));
                    indexes.iter().map(run).try_for_each(|outcome| sender.send(outcome))
                });
            }
            drop((indexes, sender));
            let (mut counters, mut failure) = (BTreeMap::new(), None);
            for outcome in outcomes {
                match outcome {
                    Ok(outcome) => add_counters(&mut counters, outcome.counters),
                    Err(error) => {
                        failure.get_or_insert(error);
                        self.control.kill("another task has failed");
                    }
                }
            }
            failure.map_or(Ok(counters), Err)
        })
    }

    fn conf(&self, kind: &str, index: usize) -> Conf {
        let mut conf = self.conf.clone();
        let letter = &kind[..1];
        conf.set(task_settings::TASK_ATTEMPT, format!("job_0.{letter}{index}.0"));
        conf.set(task_settings::TASK_ID, format!("job_0.{letter}{index}"));
        conf.set(task_settings::TASK_INDEX, index.to_string());
        conf.set(task_settings::TASK_KIND, kind);
        conf.set(task_settings::JOB_ID, "job_0");
        conf.set(task_settings::JOB_NAME, "local");
        conf.set(task_settings::JOB_REDUCES, self.run.reduces.to_string());
        conf
    }

    fn map_output(&self, index: usize) -> PathBuf {
        self.temporary.join(format!("m{index}"))
    }

    fn io(&self, name: &str, part: PathBuf) -> Result<LocalIo, TaskError> {
        let scratch = self.temporary.join(format!("{name}.scratch"));
        fs::create_dir(&scratch).map_err(io_error("create", &scratch))?;
        Ok(LocalIo { control: self.control.clone(), scratch: Scratch::new(vec![scratch]), part })
    }

    fn map(&self, index: usize) -> Result<TaskOutcome, TaskError> {
        let split = &self.splits[index];
        let source = split.path.display().to_string();
        let mut conf = self.conf("map", index);
        conf.set(task_settings::MAP_INPUT_FILE, &source);
        conf.set(task_settings::MAP_INPUT_START, split.start.to_string());
        conf.set(task_settings::MAP_INPUT_LENGTH, (split.end - split.start).to_string());
        let map_output = self.map_output(index);
        let Split { start, end, whole_file, .. } = *split;
        let (reduces, fallback_outputs) = (self.run.reduces, Vec::new());
        let task = MapTask {
            source,
            start,
            end,
            whole_file,
            pin: None,
            reduces,
            map_output,
            fallback_outputs,
            conf,
        };
        let mut io = self.io(&format!("m{index}"), self.temporary.join(part_name('m', index)))?;
        run_map(self.job, &task, &mut io)
    }

    fn reduce(&self, index: usize) -> Result<TaskOutcome, TaskError> {
        let maps = self.splits.len();
        let available = |map: usize| MapAvailable {
            attempt: format!("job_0.m{map}.0"),
            local_path: self.map_output(map).display().to_string(),
            root: map as u32,
            start: self.splits[map].start,
            ..MapAvailable::default()
        };
        let event = |map| MapEvent { kind: Some(map_event::Kind::Available(available(map))) };
        let feed = Arc::new(MapFeed::new(maps as u32));
        feed.push(TaskMapEvents { first: 0, events: (0..maps).map(event).collect(), maps: maps as u32 })?;
        let control = self.control.clone();
        let task = ReduceTask {
            partition: index as u32,
            conf: self.conf("reduce", index),
            feed,
            token: Vec::new(),
            // Local mode cannot run the map again.
            fetch_failed: Arc::new(move |failure| {
                control.kill(format!("the output of {} is damaged", failure.attempt));
            }),
            checkpoint_dirs: Vec::new(),
            resume_from: None,
            started: std::time::Instant::now(),
        };
        let mut io = self.io(&format!("r{index}"), self.temporary.join(part_name('r', index)))?;
        match run_reduce(self.job, &task, &mut io)? {
            ReduceEnd::Done(outcome) => Ok(outcome),
            ReduceEnd::Paused(_) => Err("a reduce was paused in local mode".into()),
        }
    }

    /// Moves the parts into the output folder.
    fn publish(&self) -> Result<(), TaskError> {
        let (letter, parts) = match self.run.reduces {
            0 => ('m', self.splits.len()),
            reduces => ('r', reduces as usize),
        };
        for index in 0..parts {
            let (from, to) = (
                self.temporary.join(part_name(letter, index)),
                self.run.output.join(part_name(letter, index)),
            );
            // A task without output has created no file.
            if from.exists() {
                fs::rename(&from, &to).map_err(io_error("move output to", &to))?;
            } else {
                fs::File::create(&to).map_err(io_error("create", &to))?;
            }
        }
        fs::remove_dir_all(&self.temporary).map_err(io_error("remove", &self.temporary))?;
        let success = self.run.output.join("_SUCCESS");
        fs::File::create(&success).map_err(io_error("create", &success))?;
        Ok(())
    }
}

fn part_name(letter: char, index: usize) -> String {
    format!("part-{letter}-{index:05}")
}

/// The environment of a task in local mode.
struct LocalIo {
    control: TaskControl,
    scratch: Scratch,
    /// The path of the output of the task.
    part: PathBuf,
}

impl TaskIo for LocalIo {
    fn progress(&mut self, _progress: &Progress) {}

    fn liveness(&self) -> Liveness {
        // In local mode, no tracker checks for signs of life.
        Liveness::default()
    }

    fn control(&self) -> TaskControl {
        self.control.clone()
    }

    fn scratch(&self) -> Scratch {
        self.scratch.clone()
    }

    fn memory_bytes(&self) -> u64 {
        MEMORY_BYTES
    }

    fn open_input(&mut self, path: &str) -> Result<Box<dyn ByteSource>, TaskError> {
        Ok(Box::new(LocalFile::open(Path::new(path))?))
    }

    fn open_output(
        &mut self,
        format: OutputFormat,
        earlier_pieces: Vec<String>,
    ) -> Result<Box<dyn OutputSink>, TaskError> {
        let target = Target::Local(self.part.clone());
        Ok(Box::new(RecordWriter::new(format, PieceWriter::continue_after(earlier_pieces, target))))
    }
}
