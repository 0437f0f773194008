//! How much of a server its callers may use at one time: calls, and bytes of request bodies.
//!
//! There are two pools that do not lend to each other: one for daemons, one for clients. (Health checks use neither,
//! see `health.rs`.) Within the pool of the clients each identity has a share of both. Every connection may have
//! [`GUARANTEED`] calls under way whatever the others use, so that a full pool delays nobody's heartbeat and keeps no
//! admin out.
//!
//! A request body of up to [`FREE_BYTES`] is covered by the limit on calls. A longer message is charged with its whole
//! declared length before its bytes are read; until the pool has that many bytes the body is not read, and HTTP/2 flow
//! control stops the sender. Whoever holds a [`Call`] holds all that it uses; dropping it gives everything back.
//!
//! Counters are atomics: a usual call takes no lock.

use crate::{
    identity::{Identity, Role},
    incoming::Connection,
    refusals::{Kind, Refusals},
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Calls of clients under way in one server.
pub(crate) const CLIENT_CALLS_MAX: usize = 8192;
/// Calls of one identity: half of them.
pub(crate) const IDENTITY_CALLS_MAX: usize = 4096;
/// Calls of daemons: as many trackers as there are connections hold a stream each, and there is room for more.
pub(crate) const DAEMON_CALLS_MAX: usize = 20_480;
/// Calls that a connection may always have under way.
pub(crate) const GUARANTEED: usize = 2;
/// Bytes of long requests that clients may have in memory.
pub(crate) const CLIENT_BYTES_MAX: usize = 16 << 20;
/// The same of one identity: half of them. A single message that is longer takes the whole share.
pub(crate) const IDENTITY_BYTES_MAX: usize = CLIENT_BYTES_MAX / 2;
/// Bytes of long requests that daemons may have in memory.
pub(crate) const DAEMON_BYTES_MAX: usize = 16 << 20;
/// The longest message of any call; services allow most methods less.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// A message of up to this many bytes is not charged.
pub(crate) const FREE_BYTES: usize = 4 << 10;
/// A request body must arrive within this, and a second more for each MiB.
pub(crate) const BODY_WITHIN: Duration =
    if cfg!(test) { Duration::from_millis(400) } else { Duration::from_secs(10) };
/// While others wait for bytes of the pool, a charged body of which nothing has come for so long gives its bytes back.
pub(crate) const STALL: Duration =
    if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(1) };

/// Identities for which the map is first swept.
const SWEEP_AT: usize = 1024;

/// Whose capacity a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// A DataNode, a TaskTracker, the JobTracker or the NameNode; in an open cluster, whoever calls a method of theirs.
    Daemon,
    /// Everybody else.
    Client,
}

/// Whose share a call counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Proved by a credential.
    Named(Role, Arc<str>),
    /// Where nobody proves anything.
    Address(Option<IpAddr>),
}

/// What one identity uses.
#[derive(Debug)]
pub(crate) struct Share {
    key: Key,
    calls: AtomicUsize,
    bytes: Bytes,
}

/// Bytes of long requests.
#[derive(Debug)]
struct Bytes {
    free: Arc<Semaphore>,
    most: usize,
    /// Bodies that wait for some.
    waiting: AtomicUsize,
}

impl Bytes {
    fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), most, waiting: AtomicUsize::new(0) }
    }

    fn wanted(&self, bytes: usize) -> u32 {
        bytes.min(self.most) as u32
    }

    fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(self.wanted(bytes)).ok()
    }

    /// First come, first served.
    async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.waiting.fetch_add(1, Relaxed);
        let _waiting = Waiting(&self.waiting);
        // It is never closed.
        self.free.clone().acquire_many_owned(self.wanted(bytes)).await.ok()
    }
}

/// A body that waits for bytes is counted among the waiting until this is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
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

/// What the calls of one server use.
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

    /// Counts a call in, or says which limit it would exceed.
    pub(crate) fn begin(
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
        // From here on whatever was counted is given back when the call is dropped.
        let call = Call {
            limits: self.clone(),
            class,
            method,
            identity,
            connection,
            share,
            bytes: Mutex::default(),
        };
        let guaranteed = on_connection < GUARANTEED;
        let proven = call.identity.role.is_some();
        if of_identity >= IDENTITY_CALLS_MAX && (proven || !guaranteed) {
            let whose = if proven { call.identity.name.to_string() } else { "your address".into() };
            let why = format!(
                "{IDENTITY_CALLS_MAX} calls of {whose} are under way, the most for one caller: wait for some to end, then try again"
            );
            return Err((Kind::Identity, Status::unavailable(why)));
        }
        if in_all >= pool.calls_max && !guaranteed {
            let whose = if class == Class::Daemon { "daemons" } else { "clients" };
            let why = format!(
                "{} calls of {whose} are under way, the most for this server: try again later",
                pool.calls_max
            );
            return Err((Kind::Calls, Status::unavailable(why)));
        }
        Ok(call)
    }

    /// The share of a caller. A connection remembers that of its first call.
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
            if shares.all.len() >= shares.sweep_at.max(SWEEP_AT) {
                shares.all.retain(|_, share| share.strong_count() > 0);
                shares.sweep_at = 2 * shares.all.len();
            }
            let bytes = Bytes::new(IDENTITY_BYTES_MAX);
            let share = Arc::new(Share { key: key.clone(), calls: AtomicUsize::new(0), bytes });
            shares.all.insert(key, Arc::downgrade(&share));
            share
        });
        if let Some(remembered) = remembered {
            // Another call of this connection may have been quicker.
            remembered.set(share.clone()).ok();
        }
        share
    }
}

/// One call under way and all that it uses, until it is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    limits: Arc<Limits>,
    class: Class,
    pub(crate) method: &'static str,
    pub(crate) identity: Identity,
    pub(crate) connection: Option<Arc<Connection>>,
    share: Option<Arc<Share>>,
    bytes: Mutex<Option<Charge>>,
}

/// Bytes of the pool, and of the caller's share if it has one.
type Charge = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

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

    /// Charges a message of so many bytes in place of the one before. False if they are not free now.
    pub(crate) fn charge(&self, bytes: usize) -> bool {
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

    /// The same, as soon as they are free.
    pub(crate) async fn charged(self: Arc<Self>, bytes: usize) {
        let of_share = match self.share_bytes() {
            Some(share) => share.take(bytes).await,
            None => None,
        };
        let of_pool = self.limits.pool(self.class).bytes.take(bytes).await;
        *self.bytes.lock() = of_pool.map(|of_pool| (of_pool, of_share));
    }

    /// Its messages so far have been taken over: they are not charged any more.
    pub(crate) fn release(&self) {
        *self.bytes.lock() = None;
    }

    /// Whether this call holds bytes that others wait for.
    pub(crate) fn keeps_others_waiting(&self) -> bool {
        let waiting = |bytes: &Bytes| bytes.waiting.load(Relaxed) > 0;
        let wanted = waiting(&self.limits.pool(self.class).bytes) || self.share_bytes().is_some_and(waiting);
        wanted && self.bytes.lock().is_some()
    }

    /// Why it got no bytes in time.
    pub(crate) fn no_bytes(&self) -> Status {
        if let Some(share) = self.share_bytes().filter(|share| share.waiting.load(Relaxed) > 0) {
            let proven = self.identity.role.is_some();
            let whose = if proven { self.identity.name.to_string() } else { "your address".into() };
            return Status::unavailable(format!(
                "requests of {whose} use {} MiB of memory, the most for one caller: wait for some to end, then try again",
                share.most >> 20
            ));
        }
        let mib = self.limits.pool(self.class).bytes.most >> 20;
        let whose = if self.class == Class::Daemon { "daemons" } else { "clients" };
        Status::unavailable(format!(
            "the {mib} MiB that this server has for requests of {whose} are in use: try again later"
        ))
    }

    /// Its body was too slow: once more, and again, and the connection ends.
    pub(crate) fn late(&self, kind: Kind, status: &Status) {
        let connection = self.connection.as_deref();
        self.refused(kind, status);
        if let Some(connection) = connection {
            connection.late();
        }
    }

    /// Counts and logs that it is refused.
    pub(crate) fn refused(&self, kind: Kind, status: &Status) {
        let address = self.connection.as_ref().and_then(|connection| connection.address());
        self.limits.refusals.tell(kind, self.method, Some(&self.identity), address, status);
    }
}

#[cfg(test)]
pub(crate) mod tests;
