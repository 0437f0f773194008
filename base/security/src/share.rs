//! The resources of a server that one caller uses: its calls in progress, and the bytes of its long
//! requests. `limits.rs` defines the limits.

use crate::identity::Role;
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Identifies the caller of a share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// An identity proven by a credential.
    Named(Role, Arc<str>),
    /// An address, in an open cluster, where names are not proven.
    Address(Option<IpAddr>),
}

/// Resources that one caller uses.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) key: Key,
    pub(crate) calls: AtomicUsize,
    pub(crate) bytes: Bytes,
}

/// A budget of bytes for long requests.
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

    /// Returns how many bytes are taken for a request: a longer request than the maximum takes all.
    fn permits_for(&self, bytes: usize) -> u32 {
        bytes.min(self.max) as u32
    }

    pub(crate) fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(self.permits_for(bytes)).ok()
    }

    /// Waits until the bytes are free, in order of arrival, and takes them.
    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.waiting.fetch_add(1, Relaxed);
        let _waiting = Waiting(&self.waiting);
        // The semaphore is never closed.
        self.free.clone().acquire_many_owned(self.permits_for(bytes)).await.ok()
    }
}

/// Counts a waiting body until this value is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
