//! Task processes between two attempts of one job: starting and ending a process is most of what a small task costs.
//!
//! Never of two jobs: what one left in memory is not another's affair. One that its job does not come back for soon
//! is ended. Its folder goes on a thread of its own: nobody here waits for a disk, least of all with the line locked.

use crate::{disks::ProcessLogs, ids::Job, process::Process};
use parking_lot::Mutex;
use proto::mr::ToTask;
use std::{collections::VecDeque, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

/// A job whose slots are in use comes back within milliseconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// A process that waits for an attempt, and the way to it.
#[derive(Debug)]
pub(crate) struct IdleProcess {
    /// Itself.
    pub(crate) process: Process,
    /// The way to it.
    pub(crate) to_task: mpsc::Sender<ToTask>,
}

/// Since when, for whom, who, and what it prints into.
type Entry = (Instant, Job, IdleProcess, ProcessLogs);

/// Those that wait, the longest first.
#[derive(Debug)]
pub(crate) struct IdleProcesses {
    /// No more than these wait.
    max: usize,
    queue: Mutex<VecDeque<Entry>>,
    arrived: Notify,
}

impl IdleProcesses {
    /// None yet.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, queue: Mutex::default(), arrived: Notify::new() }
    }

    /// Lets one wait for this job, in place of the one that has waited longest if there are too many.
    pub(crate) fn put(&self, job: Job, waiting: IdleProcess, logs: ProcessLogs) {
        let mut queue = self.queue.lock();
        queue.push_back((Instant::now(), job, waiting, logs));
        let over = queue.len().saturating_sub(self.max);
        let gone = queue.drain(..over).collect();
        drop(queue);
        self.arrived.notify_one();
        end(gone);
    }

    /// Ends those of a job: it is over.
    pub(crate) fn forget(&self, job: Job) {
        let mut queue = self.queue.lock();
        let (gone, left) = queue.drain(..).partition(|(_, of, ..)| *of == job);
        *queue = left;
        drop(queue);
        end(gone);
    }

    /// One that waits for this job: the last to come, whose memory is warmest.
    pub(crate) fn take(&self, job: Job) -> Option<(IdleProcess, ProcessLogs)> {
        let mut gone = VecDeque::new();
        let found = loop {
            let mut queue = self.queue.lock();
            let Some(at) = queue.iter().rposition(|(_, of, ..)| *of == job) else { break None };
            let Some((since, job, mut waiting, logs)) = queue.remove(at) else { break None };
            drop(queue);
            if waiting.process.alive() {
                break Some((waiting, logs));
            }
            gone.push_back((since, job, waiting, logs));
        };
        end(gone);
        found
    }

    /// Ends all, and waits until their folders are gone.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.queue.lock());
        drop(all);
    }

    /// Ends those that have waited too long, until dropped.
    pub(crate) async fn expire(&self) {
        loop {
            let oldest = self.queue.lock().front().map(|(since, ..)| *since);
            match oldest {
                None => self.arrived.notified().await,
                Some(since) => {
                    tokio::time::sleep_until(since + IDLE_TIMEOUT).await;
                    let mut queue = self.queue.lock();
                    let old = queue.iter().take_while(|(since, ..)| since.elapsed() >= IDLE_TIMEOUT).count();
                    let gone = queue.drain(..old).collect();
                    drop(queue);
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
