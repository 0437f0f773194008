//! The thread that writes histories. The driver waits for this thread only if [`QUEUED_FACTS_MAX`]
//! facts are queued.

use super::Histories;
use mrcore::fact::Entry;
use std::{io, thread};
use tokio::sync::{mpsc, oneshot};

/// Maximum number of facts in the queue. If it is full, `append` waits.
const QUEUED_FACTS_MAX: usize = 4096;

enum WriterRequest {
    Append(Entry),
    /// The sender is notified when all facts before this request are written.
    Flush(oneshot::Sender<()>),
}

/// Sends facts to the thread, which writes them in order. After the last clone of this handle is
/// dropped, the thread writes the queued facts and ends.
#[derive(Clone)]
pub(crate) struct HistoryWriter {
    requests: mpsc::Sender<WriterRequest>,
}

impl HistoryWriter {
    pub(crate) fn start(histories: Histories) -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel(QUEUED_FACTS_MAX);
        thread::Builder::new().name("history".into()).spawn(move || write_histories(histories, inbox))?;
        Ok(Self { requests })
    }

    /// Queues a durable fact.
    pub(crate) async fn append(&self, entry: Entry) {
        // An error is not possible: the thread runs for as long as this handle exists.
        let _ = self.requests.send(WriterRequest::Append(entry)).await;
    }

    /// Returns when all facts queued before this call can be read from the files.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let _ = self.requests.send(WriterRequest::Flush(done)).await;
        let _ = is_done.await;
    }
}

fn write_histories(mut histories: Histories, mut inbox: mpsc::Receiver<WriterRequest>) {
    while let Some(first) = inbox.blocking_recv() {
        let mut flush_requests = Vec::new();
        let mut next = Some(first);
        // The number of requests is bounded, because with a steady stream of facts the files would
        // otherwise never be flushed.
        for _ in 0..QUEUED_FACTS_MAX {
            match next {
                Some(WriterRequest::Append(entry)) => histories.append(&entry),
                Some(WriterRequest::Flush(done)) => flush_requests.push(done),
                None => break,
            }
            next = inbox.try_recv().ok();
        }
        histories.flush();
        for done in flush_requests {
            let _ = done.send(());
        }
    }
}
