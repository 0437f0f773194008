//! Work during disk faults: known files, gets and puts one after the other, and a job.

use fermata_tests::{Cluster, eventually, random_file, sha256_of};
use serde_json::Value;
use std::{
    fmt, fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
};

/// Number of known files.
const FILES: u64 = 6;
/// A known file has three blocks; the last one is not full.
const FILE_BYTES: u64 = (5 << 20) / 2;
/// Bytes of a file that is put during a fault.
const NEW_BYTES: u64 = 300 << 10;

/// A file in the file system, and the local file with its content.
#[derive(Debug, Clone)]
pub(super) struct StoredFile {
    path: String,
    source: PathBuf,
    sum: String,
}

/// Data that was written before the faults.
pub(super) struct Known {
    files: Vec<StoredFile>,
    /// Output of a wordcount of `/in`.
    counted: Vec<u8>,
}

impl Known {
    pub(super) fn put(cluster: &Cluster) -> Self {
        cluster.mrctl(&["fs", "mkdir", "/known"]);
        let one = |number: u64| {
            let source = cluster.path(&format!("known-{number}"));
            random_file(&source, FILE_BYTES, 100 + number);
            let path = format!("/known/{number}");
            cluster.mrctl(&["fs", "put", source.to_str().unwrap(), &path]);
            StoredFile { path, sum: sha256_of(&source), source }
        };
        let files = (0..FILES).map(one).collect();
        fs::write(cluster.path("in"), "a b c\n".repeat(2000)).unwrap();
        cluster.mrctl(&["fs", "put", "in", "/in"]);
        cluster.succeed(&["wordcount", "--input", "/in", "--output", "/counted"]);
        let counted = cluster.output("/counted");
        Self { files, counted }
    }

    /// Returns the IDs of blocks of known files that have a replica on a node.
    pub(super) fn blocks_on(&self, cluster: &Cluster, node: &str) -> Vec<u64> {
        let paths: Vec<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        let files = cluster.json(&[&["fs", "stat", "--blocks"], &paths[..]].concat());
        let blocks = files.as_array().unwrap().iter().flat_map(|file| file["locations"].as_array().unwrap());
        let here =
            |block: &&Value| block["nodes"].as_array().unwrap().iter().any(|address| address["node"] == node);
        blocks.filter(here).map(|block| block["block"].as_u64().unwrap()).collect()
    }

    /// Checks that every known and every acknowledged file exists and has the right contents.
    pub(super) fn check(&self, cluster: &Cluster, acknowledged: &[StoredFile]) {
        for file in self.files.iter().chain(acknowledged) {
            let read =
                eventually(&format!("{} is served", file.path), || read(cluster, &file.path, "checked").ok());
            assert_eq!(read, file.sum, "wrong bytes of {}", file.path);
        }
    }

    /// Checks that every file has the right contents or, if the operator has accepted a loss, is
    /// missing. Puts missing known files again.
    pub(super) fn check_or_missing(&self, cluster: &Cluster, acknowledged: &[StoredFile], given_up: bool) {
        let mut missing = Vec::new();
        for file in self.files.iter().chain(acknowledged) {
            let found = eventually(&format!("{} is served or known to be gone", file.path), || {
                match read(cluster, &file.path, "checked") {
                    Ok(sum) => Some(Some(sum)),
                    Err(text) => is_missing(&text).then_some(None),
                }
            });
            match found {
                Some(sum) => assert_eq!(sum, file.sum, "wrong bytes of {}", file.path),
                None => missing.push(file),
            }
        }
        assert!(given_up || missing.is_empty(), "lost without consent of the operator: {missing:?}");
        for file in missing.into_iter().filter(|file| file.path.starts_with("/known/")) {
            cluster.try_mrctl(&["fs", "mkdir", "-p", "/known"]);
            cluster.mrctl(&["fs", "put", file.source.to_str().unwrap(), &file.path]);
        }
        if cluster.try_mrctl(&["fs", "stat", "/in"]).code != 0 {
            cluster.mrctl(&["fs", "put", "in", "/in"]);
        }
    }
}

fn is_missing(text: &str) -> bool {
    text.contains("no such file") || text.contains("not found") || text.contains("does not exist")
}

/// Gets a file. Returns its checksum, or the error message.
fn read(cluster: &Cluster, path: &str, into: &str) -> Result<String, String> {
    let got = cluster.path(into);
    let ran = cluster.try_mrctl(&["fs", "get", "--force", path, got.to_str().unwrap()]);
    if ran.code == 0 { Ok(sha256_of(&got)) } else { Err(ran.stderr) }
}

/// What was served during the work.
#[derive(Debug, Default)]
pub(super) struct Served {
    gets: u32,
    pub(super) gets_failed: u32,
    puts: u32,
    pub(super) puts_failed: u32,
    /// The last error message.
    text: String,
    /// Files that were read with wrong contents.
    wrong: Vec<String>,
    /// New files that were acknowledged.
    pub(super) acknowledged: Vec<StoredFile>,
    job: &'static str,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gets, puts) = (self.gets - self.gets_failed, self.puts - self.puts_failed);
        write!(f, "{gets} of {} gets, {puts} of {} puts, {}", self.gets, self.puts, self.job)
    }
}

/// Work in the background: gets and puts in a separate thread, and a job.
pub(super) struct Work {
    cluster: Arc<Cluster>,
    counted: Vec<u8>,
    output: String,
    round: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Served>,
}

/// Number of [`Work`]s so far, for unique names.
static WORKS: AtomicU32 = AtomicU32::new(0);

impl Work {
    pub(super) fn begin(cluster: &Arc<Cluster>, known: &Known) -> Self {
        let number = WORKS.fetch_add(1, Ordering::Relaxed);
        let (round, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let output = format!("/counted-{number}");
        // If the master is down the submission fails, and the job is submitted at the end.
        submit(cluster, &output);
        let (files, shared) = (known.files.clone(), (cluster.clone(), round.clone(), over.clone()));
        let thread = thread::spawn(move || {
            let (cluster, round, over) = shared;
            let mut served = Served::default();
            while !over.load(Ordering::Relaxed) {
                one_round(&cluster, &files, number, round.load(Ordering::Relaxed), &mut served);
                round.fetch_add(1, Ordering::Relaxed);
            }
            served
        });
        Self { cluster: cluster.clone(), counted: known.counted.clone(), output, round, over, thread }
    }

    /// Waits until this many more rounds of gets and puts are complete.
    pub(super) fn rounds(&self, count: u32) {
        let until = self.round.load(Ordering::Relaxed) + count;
        // Each operation may take as long as the deadline of the client.
        eventually("more operations complete", || {
            (self.round.load(Ordering::Relaxed) >= until).then_some(())
        });
    }

    /// Ends the work, and waits for its job.
    #[track_caller]
    pub(super) fn end(self) -> Served {
        self.end_after(false)
    }

    /// Like [`Self::end`]. If an operator has accepted the loss of a part of a journal
    /// (`given_up`), the output of the job may be lost; then the job is submitted again.
    #[track_caller]
    pub(super) fn end_after(self, given_up: bool) -> Served {
        self.over.store(true, Ordering::Relaxed);
        let mut served = self.thread.join().expect("work never panics");
        assert!(served.wrong.is_empty(), "wrong bytes were read: {:?}", served.wrong);
        if served.gets_failed + served.puts_failed > 0 {
            println!("last error: {}", served.text.trim());
        }
        served.job = "a job";
        for again in [false, true] {
            if again {
                served.job = "a job submitted again";
                // Jobs are refused while a NameNode that was just started is in safemode.
                eventually("a job is accepted", || {
                    submit(&self.cluster, &format!("{}-again", self.output)).then_some(())
                });
            }
            let output = if again { format!("{}-again", self.output) } else { self.output.clone() };
            if await_job(&self.cluster, &output) {
                let parts = format!("{output}/part-*");
                if given_up && !again && self.cluster.try_mrctl(&["fs", "ls", &parts]).code != 0 {
                    continue;
                }
                assert_eq!(self.cluster.output(&output), self.counted, "the output of the job is wrong");
                return served;
            }
        }
        panic!("no job succeeds");
    }
}

fn submit(cluster: &Cluster, output: &str) -> bool {
    cluster.try_mrctl(&["submit", "wordcount", "--input", "/in", "--output", output, "--detach"]).code == 0
}

/// Waits for the end of the job with this output. Returns false if there is no such job, or if it
/// has failed.
fn await_job(cluster: &Cluster, output: &str) -> bool {
    eventually(&format!("the job for {output} is over or unknown"), || {
        let ran = cluster.try_mrctl(&["jobs", "--json"]);
        let jobs: Value = serde_json::from_str(&ran.stdout).ok()?;
        match jobs.as_array()?.iter().find(|job| job["output"] == output) {
            None => Some(false),
            Some(job) if job["state"] == "succeeded" => Some(true),
            Some(job) if job["state"] == "failed" || job["state"] == "killed" => {
                println!("a job failed: {job}");
                Some(false)
            }
            Some(_) => None,
        }
    })
}

fn one_round(cluster: &Cluster, files: &[StoredFile], number: u32, round: u32, served: &mut Served) {
    if round % 3 == 2 {
        let source = cluster.path(&format!("new-{number}-{round}"));
        random_file(&source, NEW_BYTES, u64::from(number * 1000 + round));
        let path = format!("/new-{number}-{round}");
        served.puts += 1;
        let ran = cluster.try_mrctl(&["fs", "put", source.to_str().unwrap(), &path]);
        if ran.code == 0 {
            served.acknowledged.push(StoredFile { path, sum: sha256_of(&source), source });
        } else {
            served.puts_failed += 1;
            served.text = ran.stderr;
        }
        return;
    }
    let all: Vec<&StoredFile> = files.iter().chain(&served.acknowledged).collect();
    let file = all[round as usize % all.len()];
    served.gets += 1;
    match read(cluster, &file.path, "got") {
        Ok(sum) if sum == file.sum => {}
        Ok(sum) => served.wrong.push(format!("{}: {sum}, not {}", file.path, file.sum)),
        Err(text) => {
            served.gets_failed += 1;
            served.text = text;
        }
    }
}
