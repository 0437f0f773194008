//! The thread that writes histories. The driver waits for this thread only if [`QUEUED_FACTS_MAX`]
//! facts are queued.
//!
//! The histories of a member of a group are replaced with its state, by those that a replay has made.
//! Facts that were queued with an earlier state are dropped: the replay has written them.

use super::Histories;
use mrcore::fact::Entry;
use std::{io, sync::mpsc as blocking, thread};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of facts in the queue. If it is full, `append` waits.
const QUEUED_FACTS_MAX: usize = 4096;

enum WriterRequest {
    /// A fact, and the number of the state that it belongs to.
    Append(u64, Entry),
    /// The sender is notified when all facts before this request are written.
    Flush(oneshot::Sender<()>),
    /// The sender is notified when the histories are closed.
    Close(blocking::Sender<()>),
    /// The histories of the state with this number.
    Open(u64, Box<Histories>),
}

/// Sends facts to the thread, which writes them in order. After the last clone of this handle is
/// dropped, the thread writes the queued facts and ends.
#[derive(Clone)]
pub(crate) struct HistoryWriter {
    requests: mpsc::Sender<WriterRequest>,
}

impl HistoryWriter {
    /// Starts the thread with the histories of the state with this number.
    pub(crate) fn start(state: u64, histories: Histories) -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel(QUEUED_FACTS_MAX);
        let opened = Opened { state, histories: Some(histories) };
        thread::Builder::new().name("history".into()).spawn(move || write_histories(opened, inbox))?;
        Ok(Self { requests })
    }

    /// Queues a durable fact of a state.
    pub(crate) async fn append(&self, state: u64, entry: Entry) {
        // An error is not possible: the thread runs for as long as this handle exists.
        let _ = self.requests.send(WriterRequest::Append(state, entry)).await;
    }

    /// Like [`Self::append`], on a thread for blocking work.
    pub(crate) fn append_blocking(&self, state: u64, entry: Entry) {
        let _ = self.requests.blocking_send(WriterRequest::Append(state, entry));
    }

    /// Closes the histories, calls `make`, which may use their folder, and continues with the
    /// histories that it returns, of the state with this number. Blocks. If `make` fails, no history is
    /// written any more.
    pub(crate) fn replace<T, E>(
        &self,
        state: u64,
        make: impl FnOnce() -> Result<(T, Histories), E>,
    ) -> Result<T, E> {
        let (done, closed) = blocking::channel();
        let _ = self.requests.blocking_send(WriterRequest::Close(done));
        let _ = closed.recv();
        let (made, histories) = make()?;
        let _ = self.requests.blocking_send(WriterRequest::Open(state, Box::new(histories)));
        Ok(made)
    }

    /// Returns when all facts queued before this call can be read from the files.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let _ = self.requests.send(WriterRequest::Flush(done)).await;
        let _ = is_done.await;
    }
}

/// The histories of the state with this number; `None` while they are replaced.
struct Opened {
    state: u64,
    histories: Option<Histories>,
}

impl Opened {
    fn flush(&mut self) {
        if let Some(histories) = &mut self.histories {
            histories.flush();
        }
    }
}

fn write_histories(mut opened: Opened, mut inbox: mpsc::Receiver<WriterRequest>) {
    while let Some(first) = inbox.blocking_recv() {
        let mut flush_requests = Vec::new();
        let mut next = Some(first);
        // The number of requests is bounded, because with a steady stream of facts the files would
        // otherwise never be flushed.
        for _ in 0..QUEUED_FACTS_MAX {
            match next {
                Some(WriterRequest::Append(state, entry)) if state == opened.state => {
                    if let Some(histories) = &mut opened.histories {
                        histories.append(&entry);
                    }
                }
                // The replay has written it.
                Some(WriterRequest::Append(..)) => {}
                Some(WriterRequest::Flush(done)) => flush_requests.push(done),
                Some(WriterRequest::Close(done)) => {
                    opened.flush();
                    opened.histories = None;
                    let _ = done.send(());
                }
                Some(WriterRequest::Open(state, histories)) => {
                    opened = Opened { state, histories: Some(*histories) };
                }
                None => break,
            }
            next = inbox.try_recv().ok();
        }
        opened.flush();
        for done in flush_requests {
            let _ = done.send(());
        }
    }
}
