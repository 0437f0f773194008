//! Chooses DataNodes for the replicas of a block: a pure function on plain data.
//!
//! The first replica goes to the host of the writer, else anywhere. The second goes to another rack
//! if there is one, the third to the rack of the second, and further replicas to racks with the
//! fewest replicas. If several nodes satisfy these rules equally, two of them are drawn at random,
//! weighted by free space, and the one with the lower load is used. So nodes with little free space
//! get few blocks, and a burst of writes does not go only to the emptiest node.
//!
//! Invariants: no node is chosen twice, and chosen nodes are usable, not excluded, have no replica
//! of the block, and have enough free space. If there are too few nodes, fewer replicas are placed.
//!
//! The caller provides the seed of all random choices.

use std::collections::{BTreeMap, BTreeSet};
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
    /// Free bytes for blocks. Bytes that writes in progress need are already subtracted.
    pub free: u64,
    /// Number of writes and copies to this node in progress.
    pub load: u32,
    /// Whether the node is live and not draining.
    pub usable: bool,
}

/// A request to place replicas of a block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlacementRequest<'a> {
    /// Number of new replicas to place.
    pub count: usize,
    /// The host of the writer; empty if unknown.
    pub writer_host: &'a str,
    /// Names of nodes that must not be used, because the writer could not write to them.
    pub exclude: &'a [String],
    /// Indexes of candidates that already have a replica of the block.
    pub existing: &'a [usize],
    /// The maximum size of the block.
    pub block_bytes: u64,
    /// Seed of the random choice among equally suitable nodes.
    pub seed: u64,
}

impl PlacementRequest<'_> {
    fn excluded(&self) -> BTreeSet<&str> {
        self.exclude.iter().map(String::as_str).collect()
    }
}

/// Counts why candidates cannot be used: the number of candidates for each reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shortage {
    /// Number of all candidates.
    pub nodes: usize,
    /// Number of candidates that are not live, or are draining.
    pub unusable: usize,
    /// Number of candidates without enough free space for the block.
    pub full: usize,
    /// The most free space of a full candidate, in bytes.
    pub free_max: u64,
    /// Number of candidates that the request excludes.
    pub excluded: usize,
}

/// Chooses up to `count` candidates. Returns their indexes in the order of the write pipeline; may
/// return none.
pub fn place(candidates: &[Candidate<'_>], request: &PlacementRequest<'_>) -> Vec<usize> {
    let excluded = request.excluded();
    let fits = |index: &usize| {
        let node = &candidates[*index];
        node.usable
            && node.free >= request.block_bytes
            && !request.existing.contains(index)
            && !excluded.contains(node.name)
    };
    let mut random = RandomChoice { candidates, seed: request.seed };
    let mut remaining: Vec<usize> = (0..candidates.len()).filter(fits).collect();
    let mut holders: Vec<usize> = request.existing.to_vec();
    let mut chosen = Vec::new();
    while chosen.len() < request.count && !remaining.is_empty() {
        let pool = preferred_nodes(candidates, request, &holders, &remaining);
        let pick = random.draw_best_of_two(&pool);
        remaining.retain(|index| *index != pick);
        holders.push(pick);
        chosen.push(pick);
    }
    chosen
}

/// Counts the reasons why candidates cannot be used.
pub fn shortage(candidates: &[Candidate<'_>], request: &PlacementRequest<'_>) -> Shortage {
    let mut shortage = Shortage { nodes: candidates.len(), ..Shortage::default() };
    let excluded = request.excluded();
    for node in candidates {
        if !node.usable {
            shortage.unusable += 1;
        } else if excluded.contains(node.name) {
            shortage.excluded += 1;
        } else if node.free < request.block_bytes {
            shortage.full += 1;
            shortage.free_max = shortage.free_max.max(node.free);
        }
    }
    shortage
}

/// Returns the nodes in `remaining` that the next replica should be chosen from; at least one
/// unless `remaining` is empty.
fn preferred_nodes(
    candidates: &[Candidate<'_>],
    request: &PlacementRequest<'_>,
    holders: &[usize],
    remaining: &[usize],
) -> Vec<usize> {
    let rack = |index: &usize| candidates[*index].rack;
    let matching = |wanted: &dyn Fn(&usize) -> bool| -> Option<Vec<usize>> {
        let some: Vec<usize> = remaining.iter().copied().filter(|index| wanted(index)).collect();
        (!some.is_empty()).then_some(some)
    };
    let chosen = match holders {
        [] if request.writer_host.is_empty() => None,
        [] => matching(&|index| candidates[*index].host == request.writer_host),
        [first] => matching(&|index| rack(index) != rack(first)),
        [first, second] if rack(first) != rack(second) => matching(&|index| rack(index) == rack(second)),
        _ => None,
    };
    chosen.unwrap_or_else(|| fewest_on_rack(candidates, holders, remaining))
}

/// Returns the nodes in `remaining` whose racks have the fewest replicas.
fn fewest_on_rack(candidates: &[Candidate<'_>], holders: &[usize], remaining: &[usize]) -> Vec<usize> {
    let mut on_rack: BTreeMap<&str, usize> = BTreeMap::new();
    for index in holders {
        *on_rack.entry(candidates[*index].rack).or_default() += 1;
    }
    let count = |index: &usize| on_rack.get(candidates[*index].rack).copied().unwrap_or(0);
    let fewest = remaining.iter().map(count).min().unwrap_or(0);
    remaining.iter().copied().filter(|index| count(index) == fewest).collect()
}

/// Makes random choices from a seed.
struct RandomChoice<'a> {
    candidates: &'a [Candidate<'a>],
    seed: u64,
}

impl RandomChoice<'_> {
    /// Draws two nodes, weighted by free space, and returns the one with the lower load. If the
    /// loads are equal, returns the one with more free space.
    fn draw_best_of_two(&mut self, pool: &[usize]) -> usize {
        let (one, other) = (self.draw_weighted(pool), self.draw_weighted(pool));
        let key = |index: usize| (self.candidates[index].load, u64::MAX - self.candidates[index].free, index);
        if key(one) <= key(other) { one } else { other }
    }

    fn draw_weighted(&mut self, pool: &[usize]) -> usize {
        // One is added, so that full nodes can be drawn for empty blocks.
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

    /// Returns six nodes, two on each of the racks a, b and c.
    fn six_nodes_on_three_racks() -> Vec<Candidate<'static>> {
        ["a1", "a2", "b1", "b2", "c1", "c2"].map(|name| node(name, &name[..1], 1000)).to_vec()
    }

    #[test]
    fn replicas_go_to_the_writer_then_another_rack_then_the_same_rack_as_the_second() {
        let nodes = six_nodes_on_three_racks();
        for seed in 0..200 {
            let request = PlacementRequest {
                count: 4,
                writer_host: "b2",
                block_bytes: 10,
                seed,
                ..PlacementRequest::default()
            };
            let chosen = place(&nodes, &request);
            assert_eq!(nodes[chosen[0]].name, "b2");
            assert_ne!(nodes[chosen[1]].rack, "b");
            assert_eq!(nodes[chosen[2]].rack, nodes[chosen[1]].rack);
            let racks: std::collections::BTreeSet<_> = chosen.iter().map(|i| nodes[*i].rack).collect();
            assert_eq!(racks.len(), 3, "the fourth replica goes to the rack without replicas");
        }
    }

    #[test]
    fn nodes_are_chosen_once_and_not_if_full_unusable_or_excluded() {
        let mut nodes = six_nodes_on_three_racks();
        nodes[0].free = 5;
        nodes[1].usable = false;
        let exclude = ["b1".to_owned()];
        for seed in 0..200 {
            let request = PlacementRequest {
                count: 9,
                exclude: &exclude,
                existing: &[3],
                block_bytes: 10,
                seed,
                ..PlacementRequest::default()
            };
            let mut chosen = place(&nodes, &request);
            chosen.sort_unstable();
            assert_eq!(chosen, [4, 5]);
        }
    }

    #[test]
    fn a_single_node_gets_one_replica_if_the_block_fits() {
        let nodes = [node("n", "r", 100)];
        let request =
            PlacementRequest { count: 3, writer_host: "n", block_bytes: 100, ..PlacementRequest::default() };
        assert_eq!(place(&nodes, &request), [0]);
        assert!(place(&[], &request).is_empty());
        let request = PlacementRequest { block_bytes: 101, ..request };
        assert!(place(&nodes, &request).is_empty());
        let why = shortage(&nodes, &request);
        assert_eq!(why, Shortage { nodes: 1, full: 1, free_max: 100, ..Shortage::default() });
    }

    #[test]
    fn nodes_with_more_free_space_get_more_blocks() {
        let nodes = [node("big", "r", 9000), node("small", "r", 1000)];
        let big = (0..2000)
            .filter(|seed| {
                place(&nodes, &PlacementRequest { count: 1, seed: *seed, ..PlacementRequest::default() })
                    == [0]
            })
            .count();
        assert!((1700..2000).contains(&big), "{big} of 2000 on the node with nine tenths of the free space");
    }

    #[test]
    fn a_copy_goes_to_another_rack_than_the_only_replica() {
        let nodes = six_nodes_on_three_racks();
        for seed in 0..50 {
            let request = PlacementRequest { count: 1, existing: &[2], seed, ..PlacementRequest::default() };
            assert_ne!(nodes[place(&nodes, &request)[0]].rack, "b");
        }
    }
}
