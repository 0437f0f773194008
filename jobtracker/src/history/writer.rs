//! The thread that writes histories. The driver waits for it only if [`WAITING_MAX`] facts are
//! queued.

use super::Histories;
use mrcore::fact::Entry;
use std::{io, thread};
use tokio::sync::{mpsc, oneshot};

/// Facts in the queue before `append` waits.
const WAITING_MAX: usize = 4096;

enum Task {
    Append(Entry),
    Flush(oneshot::Sender<()>),
}

/// Sends facts to the thread, which writes them in order. After the last handle is dropped, the
/// thread writes what is queued and ends.
#[derive(Clone)]
pub(crate) struct HistoryWriter {
    tasks: mpsc::Sender<Task>,
}

impl HistoryWriter {
    pub(crate) fn start(histories: Histories) -> io::Result<Self> {
        let (tasks, inbox) = mpsc::channel(WAITING_MAX);
        thread::Builder::new().name("history".into()).spawn(move || work(histories, inbox))?;
        Ok(Self { tasks })
    }

    /// Queues a durable fact.
    pub(crate) async fn append(&self, entry: Entry) {
        // The thread ends only with the process.
        let _ = self.tasks.send(Task::Append(entry)).await;
    }

    /// Returns when all facts queued before this call can be read from the files.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let _ = self.tasks.send(Task::Flush(done)).await;
        let _ = is_done.await;
    }
}

fn work(mut histories: Histories, mut inbox: mpsc::Receiver<Task>) {
    while let Some(first) = inbox.blocking_recv() {
        let mut waiting = Vec::new();
        let mut next = Some(first);
        // Bounded, or a steady stream of facts would keep the files from being flushed.
        for _ in 0..WAITING_MAX {
            match next {
                Some(Task::Append(entry)) => histories.append(&entry),
                Some(Task::Flush(done)) => waiting.push(done),
                None => break,
            }
            next = inbox.try_recv().ok();
        }
        histories.flush();
        for done in waiting {
            let _ = done.send(());
        }
    }
}
