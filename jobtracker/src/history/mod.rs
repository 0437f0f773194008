//! Job history: for each job one file of JSON lines, `history/job_7.jsonl`, a line for each of its facts.
//!
//! Lines are written when their facts are durable in the journal, and not synced one by one: at start the journal
//! is read from the beginning of every remembered job, the lines that are there are counted off, and the missing
//! ones are added. So there is no gap and no duplicate, whenever the process or the machine died. A file is synced
//! when it is complete: its job is over and none of its attempts holds a slot.
//!
//! A history that cannot be written (a full disk) is given up with a word in the log, and completed at the next
//! start; jobs do not wait for it.

mod line;
mod scribe;

pub(crate) use line::Policy;
pub(crate) use scribe::Scribe;

use line::{Names, Place};
use mrcore::{Fact, fact::Entry, ids::JobId};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// The file of a job's history.
pub(crate) fn path_of(folder: &Path, job: JobId) -> PathBuf {
    folder.join(format!("{job}.jsonl"))
}

/// Whose job a history is of, as its first line says.
pub(crate) fn owner(folder: &Path, job: JobId) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Head {
        spec: Spec,
    }
    #[derive(serde::Deserialize)]
    struct Spec {
        user: String,
    }
    let mut line = String::new();
    BufReader::new(File::open(path_of(folder, job)).ok()?).read_line(&mut line).ok()?;
    Some(serde_json::from_str::<Head>(&line).ok()?.spec.user)
}

/// A history that is being written.
struct Book {
    file: BufWriter<File>,
    /// Lines that are on disk and whose facts have not been seen yet: the journal is being replayed.
    ahead: u64,
    /// Lines whose facts have been seen.
    lines: u64,
    ended: bool,
    /// Attempts that hold a slot.
    live: u32,
    /// Its second line says what the job was submitted to.
    says_to_whom: bool,
}

/// Every history.
pub(crate) struct Histories {
    folder: PathBuf,
    cluster: String,
    kept: usize,
    policy: Policy,
    names: Names,
    books: BTreeMap<JobId, Book>,
    on_disk: BTreeSet<JobId>,
}

impl Histories {
    /// Of a folder, which is made if it is not there.
    pub(crate) fn open(folder: &Path, cluster: &str, kept: usize, policy: Policy) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut on_disk = BTreeSet::new();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            let job = name.to_str().and_then(|name| name.strip_suffix(".jsonl"));
            on_disk.extend(job.and_then(|job| job.parse::<JobId>().ok()));
        }
        Ok(Self {
            folder: folder.into(),
            cluster: cluster.into(),
            kept,
            policy,
            names: Names::new(),
            books: BTreeMap::new(),
            on_disk,
        })
    }

    /// Takes one fact down.
    pub(crate) fn take(&mut self, entry: &Entry) {
        match &entry.fact {
            Fact::TrackerJoined { tracker, name, host, rack, slots, .. } => {
                let (name, host, rack) = (name.clone(), host.clone(), rack.clone());
                self.names.insert(*tracker, Place { name, host, rack, slots: *slots, is_lost: false });
            }
            Fact::TrackerLost { tracker, .. } => {
                if let Some(place) = self.names.get_mut(tracker) {
                    place.is_lost = true;
                }
            }
            _ => {}
        }
        let Some(job) = entry.fact.job() else { return };
        let Some(line) = line::render(&self.cluster, &self.names, entry) else { return };
        if let Err(error) = self.write(job, entry, &line) {
            self.give_up(job, &error);
        }
    }

    fn write(&mut self, job: JobId, entry: &Entry, line: &str) -> io::Result<()> {
        if let Fact::JobSubmitted { .. } = entry.fact {
            let book = Book::open(&path_of(&self.folder, job), line)?;
            self.books.insert(job, book);
            self.on_disk.insert(job);
        }
        let Some(book) = self.books.get_mut(&job) else { return Ok(()) };
        book.add(line)?;
        match entry.fact {
            // Once written it stays, whatever the policy is at the next start; older files go on without.
            Fact::JobSubmitted { .. } if book.says_to_whom => {
                book.add(&line::submitted_to(entry.at, &self.policy, &self.names))?;
            }
            Fact::AttemptLaunched { .. } => book.live += 1,
            Fact::AttemptSucceeded { .. }
            | Fact::AttemptFailed { .. }
            | Fact::AttemptKilled { .. }
            | Fact::AttemptPaused { .. }
            | Fact::MapSplit { .. } => book.live = book.live.saturating_sub(1),
            Fact::JobEnded { .. } => book.ended = true,
            _ => {}
        }
        if book.ended && book.live == 0 {
            let book = self.books.remove(&job).expect("it is there");
            book.close(&path_of(&self.folder, job))?;
            self.prune();
        }
        Ok(())
    }

    /// The journal is replayed: from here on every fact is new.
    pub(crate) fn caught_up(&mut self) {
        let jobs: Vec<JobId> = self.books.keys().copied().collect();
        for job in jobs {
            let path = path_of(&self.folder, job);
            if let Some(book) = self.books.get_mut(&job)
                && let Err(error) = book.forget_ahead(&path)
            {
                self.give_up(job, &error);
            }
        }
        self.prune();
        self.flush();
    }

    /// Hands what is buffered to the system.
    pub(crate) fn flush(&mut self) {
        let mut failed = Vec::new();
        for (job, book) in &mut self.books {
            if let Err(error) = book.file.flush() {
                failed.push((*job, error));
            }
        }
        for (job, error) in failed {
            self.give_up(job, &error);
        }
    }

    fn give_up(&mut self, job: JobId, error: &io::Error) {
        tracing::error!(%job, %error, "cannot write the job's history: it will be completed at the next start");
        if let Some(book) = self.books.remove(&job) {
            // What is buffered is not worth another error.
            let _ = book.file.into_parts();
        }
    }

    /// Deletes the oldest beyond the limit; never one that is being written.
    fn prune(&mut self) {
        let surplus = self.on_disk.len().saturating_sub(self.kept);
        let closed = self.on_disk.iter().filter(|job| !self.books.contains_key(job));
        let oldest: Vec<JobId> = closed.take(surplus).copied().collect();
        for job in oldest {
            match fs::remove_file(path_of(&self.folder, job)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%job, %error, "cannot delete an old history");
                    return;
                }
                _ => self.on_disk.remove(&job),
            };
        }
    }
}

impl Book {
    /// A job's file as it is, cut after its last whole line; an empty one if it is another job's.
    fn open(path: &Path, head: &str) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut reader = BufReader::new(&file);
        let (mut whole, mut ahead, mut says_to_whom) = (0, 0, true);
        let mut line = Vec::new();
        loop {
            line.clear();
            let bytes = reader.read_until(b'\n', &mut line)?;
            let foreign = ahead == 0 && line != head.as_bytes();
            if bytes == 0 || line.last() != Some(&b'\n') || foreign {
                break;
            }
            if ahead == 1 {
                says_to_whom = String::from_utf8_lossy(&line).contains(line::SUBMITTED_TO);
            }
            whole += bytes as u64;
            ahead += 1;
        }
        drop(reader);
        file.set_len(whole)?;
        let mut file = BufWriter::new(file);
        file.seek(SeekFrom::Start(whole))?;
        Ok(Self { file, ahead, lines: 0, ended: false, live: 0, says_to_whom })
    }

    fn add(&mut self, line: &str) -> io::Result<()> {
        self.lines += 1;
        if self.ahead > 0 {
            self.ahead -= 1;
            return Ok(());
        }
        self.file.write_all(line.as_bytes())
    }

    /// Cuts lines whose facts the journal does not have: a damaged part of it was dropped.
    fn forget_ahead(&mut self, path: &Path) -> io::Result<()> {
        if std::mem::take(&mut self.ahead) == 0 {
            return Ok(());
        }
        let mut reader = BufReader::new(File::open(path)?);
        let mut line = Vec::new();
        let mut whole = 0;
        for _ in 0..self.lines {
            line.clear();
            whole += reader.read_until(b'\n', &mut line)? as u64;
        }
        self.file.get_ref().set_len(whole)?;
        self.file.seek(SeekFrom::Start(whole))?;
        Ok(())
    }

    fn close(mut self, path: &Path) -> io::Result<()> {
        self.forget_ahead(path)?;
        self.file.flush()?;
        self.file.get_ref().sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrcore::{
        Time,
        ids::{AttemptId, RequestId, TrackerId},
        job::{JobOutcome, JobSpec, Priority},
        plan::Why,
        task::{AttemptResult, Stage},
    };
    use std::{collections::BTreeMap, sync::Arc};

    #[test]
    fn a_history_is_closed_when_every_attempt_is_gone_whichever_way() {
        let folder = tempfile::tempdir().unwrap();
        let mut histories = Histories::open(folder.path(), "c", 10, Policy::default()).unwrap();
        let mut take = |fact| histories.take(&Entry { at: Time(0), fact });
        let id = |text: &str| text.parse::<AttemptId>().unwrap();
        let job = id("job_1.m0.0").job();
        let spec = JobSpec {
            name: "j".into(),
            user: "u".into(),
            queue: String::new(),
            priority: Priority::default(),
            program: String::new(),
            splits: Vec::new(),
            reduces: 1,
            output: String::new(),
            slow_start: 0.0,
            speculation: false,
            attempts_max: 1,
            conf: BTreeMap::new(),
        };
        take(Fact::JobSubmitted { job, request: RequestId(1), spec: Arc::new(spec) });
        let names = ["job_1.m0.0", "job_1.m1.0", "job_1.r0.0", "job_1.r0.1", "job_1.r0.2"];
        for attempt in names.map(id) {
            let (tracker, why) = (TrackerId(1), Why::default());
            take(Fact::AttemptLaunched { attempt, tracker, speculative: false, from: None, why });
        }
        let [split, done, paused, failed, killed] = names.map(id);
        take(Fact::MapSplit { attempt: split, position: 7, result: AttemptResult::default() });
        take(Fact::AttemptSucceeded { attempt: done, result: AttemptResult::default() });
        take(Fact::AttemptPaused { attempt: paused, stage: Stage::Reduce, bytes: 1, bytes_in: 1 });
        take(Fact::AttemptFailed { attempt: failed, error: "e".into() });
        take(Fact::JobEnded { job, outcome: JobOutcome::Succeeded });
        take(Fact::AttemptKilled { attempt: killed, why: "k".into(), bytes_in: 0 });
        assert!(histories.books.is_empty());
        assert_eq!(fs::read_to_string(path_of(folder.path(), job)).unwrap().lines().count(), 13);
    }
}
