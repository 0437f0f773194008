//! Job history: one file of JSON lines per job, `history/job_7.jsonl`, with a line for each fact of
//! the job.
//!
//! A line is written when its fact is durable in the journal, and is not synced separately. When
//! the JobTracker starts, it replays the journal, which contains all facts of the jobs in it. Lines
//! that a file already has are skipped and missing lines are added, so a crash causes neither gaps
//! nor duplicates. A file is synced when it is complete: its job has ended and no attempt of the job
//! uses a slot.
//!
//! If a history cannot be written (the disk is full, or less is free than the reserve), the error
//! is logged and the history is completed at the next start; the job does not wait for this. The
//! number of histories is limited, and so are their bytes, in total and per user. The oldest
//! histories are deleted first. A history that is being written counts, but is never deleted.

mod writer;

pub(crate) use writer::HistoryWriter;

use mrcore::{
    Fact,
    fact::Entry,
    history::{HistoryLines, Policy},
    ids::JobId,
};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Returns the path of the history file of a job.
pub(crate) fn path_of(folder: &Path, job: JobId) -> PathBuf {
    folder.join(format!("{job}.jsonl"))
}

/// Returns the history files in a folder.
pub(crate) fn files(folder: &Path) -> io::Result<Vec<(JobId, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jsonl"));
        if let Some(job) = name.and_then(|name| name.parse::<JobId>().ok()) {
            files.push((job, path));
        }
    }
    Ok(files)
}

/// Reads the user who submitted a job from the first line of its history.
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
    /// Maximum total size of all files, in bytes.
    pub(crate) bytes: u64,
    /// Maximum total size of the files of one user, in bytes.
    pub(crate) user_bytes: u64,
    /// Bytes that must stay free on the disk; below this, no history is written.
    pub(crate) reserve: u64,
}

/// A history file on disk.
struct StoredHistory {
    bytes: u64,
    user: String,
}

/// After this many lines, free space and limits are checked again.
const CHECK_INTERVAL_LINES: u32 = 256;

/// A history file that is being written.
struct HistoryFile {
    file: BufWriter<File>,
    /// During replay: lines on disk whose facts have not been replayed yet.
    unreplayed_lines: u64,
    /// Lines whose facts have been appended or replayed.
    lines: u64,
    bytes: u64,
    job_ended: bool,
    /// Number of attempts that use a slot.
    live_attempts: u32,
}

/// All history files.
pub(crate) struct Histories {
    folder: PathBuf,
    limits: Limits,
    lines: HistoryLines,
    open_files: BTreeMap<JobId, HistoryFile>,
    on_disk: BTreeMap<JobId, StoredHistory>,
    /// Lines until free space and limits are checked again.
    lines_until_check: u32,
    /// Whether the last check found less free space than the reserve.
    disk_low: bool,
}

impl Histories {
    /// Opens the folder, and creates it if it does not exist.
    pub(crate) fn open(folder: &Path, cluster_id: &str, limits: Limits, policy: Policy) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut on_disk = BTreeMap::new();
        for (job, path) in files(folder)? {
            let user = owner(folder, job).unwrap_or_default();
            on_disk.insert(job, StoredHistory { bytes: fs::metadata(path)?.len(), user });
        }
        Ok(Self {
            folder: folder.into(),
            limits,
            lines: HistoryLines::new(cluster_id, policy),
            open_files: BTreeMap::new(),
            on_disk,
            lines_until_check: 0,
            disk_low: false,
        })
    }

    /// Adds the line of a fact to the history of its job.
    pub(crate) fn append(&mut self, entry: &Entry) {
        let lines = self.lines.of_fact(entry.at, &entry.fact);
        let Some(job) = entry.fact.job().filter(|_| !lines.is_empty()) else { return };
        if let Err(error) = self.write(job, entry, &lines) {
            self.abandon(job, &error);
        }
    }

    /// Returns an error if less is free than the reserve, which is kept for the journal.
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
                "less space is free on the disk than jobtracker.disk_reserve",
            ));
        }
        Ok(())
    }

    fn write(&mut self, job: JobId, entry: &Entry, lines: &[String]) -> io::Result<()> {
        let mut prune = false;
        if let Fact::JobSubmitted { spec, .. } = &entry.fact {
            self.lines_until_check = 0;
            self.check_space()?;
            let history_file = HistoryFile::open(&path_of(&self.folder, job), &lines[0])?;
            self.on_disk.insert(job, StoredHistory { bytes: history_file.bytes, user: spec.user.clone() });
            self.open_files.insert(job, history_file);
        } else if self.open_files.contains_key(&job) {
            prune = self.lines_until_check == 0;
            self.check_space()?;
        }
        let Some(history_file) = self.open_files.get_mut(&job) else { return Ok(()) };
        for line in lines {
            // A line that is already in the file is skipped. So the history keeps the policy that
            // was configured at the submission, even if a later start uses a different policy.
            history_file.add(line)?;
        }
        match entry.fact {
            Fact::AttemptLaunched { .. } => history_file.live_attempts += 1,
            Fact::AttemptSucceeded { .. }
            | Fact::AttemptFailed { .. }
            | Fact::AttemptKilled { .. }
            | Fact::AttemptPaused { .. }
            | Fact::MapSplit { .. } => {
                history_file.live_attempts = history_file.live_attempts.saturating_sub(1);
            }
            Fact::JobEnded { .. } => history_file.job_ended = true,
            _ => {}
        }
        let mut bytes = history_file.bytes;
        if history_file.job_ended && history_file.live_attempts == 0 {
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

    /// Must be called after the replay of the journal: the facts that follow are new. Removes lines
    /// whose facts were not replayed.
    pub(crate) fn finish_replay(&mut self) {
        let jobs: Vec<JobId> = self.open_files.keys().copied().collect();
        for job in jobs {
            let path = path_of(&self.folder, job);
            if let Some(history_file) = self.open_files.get_mut(&job)
                && let Err(error) = history_file.cut_unreplayed(&path)
            {
                self.abandon(job, &error);
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
            self.abandon(job, &error);
        }
    }

    /// Logs the error, and writes no more lines to the history of the job until the next start.
    fn abandon(&mut self, job: JobId, error: &io::Error) {
        tracing::error!(%job, %error, "cannot write the job's history: it will be completed when the JobTracker restarts");
        if let Some(history_file) = self.open_files.remove(&job) {
            // Discard the buffered lines. Dropping the file would write them, which could fail
            // again.
            let _ = history_file.file.into_parts();
        }
    }

    /// Deletes the oldest histories beyond the limits, except those that are being written.
    fn prune(&mut self) {
        for job in self.surplus_histories() {
            match fs::remove_file(path_of(&self.folder, job)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%job, %error, "cannot delete an old history");
                    return;
                }
                _ => self.on_disk.remove(&job),
            };
        }
    }

    /// Returns the histories that exceed the limits, oldest first. The limit per user never removes
    /// the newest history of the user; the total limits may remove it.
    fn surplus_histories(&self) -> Vec<JobId> {
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
    /// Opens the file of a job and truncates it after its last complete line. If the first line is
    /// not `head`, the file belongs to another job with the same ID and is truncated to 0 bytes.
    fn open(path: &Path, head: &str) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut reader = BufReader::new(&file);
        let (mut complete_bytes, mut unreplayed_lines) = (0, 0);
        let mut line = Vec::new();
        loop {
            line.clear();
            let bytes = reader.read_until(b'\n', &mut line)?;
            let foreign = unreplayed_lines == 0 && line != head.as_bytes();
            if bytes == 0 || line.last() != Some(&b'\n') || foreign {
                break;
            }
            complete_bytes += bytes as u64;
            unreplayed_lines += 1;
        }
        drop(reader);
        file.set_len(complete_bytes)?;
        let mut file = BufWriter::new(file);
        file.seek(SeekFrom::Start(complete_bytes))?;
        Ok(Self {
            file,
            unreplayed_lines,
            lines: 0,
            bytes: complete_bytes,
            job_ended: false,
            live_attempts: 0,
        })
    }

    /// Writes a line, unless the file has it already from before the start.
    fn add(&mut self, line: &str) -> io::Result<()> {
        self.lines += 1;
        if self.unreplayed_lines > 0 {
            self.unreplayed_lines -= 1;
            return Ok(());
        }
        self.bytes += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }

    /// Removes lines whose facts the journal does not contain, because damaged records were dropped
    /// from it.
    fn cut_unreplayed(&mut self, path: &Path) -> io::Result<()> {
        if std::mem::take(&mut self.unreplayed_lines) == 0 {
            return Ok(());
        }
        let mut reader = BufReader::new(File::open(path)?);
        let mut line = Vec::new();
        let mut complete_bytes = 0;
        for _ in 0..self.lines {
            line.clear();
            complete_bytes += reader.read_until(b'\n', &mut line)? as u64;
        }
        self.file.get_ref().set_len(complete_bytes)?;
        self.file.seek(SeekFrom::Start(complete_bytes))?;
        self.bytes = complete_bytes;
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
        Time,
        ids::{AttemptId, RequestId, TrackerId},
        job::{JobOutcome, JobSpec, Payload, Priority, Program},
        plan::Why,
        task::{AttemptResult, Stage},
    };
    use std::{collections::BTreeMap, sync::Arc};

    #[test]
    fn oldest_histories_are_surplus_when_count_total_bytes_or_user_bytes_exceed_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        for (job, user, bytes) in
            [(1, "bob", 500), (2, "ann", 900), (3, "bob", 500), (4, "ann", 300), (5, "ann", 300)]
        {
            let head = format!("{{\"spec\":{{\"user\":\"{user}\"}}}}\n");
            let text = format!("{head}{}\n", "x".repeat(bytes - head.len() - 1));
            fs::write(path_of(folder.path(), JobId(job)), text).unwrap();
        }
        let kept = |count, bytes, user_bytes| {
            let limits = Limits { count, bytes, user_bytes, reserve: 0 };
            let histories = Histories::open(folder.path(), "c", limits, Policy::default()).unwrap();
            let surplus = histories.surplus_histories();
            histories.on_disk.keys().filter(|job| !surplus.contains(job)).map(|job| job.0).collect::<Vec<_>>()
        };
        assert_eq!(kept(10, 10_000, 10_000), [1, 2, 3, 4, 5]);
        assert_eq!(kept(2, 10_000, 10_000), [4, 5]);
        assert_eq!(kept(10, 10_000, 1000), [1, 3, 4, 5], "ann is over the limit, bob is not");
        assert_eq!(kept(10, 1200, 10_000), [3, 4, 5]);
        assert_eq!(kept(10, 10_000, 10), [3, 5], "the newest history of each user stays");
        assert_eq!(kept(10, 10, 10_000), [] as [u32; 0], "the limit for all removes the newest too");
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
    fn history_that_is_being_written_counts_towards_the_byte_limit() {
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
        assert_eq!(histories.on_disk[&JobId(2)].bytes, written, "an open history does not count");
        assert!(written > 50_000 && !old.exists(), "the old history was not deleted");
    }

    #[test]
    fn history_file_is_closed_when_the_job_and_its_last_attempt_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { count: 10, bytes: u64::MAX, user_bytes: u64::MAX, reserve: 0 };
        let mut histories = Histories::open(folder.path(), "c", limits, Policy::default()).unwrap();
        let mut append = |fact| histories.append(&Entry { at: Time(0), fact });
        let id = |text: &str| text.parse::<AttemptId>().unwrap();
        let job = id("job_1.m0.0").job();
        append(Fact::JobSubmitted { job, request: RequestId(1), spec: spec("u") });
        let names = ["job_1.m0.0", "job_1.m1.0", "job_1.r0.0", "job_1.r0.1", "job_1.r0.2"];
        for attempt in names.map(id) {
            let (tracker, why) = (TrackerId(1), Why::default());
            append(Fact::AttemptLaunched { attempt, tracker, speculative: false, resumed_from: None, why });
        }
        let [split, done, paused, failed, killed] = names.map(id);
        append(Fact::MapSplit { attempt: split, position: 7, result: AttemptResult::default() });
        append(Fact::AttemptSucceeded { attempt: done, result: AttemptResult::default() });
        append(Fact::AttemptPaused {
            attempt: paused,
            stage: Stage::Reduce,
            bytes: 1,
            bytes_in: 1,
            interrupted: false,
        });
        append(Fact::AttemptFailed { attempt: failed, error: "e".into() });
        append(Fact::JobEnded { job, outcome: JobOutcome::Succeeded });
        append(Fact::AttemptKilled { attempt: killed, why: "k".into(), bytes_in: 0, interrupted: false });
        assert!(histories.open_files.is_empty());
        assert_eq!(fs::read_to_string(path_of(folder.path(), job)).unwrap().lines().count(), 13);
    }
}
