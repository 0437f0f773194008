//! A set of items sorted by a key that changes over time, so that no sorting is needed in a round.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

/// A floating point number as a key, ordered by `total_cmp`.
#[derive(Debug, Clone, Copy)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Real {}
impl PartialOrd for Real {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Real {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Items sorted by key, then by themselves.
#[derive(Debug, Clone)]
pub struct RankedQueue<T, K> {
    keys: BTreeMap<T, K>,
    queue: BTreeSet<(K, T)>,
}

impl<T: Copy + Ord, K: Copy + Ord> RankedQueue<T, K> {
    /// Sets the key of an item, or removes the item.
    pub fn set(&mut self, item: T, key: Option<K>) {
        let before = match key {
            Some(key) => self.keys.insert(item, key),
            None => self.keys.remove(&item),
        };
        if before == key {
            return;
        }
        if let Some(before) = before {
            self.queue.remove(&(before, item));
        }
        if let Some(key) = key {
            self.queue.insert((key, item));
        }
    }

    /// Returns the items in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = T> + '_ {
        self.queue.iter().map(|(_, item)| *item)
    }

    /// Returns the items before an item; all items if the queue does not contain it.
    pub fn ahead_of(&self, item: T) -> impl Iterator<Item = T> + '_ {
        self.iter().take_while(move |other| *other != item)
    }

    /// Returns the key of an item.
    pub fn key(&self, item: T) -> Option<K> {
        self.keys.get(&item).copied()
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl<T, K> Default for RankedQueue<T, K> {
    fn default() -> Self {
        Self { keys: BTreeMap::new(), queue: BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_position_follows_its_newest_key() {
        let mut queue = RankedQueue::default();
        queue.set('a', Some(Real(2.0)));
        queue.set('b', Some(Real(1.0)));
        queue.set('c', Some(Real(1.0)));
        assert_eq!(queue.iter().collect::<String>(), "bca");
        queue.set('a', Some(Real(0.5)));
        queue.set('c', None);
        assert_eq!(queue.iter().collect::<String>(), "ab");
        assert_eq!(queue.ahead_of('b').collect::<String>(), "a");
    }
}
