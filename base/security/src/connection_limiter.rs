//! Limits the connections of a server. A connection is unauthenticated until a valid credential
//! arrives. The server allows few unauthenticated connections, with a short timeout. If there are
//! too many, it takes the address that has the most of them and closes the oldest, so that clients
//! without credentials cannot block others. An authenticated connection has a slot until it ends.

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

/// Tracks and limits the connections of a server.
#[derive(Debug)]
pub struct ConnectionLimiter {
    /// Maximum number of authenticated connections.
    slots: usize,
    /// Maximum number of authenticated connections of one address.
    per_address_max: usize,
    /// Whether to keep a handle to authenticated connections, so that [`Self::close`] can close
    /// them.
    keep_handles: bool,
    table: Mutex<ConnectionTable>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    /// ID of the newest connection.
    last_id: u64,
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    /// Authenticated connections, each with its address and, if it is kept, a handle.
    authenticated: BTreeMap<u64, (Address, Option<OwnedFd>)>,
    /// Number of authenticated connections by address.
    by_address: BTreeMap<Address, usize>,
}

/// The IP address of a client; `None` for Unix sockets.
type Address = Option<IpAddr>;

#[derive(Debug)]
struct Unauthenticated {
    from: Address,
    socket: OwnedFd,
}

impl ConnectionLimiter {
    /// Creates a limiter for this many authenticated connections.
    pub fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self { slots, per_address_max: slots, keep_handles: true, table: Mutex::default() })
    }

    /// Like [`Self::new`], but allows at most `per_address_max` connections of one address, and
    /// keeps no handles to authenticated connections, so that each uses one file descriptor instead
    /// of two.
    pub(crate) fn by_address(slots: usize, per_address_max: usize) -> Arc<Self> {
        Arc::new(Self { slots, per_address_max, keep_handles: false, table: Mutex::default() })
    }

    /// Adds an unauthenticated connection. `socket` is another handle to its socket.
    pub fn enter(self: &Arc<Self>, socket: impl Into<OwnedFd>) -> ConnectionSlot {
        let socket = socket.into();
        let from = address_of(&socket);
        let mut table = self.table.lock();
        if table.unauthenticated.len() >= UNAUTHENTICATED_MAX {
            table.make_room();
        }
        table.last_id += 1;
        let id = table.last_id;
        table.unauthenticated.insert(id, Unauthenticated { from, socket });
        ConnectionSlot { connection_limiter: self.clone(), id, authenticated: AtomicBool::new(false) }
    }

    /// Returns the maximum number of authenticated connections, in total and of one address.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.slots, self.per_address_max)
    }

    /// Returns the number of connections.
    pub fn count(&self) -> usize {
        let table = self.table.lock();
        table.unauthenticated.len() + table.authenticated.len()
    }

    /// Closes all connections to which handles are kept.
    pub fn close(&self) {
        let table = self.table.lock();
        table.unauthenticated.values().map(|connection| &connection.socket).for_each(close);
        table.authenticated.values().filter_map(|(_, socket)| socket.as_ref()).for_each(close);
    }
}

impl ConnectionTable {
    /// Closes the oldest unauthenticated connection of the address that has the most of them.
    fn make_room(&mut self) {
        let mut count: BTreeMap<Address, usize> = BTreeMap::new();
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

fn address_of(socket: &OwnedFd) -> Address {
    let peer: SocketAddrAny = getpeername(socket).ok()??;
    SocketAddr::try_from(peer).ok().map(|addr| addr.ip().to_canonical())
}

fn close(socket: &OwnedFd) {
    // An error means that the connection has ended already.
    rustix::net::shutdown(socket, rustix::net::Shutdown::Both).ok();
}

/// The place of a connection in its limiter. Dropping it frees the place.
#[derive(Debug)]
pub struct ConnectionSlot {
    connection_limiter: Arc<ConnectionLimiter>,
    id: u64,
    /// Whether the connection is authenticated. A copy of the state in `connection_limiter`, for a
    /// fast check at every call.
    authenticated: AtomicBool,
}

impl ConnectionSlot {
    /// See [`ConnectionLimiter::limits`].
    pub(crate) fn limits(&self) -> (usize, usize) {
        self.connection_limiter.limits()
    }

    /// Marks the connection as authenticated. Returns false if no slot is free.
    pub fn authenticate(&self) -> bool {
        if self.authenticated.load(Ordering::Relaxed) {
            return true;
        }
        let mut table = self.connection_limiter.table.lock();
        if table.authenticated.contains_key(&self.id) {
            return true;
        }
        let from = match table.unauthenticated.get(&self.id) {
            Some(connection) => connection.from,
            // The connection was just closed to make room for a newer one.
            None => return false,
        };
        let of = table.by_address.get(&from).copied().unwrap_or(0);
        if table.authenticated.len() >= self.connection_limiter.slots
            || of >= self.connection_limiter.per_address_max
        {
            return false;
        }
        let Some(Unauthenticated { socket, .. }) = table.unauthenticated.remove(&self.id) else {
            return false;
        };
        *table.by_address.entry(from).or_default() += 1;
        table.authenticated.insert(self.id, (from, self.connection_limiter.keep_handles.then_some(socket)));
        self.authenticated.store(true, Ordering::Relaxed);
        true
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.connection_limiter.table.lock();
        table.unauthenticated.remove(&self.id);
        let Some((from, _)) = table.authenticated.remove(&self.id) else { return };
        if let Some(of) = table.by_address.get_mut(&from) {
            *of -= 1;
            if *of == 0 {
                table.by_address.remove(&from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, os::unix::net::UnixStream};

    #[test]
    fn a_new_unauthenticated_connection_closes_the_oldest_one() {
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
    fn connections_of_the_address_with_the_most_are_closed_first() {
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
        // The connection of the other address is the oldest, and was not closed.
        assert!(quiet.authenticate());
        let known = crowd.iter().filter(|(slot, _)| slot.authenticate()).count();
        assert_eq!(known, 2, "connections of one address");
        drop(crowd);
        assert_eq!(connection_limiter.count(), 1);
    }
}
