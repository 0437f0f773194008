//! Threads for transfers. A transfer waits for the code that reads or writes the file, which may
//! pause, so it must not block a thread of the runtime. If all threads of the runtime were blocked,
//! no task could make the transfers continue.
//!
//! The number of threads is limited. At the limit a new transfer is refused at once, because
//! waiting for the other transfers could take forever.

use super::{ClientError, Result};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// Counts the transfer threads of one client.
pub(super) struct Threads {
    running: AtomicUsize,
    max: usize,
}

impl Default for Threads {
    fn default() -> Self {
        Self::new(4096)
    }
}

/// Counts as one running thread until dropped.
struct ThreadPermit(Arc<Threads>);

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Threads {
    /// Stack size of a transfer thread. It can be small, because transfers have their buffers on
    /// the heap.
    const STACK_BYTES: usize = 512 << 10;

    pub(super) fn new(max: usize) -> Self {
        Self { running: AtomicUsize::new(0), max }
    }

    /// Starts a thread. The receiver returns the result, or an error if the thread panics.
    pub(super) fn start<T: Send + 'static>(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>> {
        let refused = |reason: String| ClientError::TooManyTransfers { reason };
        let before = self.running.fetch_add(1, Ordering::SeqCst);
        let permit = ThreadPermit(self.clone());
        if before >= self.max {
            return Err(refused(format!("{before} are already open")));
        }
        let (result, receiver) = oneshot::channel();
        let builder = std::thread::Builder::new().name(name.into()).stack_size(Self::STACK_BYTES);
        let started = builder.spawn(move || {
            let end = run();
            // Drop the permit before sending the result, so that the receiver of the result can
            // start another thread.
            drop(permit);
            // The receiver may be dropped.
            let _ = result.send(end);
        });
        started.map(|_| receiver).map_err(|error: io::Error| refused(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn thread_limit_is_enforced_and_released() {
        let threads = Arc::new(Threads::new(2));
        let (go, wait) = crossbeam::channel::bounded::<()>(0);
        let one = threads.start("one", move || wait.recv().is_err()).unwrap();
        let two = threads.start("two", || panic!("a bug")).map(|two: oneshot::Receiver<()>| two).unwrap();
        assert!(two.await.is_err(), "the panic was not reported");
        while threads.running.load(Ordering::SeqCst) > 1 {
            tokio::task::yield_now().await;
        }
        let (stay, hold) = crossbeam::channel::bounded::<()>(0);
        let three = threads.start("three", move || hold.recv().is_err()).unwrap();
        let refused = threads.start("four", || ()).unwrap_err().to_string();
        assert!(refused.contains("2 are already open"), "{refused}");
        drop((go, stay));
        assert!(one.await.unwrap() && three.await.unwrap());
        threads.start("five", || ()).unwrap().await.unwrap();
    }
}
