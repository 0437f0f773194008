//! Writes the histories of simulated jobs, in the format of the JobTracker
//! (docs/research/history-format.md). Times are counted from the start of the run.
//!
//! A machine counts as registered from the start of the run, because a job may be submitted before
//! the first heartbeats. So each history names the whole cluster, without machines that were lost.

use crate::{BEGINNING, Setup};
use mrcore::{
    Fact, Time,
    history::{HistoryLines, Policy},
    ids::{Incarnation, JobId, TrackerId},
};
use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Lines of a job are written when they have this many bytes, or when the job ends. Files are not
/// kept open, because a run may have more active jobs than a process may have open files.
const BUFFER_BYTES: usize = 1 << 14;

/// Where to write the histories of a run.
#[derive(Debug, Clone, Copy)]
pub struct Recording<'a> {
    /// An empty folder.
    pub folder: &'a Path,
    /// How the run was made, in one line.
    pub made_by: &'a str,
    /// Index of the policy whose runs are recorded.
    pub variant: usize,
}

/// The histories of a run.
#[derive(Debug)]
pub(crate) struct Histories {
    folder: PathBuf,
    lines: HistoryLines,
    unwritten: BTreeMap<JobId, String>,
    /// The ID in `lines` of each machine that has not registered yet, by name.
    unregistered: BTreeMap<String, TrackerId>,
}

impl Histories {
    pub(crate) fn new(recording: Recording<'_>, setup: &Setup) -> Self {
        let cluster = format!("simulated, policy {}, seed {}", setup.scheduler, setup.seed);
        let params = setup.params.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let lines = HistoryLines::new(&cluster, Policy { name: setup.scheduler.clone(), params });
        let mut lines = lines.with_made_by(recording.made_by);
        let mut unregistered = BTreeMap::new();
        for (at, machine) in setup.machines.iter().enumerate() {
            // The core counts its IDs from 0.
            let (tracker, name) = (TrackerId(u32::MAX - at as u32), setup.node_name(at));
            let joined = Fact::TrackerJoined {
                tracker,
                name: name.clone(),
                incarnation: Incarnation(0),
                host: name.clone(),
                rack: machine.rack_name(),
                shuffle_addr: String::new(),
                logs_addr: String::new(),
                slots: machine.slots,
            };
            lines.of_fact(BEGINNING, &joined);
            unregistered.insert(name, tracker);
        }
        Self { folder: recording.folder.to_owned(), lines, unwritten: BTreeMap::new(), unregistered }
    }

    /// Adds the lines of a fact.
    pub(crate) fn add(&mut self, at: Time, fact: &Fact) -> Result<(), String> {
        if let Fact::TrackerJoined { name, .. } = fact
            && let Some(tracker) = self.unregistered.remove(name)
        {
            let (name, why) = (name.clone(), String::new());
            self.lines.of_fact(at, &Fact::TrackerForgotten { tracker, name, why });
        }
        let lines = self.lines.of_fact(Time(at.since(BEGINNING).0), fact);
        let Some(job) = fact.job().filter(|_| !lines.is_empty()) else { return Ok(()) };
        let unwritten = self.unwritten.entry(job).or_default();
        unwritten.extend(lines);
        if unwritten.len() < BUFFER_BYTES && !matches!(fact, Fact::JobEnded { .. }) {
            return Ok(());
        }
        let text = std::mem::take(unwritten);
        self.unwritten.remove(&job);
        self.write(job, &text)
    }

    /// Writes the remaining lines.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let unwritten = std::mem::take(&mut self.unwritten);
        unwritten.iter().try_for_each(|(job, text)| self.write(*job, text))
    }

    fn write(&self, job: JobId, text: &str) -> Result<(), String> {
        let path = self.folder.join(format!("{job}.jsonl"));
        let append = || -> io::Result<()> {
            OpenOptions::new().create(true).append(true).open(&path)?.write_all(text.as_bytes())
        };
        append().map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}
