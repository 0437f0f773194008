//! Chooses DataNodes for the replicas of a block: a pure function on plain data.
//!
//! The first replica goes to the host of the writer, else anywhere. The second goes to another rack
//! if there is one, the third to the rack of the second, and further replicas to racks with the
//! fewest replicas. Among equal nodes, two are drawn at random, weighted by free space, and the one
//! with the lower load is used. So full nodes fill slowly, and a burst of writes does not go to the
//! emptiest node only.
//!
//! Invariants: no node is chosen twice, and chosen nodes are usable, not excluded, have no replica
//! of the block, and have enough free space. If there are too few nodes, fewer replicas are placed.
//!
//! Deliberately absent: hidden randomness. The caller provides the seed.

use std::collections::BTreeMap;
use types::split_mix;

/// A DataNode that may get a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The name of the node.
    pub name: &'a str,
    /// The host of the node.
    pub host: &'a str,
    /// The rack of the node.
    pub rack: &'a str,
    /// Free bytes for blocks, without those of writes in progress.
    pub free: u64,
    /// Number of writes and copies to this node in progress.
    pub load: u32,
    /// Whether it is live and not draining.
    pub usable: bool,
}

/// A placement request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placing<'a> {
    /// Number of new replicas.
    pub count: usize,
    /// The host of the writer; empty if unknown.
    pub writer_host: &'a str,
    /// Names of nodes that failed for the writer.
    pub exclude: &'a [String],
    /// Indexes of candidates that already have the block.
    pub existing: &'a [usize],
    /// The maximum size of the block.
    pub block_bytes: u64,
    /// Seed of the random choice among equal nodes.
    pub seed: u64,
}

/// Why candidates cannot be used: number of candidates by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shortage {
    /// Number of candidates.
    pub nodes: usize,
    /// Not live, or draining.
    pub unusable: usize,
    /// Not enough free space for the block.
    pub full: usize,
    /// Excluded by the writer.
    pub excluded: usize,
}

/// Chooses up to `count` candidates. Returns their indexes in the order of the pipeline; possibly
/// none.
pub fn place(candidates: &[Candidate<'_>], placing: &Placing<'_>) -> Vec<usize> {
    let fits = |index: &usize| {
        let node = &candidates[*index];
        node.usable
            && node.free >= placing.block_bytes
            && !placing.existing.contains(index)
            && !placing.exclude.iter().any(|name| name == node.name)
    };
    let mut draw = Draw { candidates, seed: placing.seed };
    let mut left: Vec<usize> = (0..candidates.len()).filter(fits).collect();
    let mut holders: Vec<usize> = placing.existing.to_vec();
    let mut chosen = Vec::new();
    while chosen.len() < placing.count && !left.is_empty() {
        let pool = preferred(candidates, placing, &holders, &left);
        let pick = draw.one_of(&pool);
        left.retain(|index| *index != pick);
        holders.push(pick);
        chosen.push(pick);
    }
    chosen
}

/// Counts the reasons why candidates cannot be used.
pub fn shortage(candidates: &[Candidate<'_>], placing: &Placing<'_>) -> Shortage {
    let mut shortage = Shortage { nodes: candidates.len(), ..Shortage::default() };
    for node in candidates {
        if !node.usable {
            shortage.unusable += 1;
        } else if placing.exclude.iter().any(|name| name == node.name) {
            shortage.excluded += 1;
        } else if node.free < placing.block_bytes {
            shortage.full += 1;
        }
    }
    shortage
}

/// The part of `left` that the next replica should be chosen from. Not empty unless `left` is.
fn preferred(
    candidates: &[Candidate<'_>],
    placing: &Placing<'_>,
    holders: &[usize],
    left: &[usize],
) -> Vec<usize> {
    let rack = |index: &usize| candidates[*index].rack;
    let those = |wanted: &dyn Fn(&usize) -> bool| -> Option<Vec<usize>> {
        let some: Vec<usize> = left.iter().copied().filter(|index| wanted(index)).collect();
        (!some.is_empty()).then_some(some)
    };
    let chosen = match holders {
        [] if placing.writer_host.is_empty() => None,
        [] => those(&|index| candidates[*index].host == placing.writer_host),
        [first] => those(&|index| rack(index) != rack(first)),
        [first, second] if rack(first) != rack(second) => those(&|index| rack(index) == rack(second)),
        _ => None,
    };
    chosen.unwrap_or_else(|| fewest_on_rack(candidates, holders, left))
}

fn fewest_on_rack(candidates: &[Candidate<'_>], holders: &[usize], left: &[usize]) -> Vec<usize> {
    let mut on_rack: BTreeMap<&str, usize> = BTreeMap::new();
    for index in holders {
        *on_rack.entry(candidates[*index].rack).or_default() += 1;
    }
    let count = |index: &usize| on_rack.get(candidates[*index].rack).copied().unwrap_or(0);
    let fewest = left.iter().map(count).min().unwrap_or(0);
    left.iter().copied().filter(|index| count(index) == fewest).collect()
}

/// Random choices from a seed.
struct Draw<'a> {
    candidates: &'a [Candidate<'a>],
    seed: u64,
}

impl Draw<'_> {
    /// Draws two nodes, weighted by free space. The one with the lower load is used, or the one
    /// with more free space if the loads are equal.
    fn one_of(&mut self, pool: &[usize]) -> usize {
        let (one, other) = (self.weighted(pool), self.weighted(pool));
        let key = |index: usize| (self.candidates[index].load, u64::MAX - self.candidates[index].free, index);
        if key(one) <= key(other) { one } else { other }
    }

    fn weighted(&mut self, pool: &[usize]) -> usize {
        // Plus one, so that full nodes can be drawn for empty blocks.
        let weight = |index: &usize| u128::from(self.candidates[*index].free) + 1;
        let total: u128 = pool.iter().map(weight).sum();
        let mut at = (u128::from(split_mix::next(&mut self.seed)) * total) >> 64;
        for index in pool {
            let weight = u128::from(self.candidates[*index].free) + 1;
            if at < weight {
                return *index;
            }
            at -= weight;
        }
        pool[pool.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node<'a>(name: &'a str, rack: &'a str, free: u64) -> Candidate<'a> {
        Candidate { name, host: name, rack, free, load: 0, usable: true }
    }

    fn six() -> Vec<Candidate<'static>> {
        ["a1", "a2", "b1", "b2", "c1", "c2"].map(|name| node(name, &name[..1], 1000)).to_vec()
    }

    #[test]
    fn writer_then_off_rack_then_that_rack() {
        let nodes = six();
        for seed in 0..200 {
            let placing =
                Placing { count: 4, writer_host: "b2", block_bytes: 10, seed, ..Placing::default() };
            let chosen = place(&nodes, &placing);
            assert_eq!(nodes[chosen[0]].name, "b2");
            assert_ne!(nodes[chosen[1]].rack, "b");
            assert_eq!(nodes[chosen[2]].rack, nodes[chosen[1]].rack);
            let racks: std::collections::BTreeSet<_> = chosen.iter().map(|i| nodes[*i].rack).collect();
            assert_eq!(racks.len(), 3, "the fourth takes the empty rack");
        }
    }

    #[test]
    fn never_twice_never_full_never_excluded() {
        let mut nodes = six();
        nodes[0].free = 5;
        nodes[1].usable = false;
        let exclude = ["b1".to_owned()];
        for seed in 0..200 {
            let placing = Placing {
                count: 9,
                exclude: &exclude,
                existing: &[3],
                block_bytes: 10,
                seed,
                ..Placing::default()
            };
            let mut chosen = place(&nodes, &placing);
            chosen.sort_unstable();
            assert_eq!(chosen, [4, 5]);
        }
    }

    #[test]
    fn one_node_one_rack_is_enough() {
        let nodes = [node("n", "r", 100)];
        let placing = Placing { count: 3, writer_host: "n", block_bytes: 100, ..Placing::default() };
        assert_eq!(place(&nodes, &placing), [0]);
        assert!(place(&[], &placing).is_empty());
        let placing = Placing { block_bytes: 101, ..placing };
        assert!(place(&nodes, &placing).is_empty());
        let why = shortage(&nodes, &placing);
        assert_eq!(why, Shortage { nodes: 1, full: 1, ..Shortage::default() });
    }

    #[test]
    fn more_free_space_gets_more_blocks() {
        let nodes = [node("big", "r", 9000), node("small", "r", 1000)];
        let big = (0..2000)
            .filter(|seed| place(&nodes, &Placing { count: 1, seed: *seed, ..Placing::default() }) == [0])
            .count();
        assert!((1700..2000).contains(&big), "{big} of 2000 on the node with nine tenths of the free space");
    }

    #[test]
    fn a_repair_goes_off_the_rack_of_the_one_left() {
        let nodes = six();
        for seed in 0..50 {
            let placing = Placing { count: 1, existing: &[2], seed, ..Placing::default() };
            assert_ne!(nodes[place(&nodes, &placing)[0]].rack, "b");
        }
    }
}
