//! The thread that writes histories, so that nobody waits for their files.

use super::Histories;
use mrcore::fact::Entry;
use std::{io, sync::mpsc, thread};
use tokio::sync::oneshot;

enum Task {
    Take(Entry),
    Flush(oneshot::Sender<()>),
}

/// Takes facts down in the order in which they are told. Dropped, it writes what it has been told and ends.
#[derive(Clone)]
pub(crate) struct Scribe {
    tasks: mpsc::Sender<Task>,
}

impl Scribe {
    /// Starts the thread.
    pub(crate) fn start(histories: Histories) -> io::Result<Self> {
        let (tasks, inbox) = mpsc::channel();
        thread::Builder::new().name("history".into()).spawn(move || work(histories, &inbox))?;
        Ok(Self { tasks })
    }

    /// A fact that is durable.
    pub(crate) fn take(&self, entry: Entry) {
        // The thread ends only with the process.
        let _ = self.tasks.send(Task::Take(entry));
    }

    /// Returns when all that was told before can be read from the files.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let _ = self.tasks.send(Task::Flush(done));
        let _ = is_done.await;
    }
}

fn work(mut histories: Histories, inbox: &mpsc::Receiver<Task>) {
    while let Ok(first) = inbox.recv() {
        let mut waiting = Vec::new();
        for task in std::iter::once(first).chain(inbox.try_iter()) {
            match task {
                Task::Take(entry) => histories.take(&entry),
                Task::Flush(done) => waiting.push(done),
            }
        }
        histories.flush();
        for done in waiting {
            let _ = done.send(());
        }
    }
}
