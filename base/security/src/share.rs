//! What one caller uses of the resources of a server: its calls in progress, and the bytes of its
//! long requests. `limits.rs` has the limits.

use crate::identity::Role;
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Key of a share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// An identity proven by a credential.
    Named(Role, Arc<str>),
    /// An address, in an open cluster.
    Address(Option<IpAddr>),
}

/// Resources that one identity uses.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) key: Key,
    pub(crate) calls: AtomicUsize,
    pub(crate) bytes: Bytes,
}

/// Bytes of long requests.
#[derive(Debug)]
pub(crate) struct Bytes {
    pub(crate) free: Arc<Semaphore>,
    pub(crate) max: usize,
    /// Number of bodies that wait for bytes.
    pub(crate) waiting: AtomicUsize,
}

impl Bytes {
    pub(crate) fn new(max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(max)), max, waiting: AtomicUsize::new(0) }
    }

    fn wanted(&self, bytes: usize) -> u32 {
        bytes.min(self.max) as u32
    }

    pub(crate) fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(self.wanted(bytes)).ok()
    }

    /// Waits for bytes, in order of arrival.
    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.waiting.fetch_add(1, Relaxed);
        let _waiting = Waiting(&self.waiting);
        // The semaphore is never closed.
        self.free.clone().acquire_many_owned(self.wanted(bytes)).await.ok()
    }
}

/// Counts a waiting body until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
