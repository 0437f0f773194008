//! Maps and reduces in real task processes, with a file system whose daemons run in this process.

use crate::{
    daemons::{BLOCK_BYTES, Daemons},
    task::{Tracker, expect_done, expect_failed, expect_fatal},
};
use dfs_client::{Client, ClientOptions, CreateOptions, path::DfsPath};
use proto::mr::{
    MapAvailable, MapEvent, Partition, Program, Split, TaskMapEvents, TaskResult, TaskSpec, TaskStart,
    map_event, program, task_spec, to_task,
};
use std::{collections::BTreeMap, path::Path};
use tokio::runtime::Runtime;

struct FileSystem {
    daemons: Daemons,
    client: Client,
}

async fn start_file_system() -> FileSystem {
    let daemons = Daemons::start(&["n1"]).await;
    let options = ClientOptions::new(daemons.namenodes(), daemons.config.client.clone());
    let client = Client::connect(options).await.expect("a NameNode");
    FileSystem { daemons, client }
}

fn path(text: &str) -> DfsPath {
    DfsPath::parse(text).expect("a path")
}

impl FileSystem {
    async fn write(&self, to: &str, bytes: &[u8]) {
        let mut file = self.client.create(&path(to), CreateOptions::default()).await.expect("enough space");
        file.write(bytes).await.expect("enough space");
        file.close().await.expect("enough space");
    }

    async fn read(&self, from: &str) -> String {
        let mut reader = self.client.open(&path(from)).await.expect("a file");
        let mut bytes = Vec::new();
        while let Some(more) = reader.next().await.expect("a file") {
            bytes.extend_from_slice(&more);
        }
        String::from_utf8(bytes).expect("text")
    }

    /// Runs one attempt of a built-in program.
    fn run(
        &self,
        attempt: &str,
        program: &str,
        reduces: u32,
        input: task_spec::Input,
        conf: &[(&str, &str)],
    ) -> Tracker {
        self.run_in(Tracker::with_mrtask(), attempt, program, reduces, input, conf)
    }

    /// Runs one attempt in the process of this tracker.
    fn run_in(
        &self,
        mut tracker: Tracker,
        attempt: &str,
        program: &str,
        reduces: u32,
        input: task_spec::Input,
        conf: &[(&str, &str)],
    ) -> Tracker {
        let spec = TaskSpec {
            attempt: attempt.into(),
            user: "tester".into(),
            program: Some(Program {
                kind: Some(program::Kind::Builtin(program.into())),
                ..Program::default()
            }),
            conf: conf.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            input: Some(input),
            reduces,
            work_output: format!("/out/_temporary/job_1/{attempt}"),
            namenodes: self.daemons.namenodes().to_vec(),
            ..TaskSpec::default()
        };
        let scratch = tracker.folder.path().display().to_string();
        let start = TaskStart {
            spec: Some(spec),
            work_dir: scratch.clone(),
            scratch_dirs: vec![scratch],
            memory_bytes: 8 << 20,
            map_output: self.map_output(attempt),
            ..TaskStart::default()
        };
        tracker.send(to_task::Kind::Start(start));
        tracker
    }

    fn map_output(&self, attempt: &str) -> String {
        self.daemons.folder.path().join(attempt).display().to_string()
    }

    fn map(&self, index: u64, program: &str, reduces: u32, range: (u64, u64)) -> Tracker {
        let split =
            Split { source: "/in".into(), start: range.0, end: range.1, whole: false, ..Split::default() };
        self.run(&format!("job_1.m{index}.0"), program, reduces, task_spec::Input::Split(split), &[])
    }

    fn reduce(&self, index: u32, maps: u64, reduces: u32) -> TaskResult {
        let partition = Partition { index, maps: maps as u32 };
        let input = task_spec::Input::Partition(partition);
        let conf = [("output.replication", "1")];
        let mut tracker = self.run(&format!("job_1.r{index}.0"), "wordcount", reduces, input, &conf);
        let event = |map| {
            let attempt = format!("job_1.m{map}.0");
            let local_path = self.map_output(&attempt);
            let available = MapAvailable { attempt, local_path, ..MapAvailable::default() };
            MapEvent { kind: Some(map_event::Kind::Available(available)) }
        };
        let events = (0..maps).map(event).collect();
        tracker.send(to_task::Kind::MapEvents(TaskMapEvents { first: 0, events, maps: maps as u32 }));
        expect_done(tracker.wait_for_end())
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads")
}

#[test]
fn wordcount_reads_a_file_and_writes_pieces() {
    let runtime = runtime();
    let files = runtime.block_on(start_file_system());
    let text: String = (0..40_000_u32).map(|n| ["w", &(n * n % 997).to_string(), "\n"].concat()).collect();
    runtime.block_on(files.write("/in", text.as_bytes()));
    let (length, reduces) = (text.len() as u64, 2);
    let maps = length.div_ceil(BLOCK_BYTES);
    for map in 0..maps {
        let range = (map * BLOCK_BYTES, ((map + 1) * BLOCK_BYTES).min(length));
        let result = expect_done(files.map(map, "wordcount", reduces, range).wait_for_end());
        assert!(result.pieces.is_empty() && result.counters["MAP_OUTPUT_RECORDS"] > 0);
        assert!(Path::new(&files.map_output(&format!("job_1.m{map}.0"))).exists());
    }
    let mut counts = BTreeMap::new();
    for reduce in 0..reduces {
        let result = files.reduce(reduce, maps, reduces);
        assert_eq!(result.pieces, [format!("/out/_temporary/job_1/job_1.r{reduce}.0/part-r-0000{reduce}.0")]);
        let piece = runtime.block_on(files.read(&result.pieces[0]));
        assert_eq!(piece.len() as u64, result.bytes_out);
        for line in piece.lines() {
            let (word, count) = line.split_once('\t').expect("a tab");
            counts.insert(word.to_owned(), count.parse::<u64>().expect("a number"));
        }
    }
    let mut plain = BTreeMap::new();
    for word in text.lines() {
        *plain.entry(word.to_owned()).or_default() += 1;
    }
    assert_eq!(counts, plain);
}

#[test]
fn map_only_job_writes_pieces_and_a_failed_map_leaves_none() {
    let runtime = runtime();
    let files = runtime.block_on(start_file_system());
    let text = "a line of words\n".repeat(100_000);
    runtime.block_on(files.write("/in", text.as_bytes()));
    let result = expect_done(files.map(0, "identity", 0, (0, text.len() as u64)).wait_for_end());
    assert_eq!(runtime.block_on(files.read(&result.pieces[0])), text);
    // Run a map that writes more than one portion and then fails.
    let split =
        Split { source: "/in".into(), start: 0, end: text.len() as u64, whole: false, ..Split::default() };
    let conf = [("stream.mapper", "sh -c 'cat; echo too bad >&2; exit 3'")];
    let input = task_spec::Input::Split(split);
    let why = expect_failed(files.run("job_1.m1.0", "streaming", 0, input, &conf).wait_for_end());
    assert!(why.contains("exit status 3") && why.contains("too bad"), "{why}");
    let left = runtime.block_on(files.client.walk(&path("/out"))).expect("a folder");
    let left: Vec<&str> = left.iter().filter(|status| !status.is_dir).map(|s| s.path.as_str()).collect();
    assert_eq!(left, ["/out/_temporary/job_1/job_1.m0.0/part-m-00000.0"]);
}

#[test]
fn failure_names_the_record_at_which_the_mapper_panics() {
    let runtime = runtime();
    let files = runtime.block_on(start_file_system());
    runtime.block_on(files.write("/in", b"good\ngood\npanic\ngood\n"));
    let split = Split { source: "/in".into(), start: 0, end: 21, whole: false, ..Split::default() };
    let (own, input) = (Tracker::with_own_program(), task_spec::Input::Split(split));
    let why = expect_failed(files.run_in(own, "job_1.m0.0", "any", 1, input, &[]).wait_for_end());
    assert!(why.starts_with("record at /in:3: panicked") && why.ends_with("this mapper panics"), "{why}");
}

#[test]
fn replaced_or_deleted_input_fails_the_job() {
    let runtime = runtime();
    let files = runtime.block_on(start_file_system());
    runtime.block_on(files.write("/in", b"old\n"));
    let status = runtime.block_on(files.client.stat(&path("/in"))).expect("a file");
    let split = Split {
        source: "/in".into(),
        start: 0,
        end: 4,
        whole: false,
        file_id: status.file_id.0,
        file_length: 4,
    };
    let run = |attempt: &str, split: &Split| {
        files.run(attempt, "identity", 0, task_spec::Input::Split(split.clone()), &[]).wait_for_end()
    };
    expect_done(run("job_7.m0.0", &split));
    let longer = Split { file_length: 5, ..split.clone() };
    let why = expect_fatal(run("job_7.m1.0", &longer));
    assert!(why.contains("truncated from 5 to 4 bytes after job_7 was submitted"), "{why}");
    runtime.block_on(files.client.delete(&path("/in"), false)).expect("the file exists");
    let why = expect_fatal(run("job_7.m2.0", &split));
    assert!(why.contains("input /in was deleted or moved after job_7 was submitted"), "{why}");
    runtime.block_on(files.write("/in", b"new\n"));
    let why = expect_fatal(run("job_7.m3.0", &split));
    assert!(why.contains("input /in was replaced after job_7 was submitted"), "{why}");
}

#[test]
fn failure_names_the_missing_input() {
    let files_runtime = runtime();
    let files = files_runtime.block_on(start_file_system());
    let why = expect_failed(files.map(0, "wordcount", 1, (0, 10)).wait_for_end());
    assert!(why.contains("/in"), "{why}");
}
