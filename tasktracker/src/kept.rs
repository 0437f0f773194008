//! Task processes between two attempts of one job: starting and ending a process is most of what a small task costs.
//!
//! Never of two jobs: what one left in memory is not another's affair. One that its job does not come back for soon
//! is ended. Its folder goes on a thread of its own: nobody here waits for a disk, least of all with the line locked.

use crate::{disks::Printed, ids::Job, process::Process};
use parking_lot::Mutex;
use proto::mr::ToTask;
use std::{collections::VecDeque, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

/// A job whose slots are in use comes back within milliseconds.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// A process that waits for an attempt, and the way to it.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Itself.
    pub(crate) process: Process,
    /// The way to it.
    pub(crate) to_task: mpsc::Sender<ToTask>,
}

/// Since when, for whom, who, and what it prints into.
type Entry = (Instant, Job, Waiting, Printed);

/// Those that wait, the longest first.
#[derive(Debug)]
pub(crate) struct Kept {
    /// No more than these wait.
    most: usize,
    line: Mutex<VecDeque<Entry>>,
    came: Notify,
}

impl Kept {
    /// None yet.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, line: Mutex::default(), came: Notify::new() }
    }

    /// Lets one wait for this job, in place of the one that has waited longest if there are too many.
    pub(crate) fn put(&self, job: Job, waiting: Waiting, printed: Printed) {
        let mut line = self.line.lock();
        line.push_back((Instant::now(), job, waiting, printed));
        let over = line.len().saturating_sub(self.most);
        let gone = line.drain(..over).collect();
        drop(line);
        self.came.notify_one();
        end(gone);
    }

    /// Ends those of a job: it is over.
    pub(crate) fn forget(&self, job: Job) {
        let mut line = self.line.lock();
        let (gone, left) = line.drain(..).partition(|(_, of, ..)| *of == job);
        *line = left;
        drop(line);
        end(gone);
    }

    /// One that waits for this job: the last to come, whose memory is warmest.
    pub(crate) fn take(&self, job: Job) -> Option<(Waiting, Printed)> {
        let mut gone = VecDeque::new();
        let found = loop {
            let mut line = self.line.lock();
            let Some(at) = line.iter().rposition(|(_, of, ..)| *of == job) else { break None };
            let Some((since, job, mut waiting, printed)) = line.remove(at) else { break None };
            drop(line);
            if waiting.process.alive() {
                break Some((waiting, printed));
            }
            gone.push_back((since, job, waiting, printed));
        };
        end(gone);
        found
    }

    /// Ends all, and waits until their folders are gone.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.line.lock());
        drop(all);
    }

    /// Ends those that have waited too long, until dropped.
    pub(crate) async fn expire(&self) {
        loop {
            let oldest = self.line.lock().front().map(|(since, ..)| *since);
            match oldest {
                None => self.came.notified().await,
                Some(since) => {
                    tokio::time::sleep_until(since + KEPT_FOR).await;
                    let mut line = self.line.lock();
                    let old = line.iter().take_while(|(since, ..)| since.elapsed() >= KEPT_FOR).count();
                    let gone = line.drain(..old).collect();
                    drop(line);
                    end(gone);
                }
            }
        }
    }
}

/// Kills them at once; their folders go when the disks will.
fn end(gone: VecDeque<Entry>) {
    for (.., waiting, _) in &gone {
        waiting.process.handle.kill();
    }
    if !gone.is_empty() {
        tokio::task::spawn_blocking(move || drop(gone));
    }
}
