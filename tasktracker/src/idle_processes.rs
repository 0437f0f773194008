//! Idle task processes between two attempts of a job. Starting and ending a process is most of the
//! cost of a small task.
//!
//! A process is never reused for another job, because its memory may contain data of the first one.
//! A process that is not reused soon is ended. Its folder is removed by a separate thread, so that
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

/// A job that uses its slots needs the process again within milliseconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// An idle process and the channel to it.
#[derive(Debug)]
pub(crate) struct IdleProcess {
    /// The process.
    pub(crate) process: Process,
    /// Channel to the process.
    pub(crate) to_task: mpsc::Sender<ToTask>,
}

/// Time since when it is idle, its job, the process, and its logs.
type Entry = (Instant, JobId, IdleProcess, ProcessLogs);

/// Idle processes, the oldest first.
#[derive(Debug)]
pub(crate) struct IdleProcesses {
    /// Maximum number of idle processes.
    max: usize,
    queue: Mutex<VecDeque<Entry>>,
    arrived: Notify,
}

impl IdleProcesses {
    /// An empty queue.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, queue: Mutex::default(), arrived: Notify::new() }
    }

    /// Adds an idle process of this job; removes the oldest one if there are too many.
    pub(crate) fn put(&self, job: JobId, waiting: IdleProcess, logs: ProcessLogs) {
        let mut queue = self.queue.lock();
        queue.push_back((Instant::now(), job, waiting, logs));
        let over = queue.len().saturating_sub(self.max);
        let gone = queue.drain(..over).collect();
        drop(queue);
        self.arrived.notify_one();
        end(gone);
    }

    /// Ends the processes of a job that has ended.
    pub(crate) fn forget(&self, job: JobId) {
        let mut queue = self.queue.lock();
        let (gone, left) = queue.drain(..).partition(|(_, of, ..)| *of == job);
        *queue = left;
        drop(queue);
        end(gone);
    }

    /// Takes an idle process of this job: the newest, whose memory is most likely cached.
    pub(crate) fn take(&self, job: JobId) -> Option<(IdleProcess, ProcessLogs)> {
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

    /// Ends all processes, and waits until their folders are removed.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.queue.lock());
        drop(all);
    }

    /// Ends processes that have been idle for too long, until dropped.
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

/// Kills processes at once; their folders are removed in the background.
fn end(gone: VecDeque<Entry>) {
    for (.., waiting, _) in &gone {
        waiting.process.handle.kill();
    }
    if !gone.is_empty() {
        tokio::task::spawn_blocking(move || drop(gone));
    }
}
