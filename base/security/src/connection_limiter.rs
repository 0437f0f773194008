//! Limits the connections of a server. A connection without a valid credential is unauthenticated.
//! There are few of these, with a short timeout. When there are too many, the oldest one of the
//! address with the most is closed, so that clients without credentials cannot block others. An
//! authenticated connection has a slot until it ends.

use parking_lot::Mutex;
use rustix::net::{SocketAddrAny, getpeername};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Maximum number of unauthenticated connections.
pub(crate) const UNAUTHENTICATED_MAX: usize = 256;
/// An unauthenticated connection without data for this long is closed.
pub const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(5);

/// All connections of a server.
#[derive(Debug)]
pub struct ConnectionLimiter {
    slots: usize,
    /// Maximum number of authenticated connections of one address.
    each: usize,
    /// Whether to keep a handle to authenticated connections, so that [`Self::close`] can close
    /// them.
    holds: bool,
    table: Mutex<ConnectionTable>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    known: BTreeMap<u64, (From, Option<OwnedFd>)>,
    /// Number of authenticated connections by address.
    of: BTreeMap<From, usize>,
}

/// IP address; `None` for Unix sockets.
type From = Option<IpAddr>;

#[derive(Debug)]
struct Unauthenticated {
    from: From,
    socket: OwnedFd,
}

impl ConnectionLimiter {
    /// A limiter for this many authenticated connections.
    pub fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self { slots, each: slots, holds: true, table: Mutex::default() })
    }

    /// Like [`Self::new`], with at most `each` connections of one address, and without handles to
    /// authenticated connections, so that each uses one file descriptor instead of two.
    pub(crate) fn by_address(slots: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { slots, each, holds: false, table: Mutex::default() })
    }

    /// Adds an unauthenticated connection. `socket` is another handle to its socket.
    pub fn enter(self: &Arc<Self>, socket: impl Into<OwnedFd>) -> ConnectionSlot {
        let socket = socket.into();
        let from = address_of(&socket);
        let mut table = self.table.lock();
        if table.unauthenticated.len() >= UNAUTHENTICATED_MAX {
            table.make_room();
        }
        table.next += 1;
        let id = table.next;
        table.unauthenticated.insert(id, Unauthenticated { from, socket });
        ConnectionSlot { connection_limiter: self.clone(), id, known: AtomicBool::new(false) }
    }

    /// Returns the maximum number of authenticated connections, in total and of one address.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.slots, self.each)
    }

    /// Returns the number of connections.
    pub fn count(&self) -> usize {
        let table = self.table.lock();
        table.unauthenticated.len() + table.known.len()
    }

    /// Closes all connections that have a handle.
    pub fn close(&self) {
        let table = self.table.lock();
        table.unauthenticated.values().map(|connection| &connection.socket).for_each(close);
        table.known.values().filter_map(|(_, socket)| socket.as_ref()).for_each(close);
    }
}

impl ConnectionTable {
    /// Closes the oldest unauthenticated connection of the address that has the most.
    fn make_room(&mut self) {
        let mut count: BTreeMap<From, usize> = BTreeMap::new();
        for connection in self.unauthenticated.values() {
            *count.entry(connection.from).or_default() += 1;
        }
        let Some((max, _)) = count.into_iter().max_by_key(|(_, count)| *count) else { return };
        let oldest =
            self.unauthenticated.iter().find(|(_, connection)| connection.from == max).map(|(id, _)| *id);
        if let Some(connection) = oldest.and_then(|id| self.unauthenticated.remove(&id)) {
            close(&connection.socket);
        }
    }
}

fn address_of(socket: &OwnedFd) -> From {
    let peer: SocketAddrAny = getpeername(socket).ok()??;
    SocketAddr::try_from(peer).ok().map(|addr| addr.ip().to_canonical())
}

fn close(socket: &OwnedFd) {
    // An error means that the connection has ended already.
    rustix::net::shutdown(socket, rustix::net::Shutdown::Both).ok();
}

/// A connection; dropping it frees its slot.
#[derive(Debug)]
pub struct ConnectionSlot {
    connection_limiter: Arc<ConnectionLimiter>,
    id: u64,
    /// Copy of the state in `connection_limiter`, for a fast check at every call.
    known: AtomicBool,
}

impl ConnectionSlot {
    /// See [`ConnectionLimiter::limits`].
    pub(crate) fn limits(&self) -> (usize, usize) {
        self.connection_limiter.limits()
    }

    /// Marks the connection as authenticated. Returns false if no slot is free.
    pub fn authenticate(&self) -> bool {
        if self.known.load(Ordering::Relaxed) {
            return true;
        }
        let mut table = self.connection_limiter.table.lock();
        if table.known.contains_key(&self.id) {
            return true;
        }
        let from = match table.unauthenticated.get(&self.id) {
            Some(connection) => connection.from,
            // It was closed a moment ago in favour of a newer one.
            None => return false,
        };
        let of = table.of.get(&from).copied().unwrap_or(0);
        if table.known.len() >= self.connection_limiter.slots || of >= self.connection_limiter.each {
            return false;
        }
        let Some(Unauthenticated { socket, .. }) = table.unauthenticated.remove(&self.id) else {
            return false;
        };
        *table.of.entry(from).or_default() += 1;
        table.known.insert(self.id, (from, self.connection_limiter.holds.then_some(socket)));
        self.known.store(true, Ordering::Relaxed);
        true
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.connection_limiter.table.lock();
        table.unauthenticated.remove(&self.id);
        let Some((from, _)) = table.known.remove(&self.id) else { return };
        if let Some(of) = table.of.get_mut(&from) {
            *of -= 1;
            if *of == 0 {
                table.of.remove(&from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, os::unix::net::UnixStream};

    #[test]
    fn unauthenticated_connections_only_displace_each_other() {
        let connection_limiter = ConnectionLimiter::new(1);
        let mut ends = Vec::new();
        let mut slots = Vec::new();
        let mut connect = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ends.push(theirs);
            slots.push(connection_limiter.enter(ours));
        };
        connect();
        (0..UNAUTHENTICATED_MAX).for_each(|_| connect());
        assert_eq!(connection_limiter.count(), UNAUTHENTICATED_MAX);
        // The first connection was closed.
        assert_eq!(ends[0].read(&mut [0]).unwrap(), 0);
        assert!(!slots[0].authenticate());
        assert!(slots[1].authenticate() && slots[1].authenticate());
        assert!(!slots[2].authenticate(), "there is one slot");
        slots.remove(1);
        assert!(slots[1].authenticate());
        drop(slots);
        assert_eq!(connection_limiter.count(), 0);
    }

    /// Connects from this address of the loopback network to the listener.
    fn connection(to: &std::net::TcpListener, from: [u8; 4]) -> (OwnedFd, OwnedFd) {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let theirs = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&theirs, &SocketAddr::from((from, 0))).unwrap();
        connect(&theirs, &to.local_addr().unwrap()).unwrap();
        (to.accept().unwrap().0.into(), theirs)
    }

    #[test]
    fn busiest_address_is_displaced_first() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connection_limiter = ConnectionLimiter::by_address(3, 2);
        let (ours, _theirs) = connection(&listener, [127, 0, 0, 2]);
        let quiet = connection_limiter.enter(ours);
        let crowd: Vec<_> = (0..UNAUTHENTICATED_MAX + 10)
            .map(|_| {
                let (ours, theirs) = connection(&listener, [127, 0, 0, 3]);
                (connection_limiter.enter(ours), theirs)
            })
            .collect();
        assert_eq!(connection_limiter.count(), UNAUTHENTICATED_MAX);
        // It is older than all of them and was not closed.
        assert!(quiet.authenticate());
        let known = crowd.iter().filter(|(slot, _)| slot.authenticate()).count();
        assert_eq!(known, 2, "of one address");
        drop(crowd);
        assert_eq!(connection_limiter.count(), 1);
    }
}
