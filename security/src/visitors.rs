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
pub(crate) const STRANGERS_MAX: usize = 256;
/// A stranger that is silent for this long is dropped.
pub const STRANGER_PATIENCE: Duration = Duration::from_secs(5);

/// All of them.
#[derive(Debug)]
pub struct Visitors {
    places: usize,
    /// The most that one address may have of the places.
    each: usize,
    /// Whether [`Self::close`] must reach those who are known.
    holds: bool,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    next: u64,
    strangers: BTreeMap<u64, Stranger>,
    known: BTreeMap<u64, (From, Option<OwnedFd>)>,
    /// How many are known of an address.
    of: BTreeMap<From, usize>,
}

/// An address; none for what is no network.
type From = Option<IpAddr>;

#[derive(Debug)]
struct Stranger {
    from: From,
    socket: OwnedFd,
}

impl Visitors {
    /// None yet; so many may be known at a time.
    pub fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places, each: places, holds: true, inside: Mutex::default() })
    }

    /// The same, with no more than `each` of one address, and without a handle to those who are known: each costs one
    /// open file and not two.
    pub(crate) fn by_address(places: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { places, each, holds: false, inside: Mutex::default() })
    }

    /// One more, a stranger, by another handle to its socket.
    pub fn enter(self: &Arc<Self>, socket: impl Into<OwnedFd>) -> Visit {
        let socket = socket.into();
        let from = address_of(&socket);
        let mut inside = self.inside.lock();
        if inside.strangers.len() >= STRANGERS_MAX {
            inside.make_room();
        }
        inside.next += 1;
        let id = inside.next;
        inside.strangers.insert(id, Stranger { from, socket });
        Visit { visitors: self.clone(), id, known: AtomicBool::new(false) }
    }

    /// How many may be known at a time, in all and of one address.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.places, self.each)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        let inside = self.inside.lock();
        inside.strangers.len() + inside.known.len()
    }

    /// Ends them all, as far as there are handles to them.
    pub fn close(&self) {
        let inside = self.inside.lock();
        inside.strangers.values().map(|stranger| &stranger.socket).for_each(close);
        inside.known.values().filter_map(|(_, socket)| socket.as_ref()).for_each(close);
    }
}

impl Inside {
    /// The oldest of the address that has most of the strangers goes.
    fn make_room(&mut self) {
        let mut count: BTreeMap<From, usize> = BTreeMap::new();
        for stranger in self.strangers.values() {
            *count.entry(stranger.from).or_default() += 1;
        }
        let Some((most, _)) = count.into_iter().max_by_key(|(_, count)| *count) else { return };
        let oldest = self.strangers.iter().find(|(_, stranger)| stranger.from == most).map(|(id, _)| *id);
        if let Some(stranger) = oldest.and_then(|id| self.strangers.remove(&id)) {
            close(&stranger.socket);
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
pub struct Visit {
    visitors: Arc<Visitors>,
    id: u64,
    /// As in `visitors`, for those who ask at every call.
    known: AtomicBool,
}

impl Visit {
    /// See [`Visitors::limits`].
    pub(crate) fn limits(&self) -> (usize, usize) {
        self.visitors.limits()
    }

    /// It has shown that it may be here. False if all places are taken.
    pub fn become_known(&self) -> bool {
        if self.known.load(Ordering::Relaxed) {
            return true;
        }
        let mut inside = self.visitors.inside.lock();
        if inside.known.contains_key(&self.id) {
            return true;
        }
        let from = match inside.strangers.get(&self.id) {
            Some(stranger) => stranger.from,
            // It had to make room a moment ago.
            None => return false,
        };
        let of = inside.of.get(&from).copied().unwrap_or(0);
        if inside.known.len() >= self.visitors.places || of >= self.visitors.each {
            return false;
        }
        let Some(Stranger { socket, .. }) = inside.strangers.remove(&self.id) else { return false };
        *inside.of.entry(from).or_default() += 1;
        inside.known.insert(self.id, (from, self.visitors.holds.then_some(socket)));
        self.known.store(true, Ordering::Relaxed);
        true
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut inside = self.visitors.inside.lock();
        inside.strangers.remove(&self.id);
        let Some((from, _)) = inside.known.remove(&self.id) else { return };
        if let Some(of) = inside.of.get_mut(&from) {
            *of -= 1;
            if *of == 0 {
                inside.of.remove(&from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, os::unix::net::UnixStream};

    #[test]
    fn strangers_make_room_for_each_other_and_keep_nobody_out() {
        let visitors = Visitors::new(1);
        let mut ends = Vec::new();
        let mut visits = Vec::new();
        let mut come = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ends.push(theirs);
            visits.push(visitors.enter(ours));
        };
        come();
        (0..STRANGERS_MAX).for_each(|_| come());
        assert_eq!(visitors.count(), STRANGERS_MAX);
        // The first had to go, and sees the end.
        assert_eq!(ends[0].read(&mut [0]).unwrap(), 0);
        assert!(!visits[0].become_known());
        assert!(visits[1].become_known() && visits[1].become_known());
        assert!(!visits[2].become_known(), "there is one place");
        visits.remove(1);
        assert!(visits[1].become_known());
        drop(visits);
        assert_eq!(visitors.count(), 0);
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
    fn whoever_crowds_the_door_makes_room_for_others() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let visitors = Visitors::by_address(3, 2);
        let (ours, _theirs) = connection(&listener, [127, 0, 0, 2]);
        let quiet = visitors.enter(ours);
        let crowd: Vec<_> = (0..STRANGERS_MAX + 10)
            .map(|_| {
                let (ours, theirs) = connection(&listener, [127, 0, 0, 3]);
                (visitors.enter(ours), theirs)
            })
            .collect();
        assert_eq!(visitors.count(), STRANGERS_MAX);
        // It came before all of them and has not lost its place to any.
        assert!(quiet.become_known());
        let known = crowd.iter().filter(|(visit, _)| visit.become_known()).count();
        assert_eq!(known, 2, "of one address");
        drop(crowd);
        assert_eq!(visitors.count(), 1);
    }
}
