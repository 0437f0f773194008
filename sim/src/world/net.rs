//! Disks and network: flows over shared links with max-min fair rates.
//!
//! Each node has an uplink, a downlink and a disk, each rack has an uplink and a downlink, and all
//! racks share the fabric. A disk is a link that readers and writers share, unless the machine has a
//! rate of writes. A flow is the data of
//! one attempt. It has a demand (the rate at which the attempt can compute or fetch) and a path:
//! the links that it uses, and the bytes on each link per byte of the flow. A map that reads from
//! another node and writes half as much output therefore uses the disk and the uplink of that node,
//! its own downlink, and half of its rate on its own disk.
//!
//! Rates are computed by progressive filling: the most loaded link is divided evenly among its
//! unsatisfied flows, then the next one. A link whose flows together demand no more than its
//! capacity limits no flow and is left out.
//!
//! Packets, latency, TCP and seeks are not modelled. Rates are computed at most once per epoch, not
//! at every change. Until then a new flow gets an even share of each link on its path.

use smallvec::SmallVec;
use std::{cmp::Reverse, collections::BinaryHeap};

/// Index of a flow; reused after its end.
pub(super) type FlowId = usize;

/// Owner of a flow: the attempt with this key on this node.
pub(super) type Owner = (u32, u64);

/// The links of a flow, each with the bytes on it per byte of the flow.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Path(SmallVec<[(u32, f32); 8]>);

impl Path {
    /// Adds bytes on a link. Bytes on the same link are added up.
    fn add(&mut self, link: u32, part: f64) {
        if part <= 0.0 {
            return;
        }
        match self.0.iter_mut().find(|(at, _)| *at == link) {
            Some((_, sum)) => *sum += part as f32,
            None => self.0.push((link, part as f32)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, f64)> {
        self.0.iter().map(|(link, part)| (*link as usize, f64::from(*part)))
    }
}

#[derive(Debug, Clone)]
struct Flow {
    path: Path,
    owner: Owner,
    /// Whether its demand depends on its progress.
    varies: bool,
    demand: f64,
    rate: f64,
    /// The rate that its owner knows.
    known_rate: f64,
}

/// Links and flows.
#[derive(Debug)]
pub(super) struct Net {
    nodes: u32,
    racks: u32,
    rack_of: Vec<u32>,
    /// The link of the writes to the disk of each node.
    disk_writes: Vec<u32>,
    capacity: Vec<f64>,
    flows: Vec<Option<Flow>>,
    free_ids: Vec<FlowId>,
    flows_on_link: Vec<u32>,
    /// Sum of the parts of the flows on each link.
    parts_on_link: Vec<f64>,
    /// Bytes per second that the flows on each link demand together.
    demand_on_link: Vec<f64>,
    link_shares: LinkShares,
    /// Whether a flow on a link with too little capacity has changed since rates were computed.
    pub(super) dirty: bool,
}

impl Net {
    /// Creates the network. Rates are in bytes per second: `nic` and `disk` per node, `rack` per
    /// rack, `fabric` in total.
    pub(super) fn new(nic: &[f64], disk: &[f64], rack_of: Vec<u32>, rack: f64, fabric: f64) -> Self {
        let (nodes, racks) = (nic.len() as u32, rack_of.iter().max().map_or(1, |last| last + 1));
        let mut capacity: Vec<f64> = nic.iter().chain(nic).chain(disk).copied().collect();
        capacity.extend(std::iter::repeat_n(rack, 2 * racks as usize));
        capacity.push(fabric);
        Self {
            nodes,
            racks,
            rack_of,
            disk_writes: (2 * nodes..3 * nodes).collect(),
            flows: Vec::new(),
            free_ids: Vec::new(),
            flows_on_link: vec![0; capacity.len()],
            parts_on_link: vec![0.0; capacity.len()],
            demand_on_link: vec![0.0; capacity.len()],
            capacity,
            link_shares: LinkShares::default(),
            dirty: false,
        }
    }

    /// Gives the writes to the disk of a node a rate of their own.
    pub(super) fn separate_writes(&mut self, node: u32, rate: f64) {
        self.disk_writes[node as usize] = self.capacity.len() as u32;
        self.capacity.push(rate);
        self.flows_on_link.push(0);
        self.parts_on_link.push(0.0);
        self.demand_on_link.push(0.0);
    }

    fn up(node: u32) -> u32 {
        node
    }
    fn down(&self, node: u32) -> u32 {
        self.nodes + node
    }
    fn disk(&self, node: u32) -> u32 {
        2 * self.nodes + node
    }
    fn rack_up(&self, rack: u32) -> u32 {
        3 * self.nodes + rack
    }
    fn rack_down(&self, rack: u32) -> u32 {
        3 * self.nodes + self.racks + rack
    }
    fn fabric(&self) -> u32 {
        3 * self.nodes + 2 * self.racks
    }

    /// Whether two nodes are in the same rack.
    pub(super) fn same_rack(&self, one: u32, other: u32) -> bool {
        self.rack_of[one as usize] == self.rack_of[other as usize]
    }

    /// Returns the bytes per second that one more reader would get from a disk if all flows on it had
    /// the same rate and enough demand.
    pub(super) fn read_share(&self, node: u32) -> f64 {
        self.share(self.disk(node))
    }

    /// Like [`Self::read_share`], for one more writer.
    pub(super) fn write_share(&self, node: u32) -> f64 {
        self.share(self.disk_writes[node as usize])
    }

    fn share(&self, link: u32) -> f64 {
        self.capacity[link as usize] / (self.parts_on_link[link as usize] + 1.0)
    }

    /// Returns the bytes on the disk of a node per byte of a flow.
    #[cfg(test)]
    pub(super) fn disk_part(&self, path: &Path, node: u32) -> f64 {
        let disk = self.disk(node) as usize;
        path.iter().find(|(link, _)| *link == disk).map_or(0.0, |(_, part)| part)
    }

    /// Adds `part` bytes that are read from the disk of a node to a path.
    pub(super) fn add_read(&self, path: &mut Path, node: u32, part: f64) {
        path.add(self.disk(node), part);
    }

    /// Adds `part` bytes that are written to the disk of a node to a path.
    pub(super) fn add_write(&self, path: &mut Path, node: u32, part: f64) {
        path.add(self.disk_writes[node as usize], part);
    }

    /// Adds `part` bytes from one node to another to a path. Between processes of one node no link
    /// is used.
    pub(super) fn add_transfer(&self, path: &mut Path, from: u32, to: u32, part: f64) {
        if from == to {
            return;
        }
        path.add(Self::up(from), part);
        path.add(self.down(to), part);
        if !self.same_rack(from, to) {
            path.add(self.rack_up(self.rack_of[from as usize]), part);
            path.add(self.rack_down(self.rack_of[to as usize]), part);
        }
    }

    /// Returns the path of a shuffle from these nodes. `senders` are the nodes with the fraction of
    /// the bytes that comes from each, and the fraction of these that each must read from its disk.
    pub(super) fn shuffle_path(&self, to: u32, senders: impl Iterator<Item = (u32, f64, f64)>) -> Path {
        let mut path = Path::default();
        let (own_rack, mut away, mut far) = (self.rack_of[to as usize], 0.0, 0.0);
        let mut from_racks: SmallVec<[(u32, f64); 4]> = SmallVec::new();
        // Each sender occurs once, so only links that senders share are added up.
        let mut push = |link: u32, part: f64| {
            if part > 0.0 {
                path.0.push((link, part as f32));
            }
        };
        for (from, part, read) in senders {
            push(self.disk(from), part * read);
            if from == to {
                continue;
            }
            push(Self::up(from), part);
            away += part;
            let rack = self.rack_of[from as usize];
            if rack != own_rack {
                far += part;
                match from_racks.iter_mut().find(|(at, _)| *at == rack) {
                    Some((_, sum)) => *sum += part,
                    None => from_racks.push((rack, part)),
                }
            }
        }
        from_racks.into_iter().for_each(|(rack, part)| push(self.rack_up(rack), part));
        push(self.down(to), away);
        push(self.rack_down(own_rack), far);
        push(self.fabric(), away);
        path
    }

    /// Returns the path of a shuffle from all nodes evenly, with reduces on all nodes: each node then
    /// sends as much as it receives, and reads the fraction `read` of that from its disk.
    pub(super) fn even_shuffle_path(&self, to: u32, read: f64) -> Path {
        let mut path = Path::default();
        let away = (1.0 - 1.0 / f64::from(self.nodes)).max(1e-3);
        path.add(self.down(to), away);
        path.add(Self::up(to), away);
        path.add(self.disk(to), read);
        path.add(self.fabric(), away);
        path.add(self.rack_down(self.rack_of[to as usize]), 1.0 - 1.0 / f64::from(self.racks));
        path
    }

    /// Adds a flow. `varies` says that its demand depends on its progress.
    pub(super) fn add(&mut self, path: Path, demand: f64, owner: Owner, varies: bool) -> FlowId {
        let flow = Some(Flow { path, owner, varies, demand, rate: 0.0, known_rate: 0.0 });
        let id = if let Some(id) = self.free_ids.pop() {
            self.flows[id] = flow;
            id
        } else {
            self.flows.push(flow);
            self.flows.len() - 1
        };
        self.use_links(id);
        id
    }

    /// Counts a flow on its links, and sets its rate to an even share of each until rates are
    /// computed.
    fn use_links(&mut self, id: FlowId) {
        let Some(flow) = self.flows[id].as_mut() else { return };
        let (mut even, mut is_limited) = (f64::INFINITY, false);
        for (link, part) in flow.path.iter() {
            self.flows_on_link[link] += 1;
            self.parts_on_link[link] += part;
            self.demand_on_link[link] += part * flow.demand;
            if self.demand_on_link[link] > self.capacity[link] {
                is_limited = true;
                even = even.min(self.capacity[link] / self.parts_on_link[link]);
            }
        }
        flow.rate = flow.demand.min(even.max(flow.rate));
        self.dirty |= is_limited;
    }

    /// Removes a flow from the counts of its links.
    fn release_links(&mut self, flow: &Flow) {
        for (link, part) in flow.path.iter() {
            self.dirty |= self.demand_on_link[link] > self.capacity[link];
            self.flows_on_link[link] -= 1;
            self.parts_on_link[link] -= part;
            self.demand_on_link[link] -= part * flow.demand;
            if self.flows_on_link[link] == 0 {
                // Rounding errors do not add up.
                (self.parts_on_link[link], self.demand_on_link[link]) = (0.0, 0.0);
            }
        }
    }

    /// Removes a flow.
    pub(super) fn remove(&mut self, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(id).and_then(Option::take) {
            self.release_links(&flow);
            self.free_ids.push(id);
        }
    }

    /// Returns the rate of a flow in bytes per second, for its owner.
    pub(super) fn take_rate(&mut self, id: FlowId) -> f64 {
        let Some(flow) = self.flows.get_mut(id).and_then(Option::as_mut) else { return 0.0 };
        flow.known_rate = flow.rate;
        flow.rate
    }

    /// Sets the demand of a flow. Until rates are computed again it gets an even share.
    pub(super) fn set_demand(&mut self, id: FlowId, demand: f64) {
        let Some(mut flow) = self.flows.get_mut(id).and_then(Option::take) else { return };
        let is_same = (flow.demand - demand).abs() <= flow.demand * 1e-3;
        if !is_same {
            self.release_links(&flow);
            flow.demand = demand;
        }
        self.flows[id] = Some(flow);
        if !is_same {
            self.use_links(id);
        }
    }

    /// Replaces the path of a flow.
    pub(super) fn set_path(&mut self, id: FlowId, path: Path) {
        let Some(mut flow) = self.flows.get_mut(id).and_then(Option::take) else { return };
        let is_same = flow.path == path;
        if !is_same {
            self.release_links(&flow);
            flow.path = path;
        }
        self.flows[id] = Some(flow);
        if !is_same {
            self.use_links(id);
        }
    }

    /// Returns the flows whose demand varies, with their owners.
    pub(super) fn varying_flows(&self) -> Vec<(FlowId, Owner)> {
        let flows = self.flows.iter().enumerate();
        let varying =
            flows.filter_map(|(id, flow)| Some((id, flow.as_ref().filter(|flow| flow.varies)?.owner)));
        varying.collect()
    }

    /// Computes the max-min fair rate of every flow. Returns the flows whose owner knows another
    /// rate.
    pub(super) fn compute_rates(&mut self) -> Vec<(FlowId, Owner)> {
        self.dirty = false;
        let mut links = std::mem::take(&mut self.link_shares);
        links.reset(&self.capacity);
        let mut by_demand: Vec<FlowId> = Vec::new();
        for (id, flow) in self.flows.iter_mut().enumerate() {
            let Some(flow) = flow else { continue };
            let full = flow.path.iter().filter(|(link, _)| self.demand_on_link[*link] > self.capacity[*link]);
            let is_limited = flow.demand > 0.0 && links.add_flow(id, full);
            if is_limited {
                flow.rate = 0.0;
                by_demand.push(id);
            } else {
                flow.rate = flow.demand;
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
        // A flow that uses almost nothing of its full links was not reached.
        for id in by_demand.iter().copied().filter(|id| !fixed[*id]) {
            if let Some(flow) = &mut self.flows[id] {
                flow.rate = flow.demand;
            }
        }
        self.link_shares = links;
        let has_changed = |flow: &Flow| (flow.rate - flow.known_rate).abs() > 1e-3 * flow.known_rate;
        let flows = self.flows.iter().enumerate();
        let flows =
            flows.filter_map(|(id, flow)| Some((id, flow.as_ref().filter(|flow| has_changed(flow))?.owner)));
        flows.collect()
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
    flow.path.iter().for_each(|(link, part)| links.subtract(link, part, rate));
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

    /// Adds a flow to links. Returns whether there is any.
    fn add_flow(&mut self, id: FlowId, path: impl Iterator<Item = (usize, f64)>) -> bool {
        let mut is_any = false;
        for (at, part) in path {
            is_any = true;
            if self.flows[at].is_empty() {
                self.used_links.push(at as u32);
            }
            self.flows[at].push(id);
            self.weight[at] += part;
        }
        is_any
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
    fn subtract(&mut self, at: usize, part: f64, rate: f64) {
        if !self.flows[at].is_empty() {
            self.remaining[at] -= part * rate;
            self.weight[at] -= part;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-6
    }

    fn net(nodes: usize, racks: usize, rack: f64, fabric: f64) -> Net {
        let rack_of = (0..nodes).map(|node| (node * racks / nodes) as u32).collect();
        Net::new(&vec![100.0; nodes], &vec![1e9; nodes], rack_of, rack, fabric)
    }

    fn transfer(net: &mut Net, from: u32, to: u32, demand: f64) -> FlowId {
        let mut path = Path::default();
        net.add_transfer(&mut path, from, to, 1.0);
        net.add(path, demand, (to, 0), false)
    }

    fn rate(net: &mut Net, flow: FlowId) -> f64 {
        net.compute_rates();
        net.take_rate(flow)
    }

    #[test]
    fn bandwidth_is_max_min_fair() {
        // Flows a and b end at node 1. Node 0, the source of a, also sends flow c to node 2.
        let mut net = net(3, 1, 1e9, 1e9);
        let a = transfer(&mut net, 0, 1, 1e9);
        let b = transfer(&mut net, 2, 1, 1e9);
        let c = transfer(&mut net, 0, 2, 30.0);
        assert!(
            [(a, 50.0), (b, 50.0), (c, 30.0)].iter().all(|(flow, at)| is_close(rate(&mut net, *flow), *at))
        );
        net.set_demand(b, 20.0);
        assert!(is_close(rate(&mut net, a), 70.0), "a gets the capacity that b does not use");
        net.remove(c);
        assert!(is_close(rate(&mut net, a), 80.0));
        net.set_demand(a, 60.0);
        net.set_demand(b, 40.0);
        assert!(is_close(net.take_rate(a), 60.0) && is_close(net.take_rate(b), 40.0), "no link is full");
    }

    #[test]
    fn rack_links_limit_flows_between_racks() {
        let mut net = net(4, 2, 60.0, 1e9);
        let near = transfer(&mut net, 0, 1, 1e9);
        let far = [transfer(&mut net, 2, 0, 1e9), transfer(&mut net, 3, 1, 1e9)];
        assert!(far.iter().all(|flow| is_close(rate(&mut net, *flow), 30.0)));
        assert!(is_close(rate(&mut net, near), 70.0), "the downlink of node 1 has 70 left");
    }

    #[test]
    fn readers_and_writers_share_a_disk() {
        let mut net = Net::new(&[1e9; 2], &[90.0; 2], vec![0; 2], 1e9, 1e9);
        let mut path = Path::default();
        net.add_read(&mut path, 0, 1.0);
        net.add_write(&mut path, 0, 0.5);
        let map = net.add(path.clone(), 1e3, (0, 1), false);
        assert!(is_close(rate(&mut net, map), 60.0), "it reads 60 and writes 30");
        let other = net.add(path, 1e3, (0, 2), false);
        assert!(is_close(rate(&mut net, map), 30.0) && is_close(rate(&mut net, other), 30.0));
        assert!(is_close(net.read_share(0), 22.5) && is_close(net.read_share(1), 90.0));
        let mut path = Path::default();
        net.add_read(&mut path, 0, 1.0);
        net.add_transfer(&mut path, 0, 1, 1.0);
        let remote = net.add(path, 1e3, (1, 3), false);
        assert!(is_close(rate(&mut net, remote), 22.5), "a remote reader uses the disk of the source");
    }

    #[test]
    fn separate_rates_of_reads_and_writes_do_not_affect_each_other() {
        let mut net = Net::new(&[1e9; 2], &[90.0; 2], vec![0; 2], 1e9, 1e9);
        net.separate_writes(0, 40.0);
        let (mut read, mut write) = (Path::default(), Path::default());
        net.add_read(&mut read, 0, 1.0);
        net.add_write(&mut write, 0, 2.0);
        let reader = net.add(read, 1e3, (0, 1), false);
        let writer = net.add(write, 1e3, (0, 2), false);
        assert!(is_close(rate(&mut net, reader), 90.0) && is_close(rate(&mut net, writer), 20.0));
        assert!(is_close(net.read_share(0), 45.0), "two readers");
        assert!(is_close(net.write_share(0), 40.0 / 3.0), "one more part next to two");
        assert!(is_close(net.write_share(1), net.read_share(1)), "one rate for both");
    }

    #[test]
    fn shuffle_is_limited_by_its_senders() {
        let mut net = net(4, 1, 1e9, 1e9);
        let senders = |parts: [f64; 4]| (0..4).zip(parts).map(|(node, part)| (node, part, 0.0));
        let path = net.shuffle_path(0, senders([0.0, 1.0, 0.0, 0.0]));
        let one = net.add(path, 1e3, (0, 1), false);
        let path = net.shuffle_path(2, senders([0.0, 1.0, 0.0, 0.0]));
        let other = net.add(path, 1e3, (2, 2), false);
        assert!(is_close(rate(&mut net, one), 50.0), "two reduces share the uplink of the only sender");
        let path = net.shuffle_path(2, senders([0.0, 0.25, 0.75, 0.0]));
        net.set_path(other, path);
        assert!(is_close(rate(&mut net, one) + 0.25 * rate(&mut net, other), 100.0));
        assert!(is_close(rate(&mut net, other), 80.0), "three quarters of its data are on its own node");
    }

    #[test]
    fn flow_with_a_tiny_part_on_a_full_link_is_not_stopped() {
        let mut net = net(3, 1, 1e9, 1e9);
        let mut path = Path::default();
        net.add_read(&mut path, 2, 1.0);
        net.add_transfer(&mut path, 0, 1, 1.0);
        net.capacity[8] = 50.0; // the disk of node 2
        net.add(path, 200.0, (1, 0), false);
        let mut tiny = Path::default();
        net.add_transfer(&mut tiny, 0, 1, 8e-8);
        let tiny = net.add(tiny, 80.0, (1, 1), false);
        assert!(is_close(rate(&mut net, tiny), 80.0));
    }

    #[test]
    fn no_link_exceeds_its_capacity_and_slow_flows_have_a_full_link() {
        let mut rng = crate::rng::Rng::new(3);
        for _ in 0..50 {
            let mut net =
                Net::new(&[100.0; 9], &[120.0; 9], (0..9).map(|node| node / 3).collect(), 150.0, 400.0);
            let mut paths = Vec::new();
            for key in 0..40 {
                let (from, to) = (rng.below(9) as u32, rng.below(9) as u32);
                let demand = rng.between(1.0, 120.0);
                let mut path = net.even_shuffle_path(to, 0.5);
                if !rng.one_in(3) {
                    path = Path::default();
                    net.add_read(&mut path, from, 1.0);
                    net.add_transfer(&mut path, from, to, 1.0);
                    net.add_write(&mut path, to, 0.4);
                }
                paths.push(net.add(path, demand, (0, key), false));
            }
            net.compute_rates();
            let mut used = vec![0.0; net.capacity.len()];
            for id in &paths {
                let flow = net.flows[*id].as_ref().expect("it is there");
                assert!(flow.rate > 0.0 && flow.rate <= flow.demand + 1e-9);
                flow.path.iter().for_each(|(link, part)| used[link] += part * flow.rate);
            }
            for (link, used) in used.iter().enumerate() {
                assert!(*used <= net.capacity[link] + 1e-4, "link {link}: {used}");
            }
            // Max-min fairness: a flow below its demand has a full link on its path.
            for id in paths {
                let flow = net.flows[id].as_ref().expect("it is there");
                let full = |(link, _): (usize, f64)| used[link] > net.capacity[link] - 1e-4;
                assert!(flow.rate > flow.demand - 1e-6 || flow.path.iter().any(full));
            }
        }
    }
}
