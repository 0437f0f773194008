//! Job history: one file of JSON lines per job, `history/job_7.jsonl`, with a line for each fact of
//! the job.
//!
//! Lines are written when their facts are durable in the journal, and are not synced one by one. At
//! start the journal is replayed from the beginning of every job in it. Lines that a file has
//! already are skipped and the missing ones are added, so a crash causes neither gaps nor
//! duplicates. A file is synced when it is complete: its job has ended and no attempt of it uses a
//! slot.
//!
//! If a history cannot be written (the disk is full, or less is free than the reserve), the error
//! is logged and the history is completed at the next start; jobs do not wait for it. Histories
//! have limits by number and by bytes, in total and per user. The oldest are removed first, and
//! never one that is being written. Bytes count as soon as they are written.

mod record;
mod writer;

pub(crate) use record::Policy;
pub(crate) use writer::HistoryWriter;

use mrcore::{Fact, fact::Entry, ids::JobId};
use record::{KnownTracker, Names};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// The history file of a job.
pub(crate) fn path_of(folder: &Path, job: JobId) -> PathBuf {
    folder.join(format!("{job}.jsonl"))
}

/// The user who submitted a job, from the first line of its history.
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

/// Limits for the history files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of files.
    pub(crate) count: usize,
    /// Maximum bytes of all files.
    pub(crate) bytes: u64,
    /// Maximum bytes of the files of one user.
    pub(crate) user_bytes: u64,
    /// Bytes that must stay free on the disk; below this, no history is written.
    pub(crate) reserve: u64,
}

/// A history file on disk.
struct Stored {
    bytes: u64,
    user: String,
}

/// Free space and limits are checked again after this many lines.
const CHECK_INTERVAL_LINES: u32 = 256;

/// A history file that is being written.
struct HistoryFile {
    file: BufWriter<File>,
    /// During replay: lines on disk whose facts have not been replayed yet.
    unreplayed_lines: u64,
    /// Lines whose facts have been appended or replayed.
    lines: u64,
    bytes: u64,
    ended: bool,
    /// Attempts that use a slot.
    live: u32,
}

/// All history files.
pub(crate) struct Histories {
    folder: PathBuf,
    cluster: String,
    limits: Limits,
    policy: Policy,
    names: Names,
    open_files: BTreeMap<JobId, HistoryFile>,
    on_disk: BTreeMap<JobId, Stored>,
    /// Lines until free space and limits are checked again.
    lines_until_check: u32,
    /// Whether less is free than the reserve.
    disk_low: bool,
}

impl Histories {
    /// Opens the folder, and creates it if it does not exist.
    pub(crate) fn open(folder: &Path, cluster: &str, limits: Limits, policy: Policy) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut on_disk = BTreeMap::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let job = name.to_str().and_then(|name| name.strip_suffix(".jsonl"));
            if let Some(job) = job.and_then(|job| job.parse::<JobId>().ok()) {
                let user = owner(folder, job).unwrap_or_default();
                on_disk.insert(job, Stored { bytes: entry.metadata()?.len(), user });
            }
        }
        Ok(Self {
            folder: folder.into(),
            cluster: cluster.into(),
            limits,
            policy,
            names: Names::new(),
            open_files: BTreeMap::new(),
            on_disk,
            lines_until_check: 0,
            disk_low: false,
        })
    }

    /// Adds the line of a fact to the history of its job.
    pub(crate) fn append(&mut self, entry: &Entry) {
        match &entry.fact {
            Fact::TrackerJoined { tracker, name, host, rack, slots, .. } => {
                let (name, host, rack) = (name.clone(), host.clone(), rack.clone());
                self.names.insert(*tracker, KnownTracker { name, host, rack, slots: *slots, is_lost: false });
            }
            Fact::TrackerLost { tracker, .. } => {
                if let Some(place) = self.names.get_mut(tracker) {
                    place.is_lost = true;
                }
            }
            Fact::TrackerForgotten { tracker, .. } => {
                self.names.remove(tracker);
            }
            _ => {}
        }
        let Some(job) = entry.fact.job() else { return };
        let Some(line) = record::render(&self.cluster, &self.names, entry) else { return };
        if let Err(error) = self.write(job, entry, &line) {
            self.give_up(job, &error);
        }
    }

    /// Fails if less is free than the reserve, which is kept for the journal.
    fn check_space(&mut self) -> io::Result<()> {
        if self.lines_until_check == 0 {
            self.lines_until_check = CHECK_INTERVAL_LINES;
            let stat = rustix::fs::statvfs(&self.folder)?;
            self.disk_low = stat.f_bavail.saturating_mul(stat.f_frsize) < self.limits.reserve;
        }
        self.lines_until_check -= 1;
        if self.disk_low {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "less is free on the disk than jobtracker.disk_reserve",
            ));
        }
        Ok(())
    }

    fn write(&mut self, job: JobId, entry: &Entry, line: &str) -> io::Result<()> {
        let mut prune = false;
        if let Fact::JobSubmitted { spec, .. } = &entry.fact {
            self.lines_until_check = 0;
            self.check_space()?;
            let history_file = HistoryFile::open(&path_of(&self.folder, job), line)?;
            self.on_disk.insert(job, Stored { bytes: history_file.bytes, user: spec.user.clone() });
            self.open_files.insert(job, history_file);
        } else if self.open_files.contains_key(&job) {
            prune = self.lines_until_check == 0;
            self.check_space()?;
        }
        let Some(history_file) = self.open_files.get_mut(&job) else { return Ok(()) };
        history_file.add(line)?;
        match entry.fact {
            // The line keeps the policy of the submission, even if a later start uses another one.
            Fact::JobSubmitted { .. } => {
                history_file.add(&record::submitted_to(entry.at, &self.policy, &self.names))?;
            }
            Fact::AttemptLaunched { .. } => history_file.live += 1,
            Fact::AttemptSucceeded { .. }
            | Fact::AttemptFailed { .. }
            | Fact::AttemptKilled { .. }
            | Fact::AttemptPaused { .. }
            | Fact::MapSplit { .. } => history_file.live = history_file.live.saturating_sub(1),
            Fact::JobEnded { .. } => history_file.ended = true,
            _ => {}
        }
        let mut bytes = history_file.bytes;
        if history_file.ended && history_file.live == 0 {
            let history_file = self.open_files.remove(&job).expect("is open");
            bytes = history_file.close(&path_of(&self.folder, job))?;
            prune = true;
        }
        if let Some(stored) = self.on_disk.get_mut(&job) {
            stored.bytes = bytes;
        }
        if prune {
            self.prune();
        }
        Ok(())
    }

    /// Ends the replay of the journal: facts from here on are new.
    pub(crate) fn caught_up(&mut self) {
        let jobs: Vec<JobId> = self.open_files.keys().copied().collect();
        for job in jobs {
            let path = path_of(&self.folder, job);
            if let Some(history_file) = self.open_files.get_mut(&job)
                && let Err(error) = history_file.cut_unreplayed(&path)
            {
                self.give_up(job, &error);
            }
        }
        self.prune();
        self.flush();
    }

    /// Writes the buffered lines to the files.
    pub(crate) fn flush(&mut self) {
        let mut failed = Vec::new();
        for (job, history_file) in &mut self.open_files {
            if let Err(error) = history_file.file.flush() {
                failed.push((*job, error));
            }
        }
        for (job, error) in failed {
            self.give_up(job, &error);
        }
    }

    fn give_up(&mut self, job: JobId, error: &io::Error) {
        tracing::error!(%job, %error, "cannot write the job's history: it will be completed at the next start");
        if let Some(history_file) = self.open_files.remove(&job) {
            // Discard the buffer: writing it on drop could fail again.
            let _ = history_file.file.into_parts();
        }
    }

    /// Deletes the oldest histories beyond the limits, except those that are being written.
    fn prune(&mut self) {
        for job in self.surplus() {
            match fs::remove_file(path_of(&self.folder, job)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%job, %error, "cannot delete an old history");
                    return;
                }
                _ => self.on_disk.remove(&job),
            };
        }
    }

    /// The histories beyond the limits, oldest first. The limit per user never removes the newest
    /// history of the user; the limit for all may.
    fn surplus(&self) -> Vec<JobId> {
        let mut of_user: BTreeMap<&str, (u64, JobId)> = BTreeMap::new();
        let mut bytes = 0;
        for (job, stored) in &self.on_disk {
            let (own, newest) = of_user.entry(&stored.user).or_insert((0, *job));
            (*own, *newest) = (*own + stored.bytes, *job);
            bytes += stored.bytes;
        }
        let mut count = self.on_disk.len();
        let mut surplus = Vec::new();
        for (job, stored) in self.on_disk.iter().filter(|(job, _)| !self.open_files.contains_key(job)) {
            let (own, newest) = of_user.get_mut(stored.user.as_str()).expect("counted above");
            let too_much_of_user = *own > self.limits.user_bytes && newest != job;
            if count > self.limits.count || bytes > self.limits.bytes || too_much_of_user {
                count -= 1;
                bytes -= stored.bytes;
                *own -= stored.bytes;
                surplus.push(*job);
            }
        }
        surplus
    }
}

impl HistoryFile {
    /// Opens the file of a job and truncates it after its last complete line. A file of another job
    /// is truncated to 0 bytes.
    fn open(path: &Path, head: &str) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut reader = BufReader::new(&file);
        let (mut whole, mut unreplayed_lines) = (0, 0);
        let mut line = Vec::new();
        loop {
            line.clear();
            let bytes = reader.read_until(b'\n', &mut line)?;
            let foreign = unreplayed_lines == 0 && line != head.as_bytes();
            if bytes == 0 || line.last() != Some(&b'\n') || foreign {
                break;
            }
            whole += bytes as u64;
            unreplayed_lines += 1;
        }
        drop(reader);
        file.set_len(whole)?;
        let mut file = BufWriter::new(file);
        file.seek(SeekFrom::Start(whole))?;
        Ok(Self { file, unreplayed_lines, lines: 0, bytes: whole, ended: false, live: 0 })
    }

    fn add(&mut self, line: &str) -> io::Result<()> {
        self.lines += 1;
        if self.unreplayed_lines > 0 {
            self.unreplayed_lines -= 1;
            return Ok(());
        }
        self.bytes += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }

    /// Removes lines whose facts the journal does not have, because damaged records of it were
    /// dropped.
    fn cut_unreplayed(&mut self, path: &Path) -> io::Result<()> {
        if std::mem::take(&mut self.unreplayed_lines) == 0 {
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
        self.bytes = whole;
        Ok(())
    }

    /// Makes the file durable. Returns its length.
    fn close(mut self, path: &Path) -> io::Result<u64> {
        self.cut_unreplayed(path)?;
        self.file.flush()?;
        self.file.get_ref().sync_data()?;
        Ok(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrcore::{
        PerPhase, Time,
        ids::{AttemptId, Incarnation, RequestId, TrackerId},
        job::{JobOutcome, JobSpec, Payload, Priority, Program},
        plan::Why,
        task::{AttemptResult, Stage},
    };
    use std::{collections::BTreeMap, sync::Arc};

    #[test]
    fn the_oldest_go_when_there_are_too_many_bytes_of_a_user_or_of_all() {
        let folder = tempfile::tempdir().unwrap();
        for (job, user, bytes) in
            [(1, "bob", 500), (2, "ann", 900), (3, "bob", 500), (4, "ann", 300), (5, "ann", 300)]
        {
            let head = format!("{{\"spec\":{{\"user\":\"{user}\"}}}}\n");
            let text = format!("{head}{}\n", "x".repeat(bytes - head.len() - 1));
            fs::write(path_of(folder.path(), JobId(job)), text).unwrap();
        }
        let left = |count, bytes, user_bytes| {
            let limits = Limits { count, bytes, user_bytes, reserve: 0 };
            let histories = Histories::open(folder.path(), "c", limits, Policy::default()).unwrap();
            let gone = histories.surplus();
            histories.on_disk.keys().filter(|job| !gone.contains(job)).map(|job| job.0).collect::<Vec<_>>()
        };
        assert_eq!(left(10, 10_000, 10_000), [1, 2, 3, 4, 5]);
        assert_eq!(left(2, 10_000, 10_000), [4, 5]);
        assert_eq!(left(10, 10_000, 1000), [1, 3, 4, 5], "ann is over the limit, bob is not");
        assert_eq!(left(10, 1200, 10_000), [3, 4, 5]);
        assert_eq!(left(10, 10_000, 10), [3, 5], "the newest history of each user stays");
        assert_eq!(left(10, 10, 10_000), [] as [u32; 0], "the limit for all removes the newest too");
    }

    fn spec(user: &str) -> Arc<JobSpec> {
        Arc::new(JobSpec {
            name: "j".into(),
            user: user.into(),
            queue: String::new(),
            priority: Priority::default(),
            program: Program::Builtin(String::new()),
            splits: Vec::new(),
            reduces: 1,
            output: String::new(),
            slow_start: 0.0,
            speculation: false,
            split_slow: true,
            attempts_max: 1,
            conf: BTreeMap::new(),
            payload: Payload::default(),
        })
    }

    #[test]
    fn history_forgets_forgotten_trackers() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { count: 10, bytes: u64::MAX, user_bytes: u64::MAX, reserve: 0 };
        let mut histories = Histories::open(folder.path(), "c", limits, Policy::default()).unwrap();
        let joined = Fact::TrackerJoined {
            tracker: TrackerId(1),
            name: "node1".into(),
            incarnation: Incarnation(1),
            host: "h".into(),
            rack: "r".into(),
            shuffle_addr: String::new(),
            logs_addr: String::new(),
            slots: PerPhase { map: 1, reduce: 1 },
        };
        histories.append(&Entry { at: Time(0), fact: joined });
        assert_eq!(histories.names.len(), 1);
        let (name, why) = ("node1".into(), String::new());
        let fact = Fact::TrackerForgotten { tracker: TrackerId(1), name, why };
        histories.append(&Entry { at: Time(0), fact });
        assert!(histories.names.is_empty());
    }

    #[test]
    fn open_history_counts_against_the_quota() {
        let folder = tempfile::tempdir().unwrap();
        let old = path_of(folder.path(), JobId(1));
        fs::write(&old, "x".repeat(5000)).unwrap();
        let limits = Limits { count: 10, bytes: 50_000, user_bytes: u64::MAX, reserve: 0 };
        let mut histories = Histories::open(folder.path(), "c", limits, Policy::default()).unwrap();
        let submitted = Fact::JobSubmitted { job: JobId(2), request: RequestId(1), spec: spec("ann") };
        histories.append(&Entry { at: Time(0), fact: submitted });
        for number in 0..2 * CHECK_INTERVAL_LINES {
            let attempt = format!("job_2.m0.{number}").parse().unwrap();
            let fact = Fact::AttemptFailed { attempt, error: "e".repeat(100) };
            histories.append(&Entry { at: Time(0), fact });
        }
        histories.flush();
        let written = fs::metadata(path_of(folder.path(), JobId(2))).unwrap().len();
        assert_eq!(histories.on_disk[&JobId(2)].bytes, written, "an open history counts");
        assert!(written > 50_000 && !old.exists(), "the old history is deleted");
    }

    #[test]
    fn history_closes_after_the_last_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { count: 10, bytes: u64::MAX, user_bytes: u64::MAX, reserve: 0 };
        let mut histories = Histories::open(folder.path(), "c", limits, Policy::default()).unwrap();
        let mut take = |fact| histories.append(&Entry { at: Time(0), fact });
        let id = |text: &str| text.parse::<AttemptId>().unwrap();
        let job = id("job_1.m0.0").job();
        take(Fact::JobSubmitted { job, request: RequestId(1), spec: spec("u") });
        let names = ["job_1.m0.0", "job_1.m1.0", "job_1.r0.0", "job_1.r0.1", "job_1.r0.2"];
        for attempt in names.map(id) {
            let (tracker, why) = (TrackerId(1), Why::default());
            take(Fact::AttemptLaunched { attempt, tracker, speculative: false, resumed_from: None, why });
        }
        let [split, done, paused, failed, killed] = names.map(id);
        take(Fact::MapSplit { attempt: split, position: 7, result: AttemptResult::default() });
        take(Fact::AttemptSucceeded { attempt: done, result: AttemptResult::default() });
        take(Fact::AttemptPaused { attempt: paused, stage: Stage::Reduce, bytes: 1, bytes_in: 1 });
        take(Fact::AttemptFailed { attempt: failed, error: "e".into() });
        take(Fact::JobEnded { job, outcome: JobOutcome::Succeeded });
        take(Fact::AttemptKilled { attempt: killed, why: "k".into(), bytes_in: 0 });
        assert!(histories.open_files.is_empty());
        assert_eq!(fs::read_to_string(path_of(folder.path(), job)).unwrap().lines().count(), 13);
    }
}
