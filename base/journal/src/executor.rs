//! Where the work runs that waits for a disk: in threads, or in the thread of a simulation.
//!
//! The disk decides ([`crate::disk::Disk::executor`]), so a log and all that is built on it behave
//! alike on every disk, and a simulated disk needs no thread and no time of its own. In a
//! simulation, each piece of work is a task of the current runtime that begins after a delay.

use std::{sync::Arc, time::Duration};
use tokio::{
    task::{self, JoinHandle},
    time::sleep,
};

/// Returns how long the next piece of work waits before it begins.
pub type Delay = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Runs the work that waits for a disk.
#[derive(Clone, Default)]
pub enum Executor {
    /// Work runs in threads of its own.
    #[default]
    Threads,
    /// Work runs in the thread of the runtime, all of it at one moment, after a delay.
    Simulated(Delay),
}

impl Executor {
    /// Runs `work`, whether its result is awaited or not. Like [`task::spawn_blocking`], it must be
    /// called within a runtime.
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        match self {
            Self::Threads => task::spawn_blocking(work),
            Self::Simulated(delay) => {
                let delay = delay();
                tokio::spawn(async move {
                    sleep(delay).await;
                    work()
                })
            }
        }
    }
}
