//! The connections of a server. Whoever has shown nothing yet is a stranger: of these there are few, they get little
//! time, and when there are too many the oldest of the address that has most makes room for the next, so that nobody
//! without a token keeps others out. Whoever has shown a good token is known, and has one of the server's places until
//! it goes.

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

/// Strangers at one time.
pub(crate) const UNAUTHENTICATED_MAX: usize = 256;
/// A stranger that is silent for this long is dropped.
pub const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(5);

/// All of them.
#[derive(Debug)]
pub struct ConnectionLimiter {
    slots: usize,
    /// The most that one address may have of the places.
    each: usize,
    /// Whether [`Self::close`] must reach those who are known.
    holds: bool,
    table: Mutex<ConnectionTable>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    known: BTreeMap<u64, (From, Option<OwnedFd>)>,
    /// How many are known of an address.
    of: BTreeMap<From, usize>,
}

/// An address; none for what is no network.
type From = Option<IpAddr>;

#[derive(Debug)]
struct Unauthenticated {
    from: From,
    socket: OwnedFd,
}

impl ConnectionLimiter {
    /// None yet; so many may be known at a time.
    pub fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self { slots, each: slots, holds: true, table: Mutex::default() })
    }

    /// The same, with no more than `each` of one address, and without a handle to those who are known: each costs one
    /// open file and not two.
    pub(crate) fn by_address(slots: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { slots, each, holds: false, table: Mutex::default() })
    }

    /// One more, a stranger, by another handle to its socket.
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

    /// How many may be known at a time, in all and of one address.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.slots, self.each)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        let table = self.table.lock();
        table.unauthenticated.len() + table.known.len()
    }

    /// Ends them all, as far as there are handles to them.
    pub fn close(&self) {
        let table = self.table.lock();
        table.unauthenticated.values().map(|connection_slot| &connection_slot.socket).for_each(close);
        table.known.values().filter_map(|(_, socket)| socket.as_ref()).for_each(close);
    }
}

impl ConnectionTable {
    /// The oldest of the address that has most of the strangers goes.
    fn make_room(&mut self) {
        let mut count: BTreeMap<From, usize> = BTreeMap::new();
        for connection_slot in self.unauthenticated.values() {
            *count.entry(connection_slot.from).or_default() += 1;
        }
        let Some((max, _)) = count.into_iter().max_by_key(|(_, count)| *count) else { return };
        let oldest = self
            .unauthenticated
            .iter()
            .find(|(_, connection_slot)| connection_slot.from == max)
            .map(|(id, _)| *id);
        if let Some(connection_slot) = oldest.and_then(|id| self.unauthenticated.remove(&id)) {
            close(&connection_slot.socket);
        }
    }
}

fn address_of(socket: &OwnedFd) -> From {
    let peer: SocketAddrAny = getpeername(socket).ok()??;
    SocketAddr::try_from(peer).ok().map(|addr| addr.ip().to_canonical())
}

fn close(socket: &OwnedFd) {
    // One that is gone has ended by itself.
    rustix::net::shutdown(socket, rustix::net::Shutdown::Both).ok();
}

/// One connection; it has gone when this is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    connection_limiter: Arc<ConnectionLimiter>,
    id: u64,
    /// As in `connection_limiter`, for those who ask at every call.
    known: AtomicBool,
}

impl ConnectionSlot {
    /// See [`ConnectionLimiter::limits`].
    pub(crate) fn limits(&self) -> (usize, usize) {
        self.connection_limiter.limits()
    }

    /// It has shown that it may be here. False if all places are taken.
    pub fn authenticate(&self) -> bool {
        if self.known.load(Ordering::Relaxed) {
            return true;
        }
        let mut table = self.connection_limiter.table.lock();
        if table.known.contains_key(&self.id) {
            return true;
        }
        let from = match table.unauthenticated.get(&self.id) {
            Some(connection_slot) => connection_slot.from,
            // It had to make room a moment ago.
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
        let mut visits = Vec::new();
        let mut come = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ends.push(theirs);
            visits.push(connection_limiter.enter(ours));
        };
        come();
        (0..UNAUTHENTICATED_MAX).for_each(|_| come());
        assert_eq!(connection_limiter.count(), UNAUTHENTICATED_MAX);
        // The first had to go, and sees the end.
        assert_eq!(ends[0].read(&mut [0]).unwrap(), 0);
        assert!(!visits[0].authenticate());
        assert!(visits[1].authenticate() && visits[1].authenticate());
        assert!(!visits[2].authenticate(), "there is one place");
        visits.remove(1);
        assert!(visits[1].authenticate());
        drop(visits);
        assert_eq!(connection_limiter.count(), 0);
    }

    /// A connection from this address of the loopback network to us.
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
        // It came before all of them and has not lost its place to any.
        assert!(quiet.authenticate());
        let known = crowd.iter().filter(|(slot, _)| slot.authenticate()).count();
        assert_eq!(known, 2, "of one address");
        drop(crowd);
        assert_eq!(connection_limiter.count(), 1);
    }
}
