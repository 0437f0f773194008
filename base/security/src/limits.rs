//! Limits the resources that callers may use at one time: calls, and bytes of request bodies.
//!
//! There are two separate pools: one for daemons, one for clients. (Health checks use neither, see
//! `health.rs`.) In the pool of clients each identity has a share. Every connection may always have
//! [`GUARANTEED_CALLS`] calls in progress, so that a full pool does not delay heartbeats or lock
//! out an admin.
//!
//! A request body of up to [`FREE_BYTES`] is covered by the limit on calls. For a longer message,
//! its declared length is reserved in the pool before its bytes are read. Until the pool has that
//! many free bytes, the body is not read, and HTTP/2 flow control stops the sender. A [`Call`] owns
//! all that it uses; dropping it releases everything.
//!
//! Counters are atomics: a typical call takes no lock.

use crate::{
    identity::Identity,
    incoming::Connection,
    refusals::{Kind, Refusals},
    share::{Bytes, Key, Share},
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

/// Maximum number of concurrent calls of clients.
pub(crate) const CLIENT_CALLS_MAX: usize = 8192;
/// Maximum number of concurrent calls of one identity: half of [`CLIENT_CALLS_MAX`].
pub(crate) const IDENTITY_CALLS_MAX: usize = 4096;
/// Maximum number of concurrent calls of daemons: one stream per tracker for the maximum number of
/// connections, plus a reserve.
pub(crate) const DAEMON_CALLS_MAX: usize = 20_480;
/// Number of calls that a connection may always have in progress, even if the pool is full.
pub(crate) const GUARANTEED_CALLS: usize = 2;
/// Maximum bytes of long requests of clients in memory.
pub(crate) const CLIENT_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of long requests of one identity: half of [`CLIENT_BYTES_MAX`]. A single longer
/// message takes the whole share.
pub(crate) const IDENTITY_BYTES_MAX: usize = CLIENT_BYTES_MAX / 2;
/// Maximum bytes of long requests of daemons in memory.
pub(crate) const DAEMON_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a message of any call; services have lower limits for most methods.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// A message up to this length needs no reservation of bytes.
pub(crate) const FREE_BYTES: usize = 4 << 10;
/// Timeout of a request body. A long body gets one more second per MiB.
pub(crate) const BODY_TIMEOUT: Duration =
    if cfg!(test) { Duration::from_millis(400) } else { Duration::from_secs(10) };
/// While other bodies wait for bytes, a body with a reservation and without new data for this long
/// releases its bytes.
pub(crate) const STALL_TIMEOUT: Duration =
    if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(1) };

/// Number of shares at which unused shares are first removed.
const FIRST_SWEEP_AT: usize = 1024;

/// The class of a caller, which determines the pool of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// A daemon; in an open cluster, any caller of a method for daemons.
    Daemon,
    /// All other callers.
    Client,
}

#[derive(Debug)]
struct Pool {
    calls: AtomicUsize,
    calls_max: usize,
    bytes: Bytes,
}

impl Pool {
    fn new(calls_max: usize, bytes_max: usize) -> Self {
        Self { calls: AtomicUsize::new(0), calls_max, bytes: Bytes::new(bytes_max) }
    }
}

/// The resources of one server, and how much of them is in use.
#[derive(Debug)]
pub(crate) struct Limits {
    daemons: Pool,
    clients: Pool,
    shares: Mutex<Shares>,
    pub(crate) refusals: Refusals,
}

#[derive(Debug, Default)]
struct Shares {
    all: HashMap<Key, Weak<Share>>,
    /// Number of shares at which unused shares are next removed.
    sweep_at: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            daemons: Pool::new(DAEMON_CALLS_MAX, DAEMON_BYTES_MAX),
            clients: Pool::new(CLIENT_CALLS_MAX, CLIENT_BYTES_MAX),
            shares: Mutex::default(),
            refusals: Refusals::default(),
        }
    }
}

impl Limits {
    fn pool(&self, class: Class) -> &Pool {
        match class {
            Class::Daemon => &self.daemons,
            Class::Client => &self.clients,
        }
    }

    /// Counts a call. If a limit is exceeded, returns the kind and the status of the refusal.
    pub(crate) fn begin_call(
        self: &Arc<Self>,
        class: Class,
        method: &'static str,
        identity: Identity,
        connection: Option<Arc<Connection>>,
    ) -> Result<Call, (Kind, Status)> {
        let share = (class == Class::Client).then(|| self.share(&identity, connection.as_deref()));
        let on_connection =
            connection.as_ref().map_or(0, |connection| connection.calls.fetch_add(1, Relaxed));
        let of_identity = share.as_ref().map_or(0, |share| share.calls.fetch_add(1, Relaxed));
        let pool = self.pool(class);
        let in_all = pool.calls.fetch_add(1, Relaxed);
        // From here on, dropping the call releases what was counted.
        let call = Call {
            limits: self.clone(),
            class,
            method,
            identity,
            connection,
            share,
            bytes: Mutex::default(),
        };
        let guaranteed = on_connection < GUARANTEED_CALLS;
        let proven = call.identity.role.is_some();
        if of_identity >= IDENTITY_CALLS_MAX && (proven || !guaranteed) {
            let whose = if proven { call.identity.name.to_string() } else { "your address".into() };
            let why = format!(
                "{whose} has {IDENTITY_CALLS_MAX} calls in progress, the maximum for one caller: wait for some to end, then try again"
            );
            return Err((Kind::Identity, Status::unavailable(why)));
        }
        if in_all >= pool.calls_max && !guaranteed {
            let whose = if class == Class::Daemon { "daemons" } else { "clients" };
            let why = format!(
                "{} calls of {whose} are in progress, the maximum for this server: try again later",
                pool.calls_max
            );
            return Err((Kind::Calls, Status::unavailable(why)));
        }
        Ok(call)
    }

    /// Returns the share of a caller. A connection caches the share of its first caller.
    fn share(&self, identity: &Identity, connection: Option<&Connection>) -> Arc<Share> {
        let key = match identity.role {
            Some(role) => Key::Named(role, identity.name.clone()),
            None => Key::Address(connection.and_then(Connection::ip)),
        };
        let remembered = connection.map(|connection| &connection.share);
        if let Some(share) = remembered.and_then(|share| share.get()).filter(|share| share.key == key) {
            return share.clone();
        }
        let mut shares = self.shares.lock();
        let share = shares.all.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            if shares.all.len() >= shares.sweep_at.max(FIRST_SWEEP_AT) {
                shares.all.retain(|_, share| share.strong_count() > 0);
                shares.sweep_at = 2 * shares.all.len();
            }
            let bytes = Bytes::new(IDENTITY_BYTES_MAX);
            let share = Arc::new(Share { key: key.clone(), calls: AtomicUsize::new(0), bytes });
            shares.all.insert(key, Arc::downgrade(&share));
            share
        });
        if let Some(remembered) = remembered {
            // This fails if another call of the connection has set the share first.
            remembered.set(share.clone()).ok();
        }
        share
    }
}

/// A call in progress, and the resources that it uses. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Call {
    limits: Arc<Limits>,
    class: Class,
    pub(crate) method: &'static str,
    pub(crate) identity: Identity,
    pub(crate) connection: Option<Arc<Connection>>,
    share: Option<Arc<Share>>,
    bytes: Mutex<Option<Reservation>>,
}

/// Bytes reserved in the pool, and in the share of the caller if it has one.
type Reservation = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl Drop for Call {
    fn drop(&mut self) {
        self.limits.pool(self.class).calls.fetch_sub(1, Relaxed);
        if let Some(share) = &self.share {
            share.calls.fetch_sub(1, Relaxed);
        }
        if let Some(connection) = &self.connection {
            connection.calls.fetch_sub(1, Relaxed);
        }
    }
}

impl Call {
    fn share_bytes(&self) -> Option<&Bytes> {
        self.share.as_deref().map(|share| &share.bytes)
    }

    /// Reserves the bytes of a message, and releases those of the previous message. Returns false
    /// if the bytes are not available now.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        let mut held = self.bytes.lock();
        *held = None;
        let of_share = match self.share_bytes().map(|share| share.try_take(bytes)) {
            Some(None) => return false,
            taken => taken.flatten(),
        };
        let of_pool = self.limits.pool(self.class).bytes.try_take(bytes);
        *held = of_pool.map(|of_pool| (of_pool, of_share));
        held.is_some()
    }

    /// Like [`Self::reserve`], but waits for the bytes.
    pub(crate) async fn wait_and_reserve(self: Arc<Self>, bytes: usize) {
        let of_share = match self.share_bytes() {
            Some(share) => share.take(bytes).await,
            None => None,
        };
        let of_pool = self.limits.pool(self.class).bytes.take(bytes).await;
        *self.bytes.lock() = of_pool.map(|of_pool| (of_pool, of_share));
    }

    /// Releases the bytes of messages that the service has consumed.
    pub(crate) fn release(&self) {
        *self.bytes.lock() = None;
    }

    /// Returns whether this call has bytes that other calls wait for.
    pub(crate) fn blocks_others(&self) -> bool {
        let waiting = |bytes: &Bytes| bytes.waiting.load(Relaxed) > 0;
        let wanted = waiting(&self.limits.pool(self.class).bytes) || self.share_bytes().is_some_and(waiting);
        wanted && self.bytes.lock().is_some()
    }

    /// Returns the error for a call that got no bytes in time.
    pub(crate) fn no_bytes_error(&self) -> Status {
        if let Some(share) = self.share_bytes().filter(|share| share.waiting.load(Relaxed) > 0) {
            let proven = self.identity.role.is_some();
            let whose = if proven { self.identity.name.to_string() } else { "your address".into() };
            return Status::unavailable(format!(
                "requests of {whose} use {} MiB of memory, the maximum for one caller: wait for some to end, then try again",
                share.max >> 20
            ));
        }
        let mib = self.limits.pool(self.class).bytes.max >> 20;
        let whose = if self.class == Class::Daemon { "daemons" } else { "clients" };
        Status::unavailable(format!(
            "the {mib} MiB that this server has for requests of {whose} are in use: try again later"
        ))
    }

    /// Counts and logs a late body. A connection with many late bodies is closed.
    pub(crate) fn refuse_late_body(&self, kind: Kind, status: &Status) {
        let connection = self.connection.as_deref();
        self.log_refusal(kind, status);
        if let Some(connection) = connection {
            connection.count_late_request();
        }
    }

    /// Counts and logs a refusal of this call.
    pub(crate) fn log_refusal(&self, kind: Kind, status: &Status) {
        let address = self.connection.as_ref().and_then(|connection| connection.address());
        self.limits.refusals.log(kind, self.method, Some(&self.identity), address, status);
    }
}

#[cfg(test)]
pub(crate) mod tests;
