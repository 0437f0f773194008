//! The thread that writes histories, so that nobody waits for their files as long as they keep up.

use super::Histories;
use mrcore::fact::Entry;
use std::{io, thread};
use tokio::sync::{mpsc, oneshot};

/// Facts that wait to be written. Who has more to tell waits.
const WAITING_MAX: usize = 4096;

enum Task {
    Append(Entry),
    Flush(oneshot::Sender<()>),
}

/// Takes facts down in the order in which they are told. Dropped, it writes what it has been told and ends.
#[derive(Clone)]
pub(crate) struct HistoryWriter {
    tasks: mpsc::Sender<Task>,
}

impl HistoryWriter {
    /// Starts the thread.
    pub(crate) fn start(histories: Histories) -> io::Result<Self> {
        let (tasks, inbox) = mpsc::channel(WAITING_MAX);
        thread::Builder::new().name("history".into()).spawn(move || work(histories, inbox))?;
        Ok(Self { tasks })
    }

    /// A fact that is durable.
    pub(crate) async fn append(&self, entry: Entry) {
        // The thread ends only with the process.
        let _ = self.tasks.send(Task::Append(entry)).await;
    }

    /// Returns when all that was told before can be read from the files.
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
        // No more than had come at first, or a steady stream would keep the files from being written.
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
