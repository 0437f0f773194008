//! The network: flows over shared links with max-min fair rates.
//!
//! Each node and each rack has an uplink and a downlink, and all racks share the fabric. A flow has
//! a demand (the rate that its reader can use) and occupies a fraction of each link on its path.
//! Rates are computed by progressive filling: the most loaded link is divided evenly among its
//! unsatisfied flows, then the next one.
//!
//! Packets, latency and TCP are not modelled. Rates are computed at most once per epoch, not at
//! every change. Until then a new flow gets an even share of each link on its path.

use smallvec::SmallVec;
use std::{cmp::Reverse, collections::BinaryHeap};

/// Index of a flow; reused after its end.
pub(super) type FlowId = usize;

/// Owner of a flow: the attempt with this key on this node.
pub(super) type Owner = (u32, u64);

#[derive(Debug, Clone)]
struct Flow {
    /// Links, and the fraction of the flow that each carries.
    path: SmallVec<[(u32, f32); 4]>,
    owner: Owner,
    demand: f64,
    rate: f64,
}

/// Links and flows.
#[derive(Debug)]
pub(super) struct Net {
    nodes: u32,
    racks: u32,
    rack_of: Vec<u32>,
    capacity: Vec<f64>,
    flows: Vec<Option<Flow>>,
    free_ids: Vec<FlowId>,
    flows_on_link: Vec<u32>,
    link_shares: LinkShares,
    /// Whether flows have changed since rates were computed.
    pub(super) dirty: bool,
}

impl Net {
    /// Creates the network. Rates are in bytes per second: `nic` per node, `rack` per rack,
    /// `fabric` in total.
    pub(super) fn new(nic: &[f64], rack_of: Vec<u32>, rack: f64, fabric: f64) -> Self {
        let (nodes, racks) = (nic.len() as u32, rack_of.iter().max().map_or(1, |last| last + 1));
        let mut capacity: Vec<f64> = nic.iter().chain(nic).copied().collect();
        capacity.extend(std::iter::repeat_n(rack, 2 * racks as usize));
        capacity.push(fabric);
        let flows_on_link = vec![0; capacity.len()];
        Self {
            nodes,
            racks,
            rack_of,
            capacity,
            flows: Vec::new(),
            free_ids: Vec::new(),
            flows_on_link,
            link_shares: LinkShares::default(),
            dirty: false,
        }
    }

    fn up(node: u32) -> u32 {
        node
    }
    fn down(&self, node: u32) -> u32 {
        self.nodes + node
    }
    fn rack_up(&self, node: u32) -> u32 {
        2 * self.nodes + self.rack_of[node as usize]
    }
    fn rack_down(&self, node: u32) -> u32 {
        2 * self.nodes + self.racks + self.rack_of[node as usize]
    }
    fn fabric(&self) -> u32 {
        2 * self.nodes + 2 * self.racks
    }

    /// Whether two nodes are in the same rack.
    pub(super) fn same_rack(&self, one: u32, other: u32) -> bool {
        self.rack_of[one as usize] == self.rack_of[other as usize]
    }

    /// Adds a flow from one node to another. Returns its ID.
    pub(super) fn add_transfer(&mut self, from: u32, to: u32, demand: f64, owner: Owner) -> FlowId {
        let mut path = SmallVec::from_slice(&[(Self::up(from), 1.0), (self.down(to), 1.0)]);
        if !self.same_rack(from, to) {
            path.push((self.rack_up(from), 1.0));
            path.push((self.rack_down(to), 1.0));
        }
        self.add(path, demand, owner)
    }

    /// Adds a flow from all nodes to one: a shuffle. Its load on the uplinks of the sources is
    /// small and even, so these links are not modelled; the sources share the fabric. Bytes from
    /// the destination node itself use no link.
    pub(super) fn add_shuffle(&mut self, to: u32, demand: f64, owner: Owner) -> FlowId {
        let across = 1.0 - 1.0 / self.racks as f32;
        let away = (1.0 - 1.0 / self.nodes as f32).max(1e-3);
        let mut path = SmallVec::from_slice(&[(self.down(to), away), (self.fabric(), away)]);
        if self.racks > 1 {
            path.push((self.rack_down(to), across));
        }
        self.add(path, demand, owner)
    }

    fn add(&mut self, path: SmallVec<[(u32, f32); 4]>, demand: f64, owner: Owner) -> FlowId {
        let mut rate = demand;
        for (link, part) in &path {
            self.flows_on_link[*link as usize] += 1;
            let share = self.capacity[*link as usize] / f64::from(self.flows_on_link[*link as usize]);
            rate = rate.min(share / f64::from(*part));
        }
        self.dirty = true;
        let flow = Some(Flow { path, owner, demand, rate });
        if let Some(id) = self.free_ids.pop() {
            self.flows[id] = flow;
            id
        } else {
            self.flows.push(flow);
            self.flows.len() - 1
        }
    }

    /// Removes a flow.
    pub(super) fn remove(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(id).and_then(Option::take) {
            flow.path.iter().for_each(|(link, _)| self.flows_on_link[*link as usize] -= 1);
            self.free_ids.push(id);
            self.dirty = true;
        }
    }

    /// Returns the rate of a flow in bytes per second.
    pub(super) fn rate(&self, id: FlowId) -> f64 {
        self.flows.get(id).and_then(Option::as_ref).map_or(0.0, |flow| flow.rate)
    }

    /// Sets the demand of a flow. Until rates are computed again it gets an even share.
    pub(super) fn set_demand(&mut self, id: FlowId, demand: f64) {
        let Some(flow) = self.flows.get_mut(id).and_then(Option::as_mut) else { return };
        if (flow.demand - demand).abs() <= flow.demand * 1e-3 {
            return;
        }
        let even = |(link, part): &(u32, f32)| {
            let at = *link as usize;
            self.capacity[at] / f64::from(self.flows_on_link[at]) / f64::from(*part)
        };
        let even = flow.path.iter().map(even).fold(f64::INFINITY, f64::min);
        flow.rate = demand.min(even.max(flow.rate));
        flow.demand = demand;
        self.dirty = true;
    }

    /// Returns every flow with its owner.
    pub(super) fn owners(&self) -> Vec<(FlowId, Owner)> {
        let flows = self.flows.iter().enumerate();
        flows.filter_map(|(id, flow)| Some((id, flow.as_ref()?.owner))).collect()
    }

    /// Whether there are no flows.
    pub(super) fn is_idle(&self) -> bool {
        self.flows.len() == self.free_ids.len()
    }

    /// Computes the max-min fair rate of every flow.
    pub(super) fn compute_rates(&mut self) {
        self.dirty = false;
        let mut links = std::mem::take(&mut self.link_shares);
        links.reset(&self.capacity);
        let mut by_demand: Vec<FlowId> = Vec::with_capacity(self.flows.len());
        for (id, flow) in self.flows.iter_mut().enumerate() {
            let Some(flow) = flow else { continue };
            flow.rate = 0.0;
            if flow.demand > 0.0 {
                by_demand.push(id);
                links.add_flow(id, &flow.path);
            }
        }
        let demand = |flows: &[Option<Flow>], id: FlowId| flows[id].as_ref().map_or(0.0, |flow| flow.demand);
        by_demand.sort_by(|a, b| demand(&self.flows, *a).total_cmp(&demand(&self.flows, *b)));
        let mut fixed = vec![false; self.flows.len()];
        let mut content = by_demand.iter().copied().peekable();
        let mut heap: BinaryHeap<Reverse<(u64, u32)>> = links.shares();
        while let Some(Reverse((bits, link))) = heap.pop() {
            let Some(share) = links.share_of(link) else { continue };
            if share.to_bits() > bits {
                heap.push(Reverse((share.to_bits(), link)));
                continue;
            }
            // Flows that demand less than the share of the most loaded link get their demand.
            let mut moved = false;
            while let Some(id) = content.next_if(|id| demand(&self.flows, *id) <= share) {
                let wanted = demand(&self.flows, id);
                moved |= fix_rate(&mut self.flows, &mut fixed, &mut links, id, wanted);
            }
            if moved {
                heap.push(Reverse((share.to_bits(), link)));
                continue;
            }
            for id in links.flows_on(link) {
                fix_rate(&mut self.flows, &mut fixed, &mut links, id, share);
            }
        }
        self.link_shares = links;
    }
}

/// Sets the final rate of a flow and takes it from the links on its path. Returns false if the flow
/// has a final rate already.
fn fix_rate(
    flows: &mut [Option<Flow>],
    fixed: &mut [bool],
    links: &mut LinkShares,
    id: FlowId,
    rate: f64,
) -> bool {
    let Some(flow) = flows[id].as_mut().filter(|_| !std::mem::replace(&mut fixed[id], true)) else {
        return false;
    };
    flow.rate = rate;
    flow.path.iter().for_each(|(link, part)| links.subtract(*link, f64::from(*part), rate));
    true
}

/// Remaining capacity of each link while rates are computed. Kept between computations to save
/// allocations; only links in use are reset.
#[derive(Debug, Default)]
struct LinkShares {
    remaining: Vec<f64>,
    weight: Vec<f64>,
    flows: Vec<SmallVec<[FlowId; 8]>>,
    used_links: Vec<u32>,
}

impl LinkShares {
    fn reset(&mut self, capacity: &[f64]) {
        if self.remaining.len() != capacity.len() {
            self.remaining = capacity.to_vec();
            self.weight = vec![0.0; capacity.len()];
            self.flows = vec![SmallVec::new(); capacity.len()];
        }
        for link in self.used_links.drain(..) {
            let at = link as usize;
            self.remaining[at] = capacity[at];
            self.weight[at] = 0.0;
            self.flows[at].clear();
        }
    }

    /// Adds a flow to the links on its path.
    fn add_flow(&mut self, id: FlowId, path: &[(u32, f32)]) {
        for (link, part) in path {
            let at = *link as usize;
            if self.flows[at].is_empty() {
                self.used_links.push(*link);
            }
            self.flows[at].push(id);
            self.weight[at] += f64::from(*part);
        }
    }

    /// Returns the links in use, ordered by the share that each of their flows would get.
    fn shares(&self) -> BinaryHeap<Reverse<(u64, u32)>> {
        let shares =
            self.used_links.iter().filter_map(|link| Some(Reverse((self.share_of(*link)?.to_bits(), *link))));
        shares.collect()
    }

    /// Returns the share of each flow on a link; `None` if all its flows have their final rate.
    fn share_of(&self, link: u32) -> Option<f64> {
        let at = link as usize;
        (self.weight[at] > 1e-6).then(|| (self.remaining[at] / self.weight[at]).max(0.0))
    }

    fn flows_on(&self, link: u32) -> SmallVec<[FlowId; 8]> {
        self.flows[link as usize].clone()
    }

    /// Takes the rate of a flow from the remaining capacity of a link.
    fn subtract(&mut self, link: u32, part: f64, rate: f64) {
        let at = link as usize;
        self.remaining[at] -= part * rate;
        self.weight[at] -= part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-6
    }

    #[test]
    fn bandwidth_is_max_min_fair() {
        // Flows a and b end at node 1. Node 0, the source of a, also sends flow c to node 2.
        let mut net = Net::new(&[100.0; 3], vec![0; 3], 1e9, 1e9);
        let a = net.add_transfer(0, 1, 1e9, (0, 0));
        let b = net.add_transfer(2, 1, 1e9, (0, 1));
        let c = net.add_transfer(0, 2, 30.0, (0, 2));
        net.compute_rates();
        assert!(is_close(net.rate(a), 50.0) && is_close(net.rate(b), 50.0) && is_close(net.rate(c), 30.0));
        net.set_demand(b, 20.0);
        net.compute_rates();
        assert!(is_close(net.rate(a), 70.0), "a gets the capacity that b does not use: {}", net.rate(a));
        net.remove(c);
        net.compute_rates();
        assert!(is_close(net.rate(a), 80.0));
    }

    #[test]
    fn rack_links_limit_flows_between_racks() {
        let mut net = Net::new(&[100.0; 4], vec![0, 0, 1, 1], 60.0, 1e9);
        let near = net.add_transfer(0, 1, 1e9, (0, 0));
        let far = [net.add_transfer(2, 0, 1e9, (0, 1)), net.add_transfer(3, 1, 1e9, (0, 2))];
        net.compute_rates();
        assert!(far.iter().all(|flow| is_close(net.rate(*flow), 30.0)));
        assert!(is_close(net.rate(near), 70.0), "the downlink of node 1 has 70 left: {}", net.rate(near));
    }

    #[test]
    fn no_link_exceeds_its_capacity_and_slow_flows_have_a_full_link() {
        let mut rng = crate::rng::Rng::new(3);
        for _ in 0..50 {
            let mut net = Net::new(&[100.0; 9], (0..9).map(|node| node / 3).collect(), 150.0, 400.0);
            let mut paths = Vec::new();
            for key in 0..40 {
                let (from, to) = (rng.below(9) as u32, rng.below(9) as u32);
                let demand = rng.between(1.0, 120.0);
                paths.push(if rng.one_in(3) {
                    net.add_shuffle(to, demand, (0, key))
                } else {
                    net.add_transfer(from, to, demand, (0, key))
                });
            }
            net.compute_rates();
            let mut used = vec![0.0; net.capacity.len()];
            for id in &paths {
                let flow = net.flows[*id].as_ref().expect("it is there");
                assert!(flow.rate > 0.0 && flow.rate <= flow.demand + 1e-9);
                flow.path
                    .iter()
                    .for_each(|(link, part)| used[*link as usize] += f64::from(*part) * flow.rate);
            }
            for (link, used) in used.iter().enumerate() {
                assert!(*used <= net.capacity[link] + 1e-6, "link {link}: {used}");
            }
            // Max-min fairness: a flow below its demand has a full link on its path.
            for id in paths {
                let flow = net.flows[id].as_ref().expect("it is there");
                let full =
                    |(link, _): &(u32, f32)| used[*link as usize] > net.capacity[*link as usize] - 1e-6;
                assert!(flow.rate > flow.demand - 1e-6 || flow.path.iter().any(full));
            }
        }
    }
}
