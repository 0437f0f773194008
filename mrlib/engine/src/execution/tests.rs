//! Runs maps as a task process does, with local files.

mod skip;

use super::*;
use crate::{
    input::LocalFile,
    merge::{Cursor, Merge, SortOrder},
    partition::encode_splits,
    segment::Run,
    settings::Settings,
};
use mrlib_api::{Conf, Context, Emit, InputFormat, Job, Mapper, PreemptKind, Reducer, Values};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// The environment of a map in these tests.
struct TestIo {
    dir: tempfile::TempDir,
    control: TaskControl,
    liveness: Liveness,
    progress_reports: Vec<Progress>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl TestIo {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("scratch")).unwrap();
        Self {
            dir,
            control: TaskControl::default(),
            liveness: Liveness::default(),
            progress_reports: Vec::new(),
            written: Arc::default(),
        }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns a map over `start..end`, limited to the length of the file.
    fn task(&self, source: &str, start: u64, end: u64, reduces: u32) -> MapTask {
        let end = end.min(std::fs::metadata(source).unwrap().len());
        MapTask {
            source: source.into(),
            start,
            end,
            whole_file: false,
            pin: None,
            reduces,
            map_output: self.dir.path().join(format!("out-{start}")),
            fallback_outputs: Vec::new(),
            conf: Conf::default(),
        }
    }
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl OutputSink for Sink {
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        let mut written = self.0.lock().unwrap();
        written.extend_from_slice(key);
        written.extend_from_slice(value);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, TaskError> {
        Ok(vec!["piece".into()])
    }
}

impl TaskIo for TestIo {
    fn progress(&mut self, progress: &Progress) {
        self.progress_reports.push(progress.clone());
    }

    fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    fn control(&self) -> TaskControl {
        self.control.clone()
    }

    fn scratch(&self) -> Scratch {
        Scratch::new(vec![self.dir.path().join("scratch")])
    }

    fn memory_bytes(&self) -> u64 {
        1 << 20
    }

    fn open_input(&mut self, path: &str) -> Result<Box<dyn ByteSource>, TaskError> {
        Ok(Box::new(LocalFile::open(Path::new(path))?))
    }

    fn open_output(&mut self, _: OutputFormat, _: Vec<String>) -> Result<Box<dyn OutputSink>, TaskError> {
        Ok(Box::new(Sink(self.written.clone())))
    }
}

/// Counts words, and fails at `bad`. Requests a split after `split_after` records.
struct Words {
    split_after: Option<(u32, TaskControl)>,
}

impl Mapper for Words {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        _: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        if line == b"bad" {
            return Err("this word is bad".into());
        }
        let lines = context.counter("LINES");
        context.add(lines, 1);
        if let Some((left, control)) = &mut self.split_after {
            *left = left.saturating_sub(1);
            if *left == 0 {
                control.request_preemption(PreemptKind::Split);
            }
        }
        line.split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty())
            .try_for_each(|word| out.emit(word, &1u64.to_le_bytes()))
    }

    fn finish(&mut self, out: &mut dyn Emit, _: &mut Context) -> Result<(), TaskError> {
        out.emit(b"", &1u64.to_le_bytes())
    }
}

struct Sum;

impl Reducer for Sum {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _: &mut Context,
    ) -> Result<(), TaskError> {
        let mut sum = 0;
        while let Some(value) = values.next()? {
            sum += u64::from_le_bytes(value.try_into().map_err(|_| "not eight bytes")?);
        }
        out.emit(key, &u64::to_le_bytes(sum))
    }
}

fn words(split_after: Option<(u32, TaskControl)>) -> Job {
    Job::map(move |_| Ok(Words { split_after: split_after.clone() })).combine(|_| Ok(Sum)).reduce(|_| Ok(Sum))
}

fn text(lines: u32) -> Vec<u8> {
    (0..lines).flat_map(|n| format!("w{} the {}\r\n", n % 97, n % 7).into_bytes()).collect()
}

/// Returns the sums over all partitions of these map outputs.
fn sums(outputs: &[&Path], reduces: u32) -> BTreeMap<Vec<u8>, u64> {
    let mut sums = BTreeMap::new();
    for partition in 0..reduces {
        let runs: Vec<_> =
            outputs.iter().map(|path| Run::of_file(PathBuf::from(path), partition).unwrap()).collect();
        let mut merge = Merge::open(&runs, SortOrder::default()).unwrap();
        while merge.next().unwrap() {
            let count = u64::from_le_bytes(merge.value().try_into().unwrap());
            *sums.entry(merge.key().to_vec()).or_default() += count;
        }
    }
    sums
}

/// Counts words without the engine. `finishes` is the number of maps, each of which emits an empty
/// word at the end.
fn model(text: &[u8], finishes: u64) -> BTreeMap<Vec<u8>, u64> {
    let mut sums = BTreeMap::from([(Vec::new(), finishes)]);
    for word in text.split(|byte| b" \r\n".contains(byte)).filter(|word| !word.is_empty()) {
        *sums.entry(word.to_vec()).or_default() += 1;
    }
    sums
}

#[test]
fn two_maps_count_all_words_of_a_file() {
    let mut here = TestIo::new();
    let text = text(20_000);
    let source = here.file("text", &text);
    let middle = text.len() as u64 / 2;
    let mut total = BTreeMap::<String, u64>::new();
    let mut tasks = [here.task(&source, 0, middle, 4), here.task(&source, middle, u64::MAX, 4)];
    tasks[1].conf.set("sort.memory", "4KiB");
    for task in &tasks {
        let outcome = run_map(&words(None), task, &mut here).unwrap();
        assert_eq!(outcome.position, task.end);
        assert_eq!(outcome.bytes_out, std::fs::metadata(&task.map_output).unwrap().len());
        for (name, value) in outcome.counters {
            *total.entry(name).or_default() += value;
        }
    }
    assert_eq!(sums(&[&tasks[0].map_output, &tasks[1].map_output], 4), model(&text, 2));
    let count = |name: &str| total.get(name).copied().unwrap_or(0);
    assert_eq!(count("MAP_INPUT_RECORDS"), 20_000);
    assert_eq!(count("LINES"), 20_000);
    assert_eq!(count("MAP_INPUT_BYTES"), text.len() as u64);
    assert_eq!(count("MAP_OUTPUT_RECORDS"), 60_002);
    assert!(count("COMBINE_INPUT_RECORDS") >= 60_002 && count("COMBINE_OUTPUT_RECORDS") < 30_000);
    assert_eq!(count("SKIPPED_RECORDS"), 0);
}

#[test]
fn map_only_output_is_written_directly() {
    let mut here = TestIo::new();
    let source = here.file("text", b"a b\nc");
    let outcome = run_map(&words(None), &here.task(&source, 0, 5, 0), &mut here).unwrap();
    assert_eq!((outcome.pieces, outcome.bytes_out), (vec!["piece".to_owned()], 3 + 4 * 8));
    assert_eq!(outcome.counters["MAP_OUTPUT_RECORDS"], 4);
    assert!(here.written.lock().unwrap().starts_with(b"a\x01"));
}

#[test]
fn split_map_and_remainder_cover_the_input() {
    let text = text(3000);
    for records in [1, 2, 1234, 2999, 3000] {
        let mut here = TestIo::new();
        let source = here.file("text", &text);
        let length = text.len() as u64;
        let first = here.task(&source, 0, length, 3);
        let split_after = Some((records, here.control.clone()));
        let outcome = run_map(&words(split_after), &first, &mut here).unwrap();
        assert_eq!(outcome.counters["MAP_INPUT_RECORDS"], u64::from(records));
        here.control = TaskControl::default();
        let rest = here.task(&source, outcome.position, length, 3);
        let more = run_map(&words(None), &rest, &mut here).unwrap();
        assert_eq!(outcome.counters["LINES"] + more.counters.get("LINES").unwrap_or(&0), 3000);
        let outputs = [&*first.map_output, &*rest.map_output];
        let outputs = if outcome.position == 0 { &outputs[..1] } else { &outputs };
        assert_eq!(sums(outputs, 3), model(&text, 2));
    }
}

#[test]
fn input_that_has_become_shorter_is_an_error() {
    let mut here = TestIo::new();
    let source = here.file("text", b"a b\nc");
    let mut task = here.task(&source, 0, 5, 1);
    task.end = 6;
    let error = run_map(&words(None), &task, &mut here).unwrap_err().to_string();
    assert!(error.contains(&source) && error.contains("shorter than when the job was submitted"), "{error}");
    // With `whole_file`, the end of the range does not matter.
    task.whole_file = true;
    run_map(&words(None), &task, &mut here).unwrap();
}

#[test]
fn compressed_input_that_cannot_be_decoded_fails_the_job() {
    let mut here = TestIo::new();
    for (name, bytes) in
        [("a.bz2", &b"BZh91AY&SY..."[..]), ("b", b"\x28\xb5\x2f\xfd..."), ("c.gz", b"text\n")]
    {
        let source = here.file(name, bytes);
        let mut task = here.task(&source, 0, 100, 1);
        let error = run_map(&words(None), &task, &mut here).unwrap_err();
        assert!(matches!(&error, TaskError::Fatal(why) if why.contains(&source)), "{error}");
        task.conf.set("input.codec", "none");
        run_map(&words(None), &task, &mut here).unwrap();
    }
}

#[test]
fn too_many_counters_fail_with_a_message() {
    struct Counting;
    impl Mapper for Counting {
        fn map(
            &mut self,
            _: &[u8],
            line: &[u8],
            _: &mut dyn Emit,
            context: &mut Context,
        ) -> Result<(), TaskError> {
            let counter = context.counter(&String::from_utf8_lossy(line));
            context.add(counter, 1);
            Ok(())
        }
    }
    let mut here = TestIo::new();
    let lines: Vec<u8> = (0..20_000).flat_map(|n| format!("word{n}\n").into_bytes()).collect();
    let source = here.file("text", &lines);
    let job = Job::map(|_| Ok(Counting)).reduce(|_| Ok(Sum));
    let error = run_map(&job, &here.task(&source, 0, u64::MAX, 1), &mut here).unwrap_err().to_string();
    assert!(error.contains("more than 1000 counters"), "{error}");
}

#[test]
fn current_record_and_output_are_reported() {
    type Seen = Arc<Mutex<Vec<(Option<u64>, u64)>>>;
    struct RecordObserver(Liveness, Seen);
    impl Mapper for RecordObserver {
        fn map(&mut self, _: &[u8], _: &[u8], out: &mut dyn Emit, _: &mut Context) -> Result<(), TaskError> {
            out.emit(b"k", b"v")?;
            self.1.lock().unwrap().push((self.0.record(), self.0.count()));
            Ok(())
        }
    }
    for reduces in [0, 1] {
        let mut here = TestIo::new();
        let source = here.file("text", b"one\ntwo\nthree\n");
        let (seen, liveness) = (Seen::default(), here.liveness.clone());
        let log = Arc::clone(&seen);
        let job =
            Job::map(move |_| Ok(RecordObserver(liveness.clone(), Arc::clone(&log)))).reduce(|_| Ok(Sum));
        run_map(&job, &here.task(&source, 0, 100, reduces), &mut here).unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.iter().map(|(record, _)| *record).collect::<Vec<_>>(), [Some(0), Some(4), Some(8)]);
        assert!(seen.is_sorted_by(|a, b| a.1 < b.1), "{seen:?}");
        assert_eq!(here.liveness.record(), None);
    }
}

#[test]
fn paced_map_is_throttled_and_reports_progress() {
    let mut here = TestIo::new();
    let text = text(5000);
    let source = here.file("text", &text);
    let mut task = here.task(&source, 0, text.len() as u64, 1);
    task.conf.set("pace.map", (text.len() * 2).to_string());
    let start = Instant::now();
    run_map(&words(None), &task, &mut here).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(490));
    assert!(!here.progress_reports.is_empty());
    assert!(
        here.progress_reports.iter().all(|progress_reports| (0.0..=1.0).contains(&progress_reports.done)
            && progress_reports.stage == Stage::Map)
    );
    assert!(here.progress_reports.is_sorted_by_key(|progress_reports| progress_reports.bytes_in));
    // A waiting map can be killed, and marks itself alive so that it does not look hung.
    task.conf.set("pace.map", "1");
    let control = here.control.clone();
    here.liveness = Liveness::default();
    let liveness = here.liveness.clone();
    std::thread::spawn(move || {
        while liveness.count() < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        control.kill("enough");
    });
    assert!(matches!(run_map(&words(None), &task, &mut here), Err(TaskError::Killed(_))));
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn sampled_split_keys_give_a_total_order() {
    let mut here = TestIo::new();
    let records: Vec<u8> =
        (0..20_000u64).flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()).collect();
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
    let job = Job::map(|_| Ok(Identity)).read(InputFormat::Fixed { record: 8, key: 4 }).totally_ordered();
    let source = here.file("records", &records);
    let length = records.len() as u64;
    let mut task = here.task(&source, 0, length, 4);
    assert!(run_map(&job, &task, &mut here).unwrap_err().to_string().contains("total.order.splits"));
    let sample =
        sample_keys(&job, &task.conf, &[(source.clone(), length)], 1000, &mut |path| here.open_input(path))
            .unwrap();
    assert!((900..=1000).contains(&sample.len()), "{}", sample.len());
    let splits = here.file("splits", &encode_splits(sample, 4, job.order));
    task.conf.set("total.order.splits", splits);
    run_map(&job, &task, &mut here).unwrap();
    let mut keys = Vec::new();
    for partition in 0..4 {
        let run = Run::of_file(task.map_output.clone(), partition).unwrap();
        assert!((3000..7000).contains(&run.extent.records), "{partition}: {}", run.extent.records);
        let mut reader = run.open().unwrap();
        while reader.next().unwrap() {
            keys.push([reader.key(), reader.value()].concat());
        }
    }
    assert!(keys.iter().map(|key| &key[..4]).is_sorted());
    assert_eq!(keys.len(), 20_000);
    let wrong = MapTask { reduces: 5, ..task };
    assert!(run_map(&job, &wrong, &mut here).unwrap_err().to_string().contains("for 4 reduces"));
}

#[test]
fn sampling_skips_bad_records_if_the_job_does() {
    let mut here = TestIo::new();
    let source = here.file("text", b"good\nbad\nfine\n");
    let mut conf = Conf::default();
    let mut sample = |conf: &Conf| {
        sample_keys(&words(None), conf, &[(source.clone(), 14)], 100, &mut |path| here.open_input(path))
    };
    assert!(sample(&conf).is_err());
    conf.set("skip.bad.records", "true");
    assert_eq!(sample(&conf).unwrap(), [b"good", b"fine"]);
}

#[test]
fn scratch_skips_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disks: Vec<_> = ["a", "b"].map(|name| dir.path().join(name)).into();
    for disk in &disks {
        std::fs::create_dir(disk).unwrap();
    }
    let scratch = Scratch::new(disks.clone());
    let write = |path: &Path| {
        std::fs::write(path, b"half").unwrap();
        let full = path.starts_with(&disks[0]);
        let source = std::io::ErrorKind::StorageFull.into();
        if full { Err(TaskError::Io { what: format!("write {}", path.display()), source }) } else { Ok(()) }
    };
    let files: Vec<_> = (0..4).map(|_| scratch.create("spill", write).unwrap().0).collect();
    assert!(files.iter().all(|file| file.path().starts_with(&disks[1])));
    assert_eq!(std::fs::read_dir(&disks[0]).unwrap().count(), 0);
    drop(files);
    assert_eq!(std::fs::read_dir(&disks[1]).unwrap().count(), 0);
    let only = Scratch::new(vec![disks[0].clone()]);
    assert!(only.create("spill", write).unwrap_err().to_string().starts_with("write "));
}

#[test]
fn error_names_the_invalid_setting_and_its_value() {
    let job = words(None);
    for (key, value) in [
        ("merge.factor", "1"),
        ("sort.memory", "much"),
        ("pace.map", "0"),
        ("input.format", "fixed:10"),
        ("skip.bad.records", "yes"),
    ] {
        let mut conf = Conf::default();
        conf.set(key, value);
        let error = Settings::new(&job, &conf).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(value), "{error}");
    }
    let mut conf = Conf::default();
    conf.set("input.format", "fixed:100:10");
    conf.set("pace.map", "8MiB");
    let settings = Settings::new(&job, &conf).unwrap();
    assert_eq!(settings.input, InputFormat::Fixed { record: 100, key: 10 });
    assert_eq!((settings.pace_map, settings.merge_factor), (Some(8 << 20), 64));
}

#[test]
fn map_recognises_compressed_input_by_its_first_bytes() {
    let mut here = TestIo::new();
    let source = here.file("data", b"\x28\xb5\x2f\xfd is how Zstandard begins\n");
    let mut task = here.task(&source, 0, u64::MAX, 1);
    task.conf.set("skip.bad.records", "true");
    let error = run_map(&words(None), &task, &mut here).unwrap_err();
    let TaskError::Fatal(why) = &error else { panic!("expected a fatal error: {error}") };
    assert!(why.contains(&format!("input {source} ")) && why.contains("Zstandard"), "{why}");
    task.conf.set("input.codec", "none");
    let outcome = run_map(&words(None), &task, &mut here).unwrap();
    assert_eq!(outcome.counters["LINES"], 1);
}
