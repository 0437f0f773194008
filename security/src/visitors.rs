//! The connections of a server for bytes. Whoever has shown nothing yet is a stranger: of these there are few, they get
//! little time, and the oldest makes room for the next, so that nobody without a token keeps others out. Whoever has
//! shown a good token is known, and has one of the server's places until it goes.

use parking_lot::Mutex;
use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc, time::Duration};

/// Strangers at one time.
const STRANGERS_MAX: usize = 256;
/// A stranger that is silent for this long is dropped.
pub const STRANGER_PATIENCE: Duration = Duration::from_secs(5);

/// All of them.
#[derive(Debug)]
pub struct Visitors {
    places: usize,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    next: u64,
    strangers: BTreeMap<u64, OwnedFd>,
    known: BTreeMap<u64, OwnedFd>,
}

impl Visitors {
    /// None yet; so many may be known at a time.
    pub fn new(places: usize) -> Arc<Self> {
        Arc::new(Self { places, inside: Mutex::default() })
    }

    /// One more, a stranger, by another handle to its socket.
    pub fn enter(self: &Arc<Self>, socket: impl Into<OwnedFd>) -> Visit {
        let mut inside = self.inside.lock();
        if inside.strangers.len() >= STRANGERS_MAX
            && let Some((_, oldest)) = inside.strangers.pop_first()
        {
            close(&oldest);
        }
        inside.next += 1;
        let id = inside.next;
        inside.strangers.insert(id, socket.into());
        Visit { visitors: self.clone(), id }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        let inside = self.inside.lock();
        inside.strangers.len() + inside.known.len()
    }

    /// Ends them all.
    pub fn close(&self) {
        let inside = self.inside.lock();
        inside.strangers.values().chain(inside.known.values()).for_each(close);
    }
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
}

impl Visit {
    /// It has shown that it may be here. False if all places are taken.
    pub fn become_known(&self) -> bool {
        let mut inside = self.visitors.inside.lock();
        if inside.known.contains_key(&self.id) {
            return true;
        }
        if inside.known.len() >= self.visitors.places {
            return false;
        }
        match inside.strangers.remove(&self.id) {
            Some(socket) => inside.known.insert(self.id, socket).is_none(),
            // It had to make room a moment ago.
            None => false,
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut inside = self.visitors.inside.lock();
        inside.strangers.remove(&self.id);
        inside.known.remove(&self.id);
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
}
