//! The starts of the `JobTrackers` of a group that the NameNode may have accepted.
//!
//! The NameNode keeps the newest start that it has accepted. A group whose facts do not contain that
//! start was started from older copies of its folders, and the NameNode refuses it (ADR 0022). A
//! start is recorded before it is sent to the NameNode, so an accepted start is always in the list.
//! One JobTracker without a group has them in a file, because its journal is written by builds that
//! have no such fact.

use crate::fact::Start;

/// Maximum number of starts. More happen only if the NameNode is unreachable at as many starts. The
/// oldest start, which was accepted, is always kept.
const STARTS_MAX: usize = 1000;

/// The newest start that is known to be accepted, and all later ones, ordered by epoch. They depend
/// only on the facts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Starts(Vec<Start>);

impl Starts {
    /// Adds a start. If the NameNode has accepted it, earlier ones are not needed any more.
    pub fn add(&mut self, start: Start, accepted: bool) {
        if accepted {
            self.0.clear();
        }
        if self.0.len() >= STARTS_MAX {
            self.0.remove(1);
        }
        self.0.push(start);
    }

    /// Returns whether the list contains this start.
    pub fn contains(&self, start: Start) -> bool {
        self.0.contains(&start)
    }

    /// Returns all starts.
    pub fn iter(&self) -> impl Iterator<Item = Start> + '_ {
        self.0.iter().copied()
    }

    /// Returns all starts before this one.
    pub fn before(&self, start: Start) -> impl Iterator<Item = Start> + '_ {
        self.iter().take_while(move |one| one.epoch < start.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(epoch: u64) -> Start {
        Start { epoch, id: u64::MAX - epoch }
    }

    #[test]
    fn starts_since_the_last_accepted_one_are_kept() {
        let mut starts = Starts::default();
        let before = |starts: &Starts, epoch| starts.before(start(epoch)).collect::<Vec<_>>();
        starts.add(start(1), false);
        starts.add(start(2), false);
        assert_eq!(before(&starts, 2), [start(1)]);
        starts.add(start(2), true);
        starts.add(start(3), false);
        assert_eq!((before(&starts, 3), starts.contains(start(1))), (vec![start(2)], false));
        for epoch in 4..4 + 2 * STARTS_MAX as u64 {
            starts.add(start(epoch), false);
        }
        assert_eq!(starts.0.len(), STARTS_MAX);
        assert!(starts.contains(start(2)) && !starts.contains(start(3)), "the accepted one stays");
    }
}
