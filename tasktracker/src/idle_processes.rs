//! Task processes that have run an attempt and wait for another attempt of the same job. Starting
//! and ending a process is most of the cost of a small task.
//!
//! A process is never reused for another job, because its memory may contain data of the first job.
//! A process that is not reused soon is killed. Its folder is removed by a separate thread, so that
//! nothing waits for a disk while the queue is locked.

use crate::{disks::ProcessLogs, process::Process};
use parking_lot::Mutex;
use proto::mr::ToTask;
use std::{collections::VecDeque, time::Duration};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use types::JobId;

/// How long a process may be idle. A job that still needs its slots uses the process again within
/// milliseconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// An idle process and the channel to it.
#[derive(Debug)]
pub(crate) struct IdleProcess {
    pub(crate) process: Process,
    /// Channel to the process.
    pub(crate) to_task: mpsc::Sender<ToTask>,
}

/// The time when the process became idle, its job, the process, and its logs.
type QueueEntry = (Instant, JobId, IdleProcess, ProcessLogs);

/// The idle processes.
#[derive(Debug)]
pub(crate) struct IdleProcesses {
    /// Maximum number of idle processes.
    max: usize,
    /// The process that has been idle longest is the first.
    queue: Mutex<VecDeque<QueueEntry>>,
    /// Notified when a process was added.
    added: Notify,
}

impl IdleProcesses {
    /// Creates an empty queue.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, queue: Mutex::default(), added: Notify::new() }
    }

    /// Adds an idle process of this job. If there are too many, kills the one that has been idle
    /// longest.
    pub(crate) fn add(&self, job: JobId, idle: IdleProcess, logs: ProcessLogs) {
        let mut queue = self.queue.lock();
        queue.push_back((Instant::now(), job, idle, logs));
        let surplus = queue.len().saturating_sub(self.max);
        let removed = queue.drain(..surplus).collect();
        drop(queue);
        self.added.notify_one();
        kill_all(removed);
    }

    /// Kills the idle processes of a job that has ended.
    pub(crate) fn forget(&self, job: JobId) {
        let mut queue = self.queue.lock();
        let (removed, others) = queue.drain(..).partition(|(_, of, ..)| *of == job);
        *queue = others;
        drop(queue);
        kill_all(removed);
    }

    /// Removes and returns an idle process of this job: the one that became idle last, whose memory
    /// is most likely in the CPU caches.
    pub(crate) fn take(&self, job: JobId) -> Option<(IdleProcess, ProcessLogs)> {
        let mut removed = VecDeque::new();
        let found = loop {
            let mut queue = self.queue.lock();
            let Some(at) = queue.iter().rposition(|(_, of, ..)| *of == job) else { break None };
            let Some((since, job, mut idle, logs)) = queue.remove(at) else { break None };
            drop(queue);
            if idle.process.is_usable() {
                break Some((idle, logs));
            }
            removed.push_back((since, job, idle, logs));
        };
        kill_all(removed);
        found
    }

    /// Kills all idle processes, and waits until their folders are removed.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.queue.lock());
        drop(all);
    }

    /// Kills processes that have been idle for too long. Never returns.
    pub(crate) async fn expire_loop(&self) {
        loop {
            let oldest = self.queue.lock().front().map(|(since, ..)| *since);
            match oldest {
                None => self.added.notified().await,
                Some(since) => {
                    tokio::time::sleep_until(since + IDLE_TIMEOUT).await;
                    let mut queue = self.queue.lock();
                    let old = queue.iter().take_while(|(since, ..)| since.elapsed() >= IDLE_TIMEOUT).count();
                    let removed = queue.drain(..old).collect();
                    drop(queue);
                    kill_all(removed);
                }
            }
        }
    }
}

/// Kills processes at once; their folders are removed in the background.
fn kill_all(removed: VecDeque<QueueEntry>) {
    for (.., idle, _) in &removed {
        idle.process.handle.kill();
    }
    if !removed.is_empty() {
        tokio::task::spawn_blocking(move || drop(removed));
    }
}
