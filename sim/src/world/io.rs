//! The disks and links that attempts use, and the rates that they get.
//!
//! | attempt | bytes per byte of its flow |
//! |---|---|
//! | map | read from a replica: the disk of that machine, and the network if it is another one. Written: the map output that does not fit into the cache, three times if it is merged from several runs; the replicas of the output of a job without reduces |
//! | reduce, shuffle | from the machines with map outputs: their uplinks, and their disks as far as the outputs are not cached. What fits neither into the memory of the task nor into the cache is written |
//! | reduce, merge and reduce | what was written during the shuffle is read; the replicas of the output are written |
//! | reduce that resumes elsewhere, copy from a tracker that is drained | the checkpoint or map output: the network, and both disks as far as it is not cached |

use super::{
    SimEvent, World,
    net::{FlowId, Path},
    run::{MapRun, ReduceRun, Work},
};
use crate::rng::{Rng, mix};
use mrcore::{Phase, ids::AttemptId};
use smallvec::SmallVec;

/// Maximum number of senders of a shuffle that are modelled one by one. With more, the load is
/// assumed to be even on all machines.
const SENDERS_MAX: usize = 64;

/// Number of random machines that are considered for a replica.
const DRAWS: usize = 32;

impl World {
    /// Returns a random number generator that depends only on the attempt.
    pub(super) fn rng_of(&self, id: AttemptId) -> Rng {
        let task = u64::from(id.job().0) << 32
            | u64::from(id.task.index) << 1
            | u64::from(id.phase() == Phase::Reduce);
        Rng::new(mix(self.setup.seed ^ mix(task)) ^ u64::from(id.number))
    }

    /// Starts the flow of a map.
    pub(super) fn start_reading(&mut self, at: usize, key: u64) {
        let speed_now = self.nodes[at].speed_now();
        let Some(run) = self.nodes[at].runs.iter().find(|run| run.key == key) else { return };
        let Work::Map(map) = &run.work else { return self.schedule_next_change(at, key) };
        let path = self.map_path(at as u32, run.id, map);
        let demand = map.bytes() * speed_now / map.work_s;
        self.start_flow(at, key, path, demand, false);
    }

    fn map_path(&self, at: u32, id: AttemptId, map: &MapRun) -> Path {
        let mut path = Path::default();
        let source = map.source.unwrap_or(at);
        self.net.add_read(&mut path, source, 1.0);
        self.net.add_transfer(&mut path, source, at, 1.0);
        let known_job = self.jobs_known.get(&id.job());
        if known_job.is_some_and(|known_job| self.workload.jobs[known_job.plan].reduces.is_empty()) {
            self.add_replicas(&mut path, at, id, map.out, map.bytes() * map.out);
        } else {
            let is_merged = map.bytes() * map.out > self.setup.costs.memory as f64;
            let times = if is_merged { 3.0 } else { 1.0 };
            self.net.add_write(&mut path, at, map.out * times * self.nodes[at as usize].uncached_share());
        }
        path
    }

    /// Adds the output of an attempt to a path: `part` bytes per byte of the flow, in total `bytes`.
    /// The first replica is on the machine of the attempt, the second in another rack, the third in
    /// the rack of the second, as far as machines have space. Each is sent from the machine before
    /// it.
    fn add_replicas(&self, path: &mut Path, at: u32, id: AttemptId, part: f64, bytes: f64) {
        let (mut rng, count) = (self.rng_of(id), self.nodes.len());
        let mut replicas: SmallVec<[u32; 3]> = SmallVec::new();
        for number in 0..self.setup.output_replication {
            let fits = |node: u32| {
                let has_space = self.setup.machines[node as usize].disk_bytes as f64 > bytes;
                has_space && self.nodes[node as usize].has_blocks() && !replicas.contains(&node)
            };
            let is_preferred = |node: u32| match number {
                0 => node == at,
                1 => !self.net.same_rack(node, replicas[0]),
                _ => self.net.same_rack(node, replicas[1]),
            };
            // Random machines, so that no machine gets more replicas than others; only if none of
            // them is suitable, the first that fits.
            let own = (number == 0).then_some(at);
            let draws: SmallVec<[u32; DRAWS]> = (0..DRAWS).map(|_| rng.index(count) as u32).collect();
            let mut some = own.into_iter().chain(draws).filter(|node| fits(*node));
            let first = rng.index(count);
            let mut all = (0..count).map(|step| ((first + step) % count) as u32);
            let found = some.find(|node| is_preferred(*node)).or_else(|| all.find(|node| fits(*node)));
            let Some(to) = found else { return };
            self.net.add_transfer(path, replicas.last().copied().unwrap_or(at), to, part);
            self.net.add_write(path, to, part);
            replicas.push(to);
        }
    }

    /// Returns the bytes per second at which a checkpoint can be written on a machine.
    pub(super) fn checkpoint_write_rate(&self, at: usize) -> f64 {
        self.temporary_file_rate(at, self.net.write_share(at as u32))
    }

    /// Returns the bytes per second at which a checkpoint can be read on its machine.
    pub(super) fn checkpoint_read_rate(&self, at: usize) -> f64 {
        self.temporary_file_rate(at, self.net.read_share(at as u32))
    }

    /// Returns the rate of a task that writes or reads a file of which only the part that does not fit
    /// into the cache uses the disk.
    fn temporary_file_rate(&self, at: usize, disk_share: f64) -> f64 {
        let uncached = self.nodes[at].uncached_share().max(1e-9);
        self.setup.costs.write.min(disk_share / uncached)
    }

    /// Returns the fraction of the data of a reduce that uses the disk, because it fits neither into
    /// the memory of the task nor into the cache.
    fn spilled_share(&self, at: u32, bytes: f64) -> f64 {
        let in_memory = (self.setup.costs.memory as f64 / bytes.max(1.0)).min(1.0);
        (1.0 - in_memory) * self.nodes[at as usize].uncached_share()
    }

    fn shuffle_path(&self, at: u32, id: AttemptId, share: f64) -> Path {
        let Some(known_job) = self.jobs_known.get(&id.job()) else { return Path::default() };
        let senders = known_job.log.bytes_by_node();
        let serving = || senders.iter().filter(|(node, _)| self.nodes[**node as usize].serves());
        let all: f64 = serving().map(|(_, bytes)| bytes).sum();
        let uncached = |node: u32| self.nodes[node as usize].uncached_share();
        let mut path = if all > 0.0 && senders.len() <= SENDERS_MAX {
            self.net.shuffle_path(at, serving().map(|(node, bytes)| (*node, bytes / all, uncached(*node))))
        } else {
            self.net.even_shuffle_path(at, uncached(at))
        };
        let bytes = known_job.map_output_bytes * share;
        self.net.add_write(&mut path, at, self.spilled_share(at, bytes));
        path
    }

    /// Makes a reduce process the map events that its tracker has received, and fetch the outputs.
    /// A reduce that has all its input continues with its merge and reduce stages.
    pub(super) fn follow_map_events(&mut self, at: usize, key: u64) {
        let (now, all) = (self.now, self.unreachable == 0);
        let reach: Vec<bool> =
            if all { Vec::new() } else { self.nodes.iter().map(super::Node::serves).collect() };
        let node = &mut self.nodes[at];
        let Some(run) = node.runs.iter_mut().find(|run| run.key == key) else { return };
        run.advance(now);
        let (id, flow, is_stopped) = (run.id, run.flow, run.is_frozen || run.hangs);
        let known_job = self.jobs_known.get(&id.job());
        let (Work::Reduce(reduce), Some(known_job), false) = (&mut run.work, known_job, is_stopped) else {
            return self.schedule_next_change(at, key);
        };
        if reduce.transfer.is_some() {
            return self.schedule_next_change(at, key);
        }
        if reduce.final_stages.is_some() {
            return self.start_final_flow(at, key);
        }
        let reachable = |node: u32| all || reach[node as usize];
        reduce.fetch.follow(&known_job.log, reduce.events_seen, reachable, all);
        let (share, demand) = (reduce.share, fetch_demand(reduce, &self.setup));
        // The machines that the outputs are on change with every event, but their shares only
        // slowly.
        let is_outdated = known_job.log.len() > reduce.events_in_path + reduce.events_in_path / 8;
        if is_outdated {
            reduce.events_in_path = known_job.log.len();
        }
        let Some(flow) = flow else {
            let path = self.shuffle_path(at as u32, id, share);
            return self.start_flow(at, key, path, demand, true);
        };
        if is_outdated {
            let path = self.shuffle_path(at as u32, id, share);
            self.net.set_path(flow, path);
        }
        self.net.set_demand(flow, demand);
        self.apply_rate(at, key, flow);
        self.request_rate_update();
    }

    /// Starts the flow of the merge and reduce stages of a reduce, if it has none.
    pub(super) fn start_final_flow(&mut self, at: usize, key: u64) {
        let speed_now = self.nodes[at].speed_now();
        let Some(run) = self.nodes[at].runs.iter().find(|run| run.key == key) else { return };
        let Work::Reduce(ReduceRun { final_stages: Some(final_stages), .. }) = &run.work else { return };
        if run.flow.is_some() {
            return self.schedule_next_change(at, key);
        }
        let (bytes, out) = (final_stages.bytes, self.reduce_out(run.id));
        let mut path = Path::default();
        self.net.add_read(&mut path, at as u32, self.spilled_share(at as u32, bytes));
        self.add_replicas(&mut path, at as u32, run.id, out, bytes * out);
        self.start_flow(at, key, path, final_stages.demand(speed_now), false);
    }

    /// Returns the bytes of reduce output per byte of reduce input of a job.
    pub(super) fn reduce_out(&self, id: AttemptId) -> f64 {
        let known_job = self.jobs_known.get(&id.job());
        known_job.map_or(1.0, |known_job| self.workload.jobs[known_job.plan].reduce_out)
    }

    /// Starts the transfer of a checkpoint from another machine.
    pub(super) fn start_transfer(&mut self, at: usize, key: u64) {
        let demand = self.setup.costs.fetch;
        let Some(run) = self.nodes[at].runs.iter().find(|run| run.key == key) else { return };
        let Work::Reduce(ReduceRun { transfer: Some(transfer), .. }) = &run.work else { return };
        let path = self.transfer_path(transfer.source, at as u32);
        self.start_flow(at, key, path, demand, false);
    }

    /// Returns the path of temporary files from one machine to another.
    pub(super) fn transfer_path(&self, source: u32, to: u32) -> Path {
        let mut path = Path::default();
        self.net.add_read(&mut path, source, self.nodes[source as usize].uncached_share());
        self.net.add_transfer(&mut path, source, to, 1.0);
        self.net.add_write(&mut path, to, self.nodes[to as usize].uncached_share());
        path
    }

    /// Starts the flow of an attempt. `varies` says that its demand depends on its progress.
    fn start_flow(&mut self, at: usize, key: u64, path: Path, demand: f64, varies: bool) {
        let flow = self.net.add(path, demand, (at as u32, key), varies);
        self.net.dirty |= self.shares_cpu;
        if let Some(run) = self.nodes[at].run(key) {
            run.flow = Some(flow);
        }
        self.apply_rate(at, key, flow);
        self.request_rate_update();
    }

    /// Ends the flow of an attempt, if it has one.
    pub(super) fn end_flow(&mut self, flow: Option<FlowId>) {
        if let Some(flow) = flow {
            self.net.remove(flow);
            self.net.dirty |= self.shares_cpu;
            self.request_rate_update();
        }
    }

    /// Schedules a computation of the flow rates, if they may have changed.
    pub(super) fn request_rate_update(&mut self) {
        if self.net.dirty && !self.rate_update_scheduled {
            self.rate_update_scheduled = true;
            self.queue.push(self.now + self.setup.costs.net_epoch, SimEvent::UpdateRates);
        }
    }

    /// Computes the rates of all flows, and updates the attempts that they belong to.
    pub(super) fn update_flow_rates(&mut self) {
        self.rate_update_scheduled = false;
        if self.shares_cpu {
            (0..self.nodes.len()).for_each(|at| self.update_demands(at));
        }
        let mut unsettled = false;
        for (flow, (at, key)) in self.net.varying_flows() {
            let now = self.now;
            let Some(run) = self.nodes[at as usize].run(key) else { continue };
            run.advance(now);
            if let Work::Reduce(reduce) = &run.work {
                let demand = fetch_demand(reduce, &self.setup);
                unsettled |= demand > 0.0 && !reduce.fetch.knows_all_maps(reduce.maps);
                self.net.set_demand(flow, demand);
            }
        }
        for (flow, (at, key)) in self.net.compute_rates() {
            self.apply_rate(at as usize, key, flow);
        }
        self.net.dirty |= unsettled;
        self.request_rate_update();
    }

    /// Sets the rate of an attempt or a copy to that of its flow.
    fn apply_rate(&mut self, at: usize, key: u64, flow: FlowId) {
        let (now, rate) = (self.now, self.net.take_rate(flow));
        let Some(run) = self.nodes[at].run(key) else { return self.set_copy_rate(key, rate) };
        run.advance(now);
        match &mut run.work {
            Work::Map(map) => map.rate = rate / map.bytes(),
            Work::Reduce(ReduceRun { transfer: Some(transfer), .. }) => transfer.rate = rate,
            Work::Reduce(ReduceRun { final_stages: Some(final_stages), .. }) => {
                final_stages.rate = rate / final_stages.bytes;
            }
            Work::Reduce(reduce) => reduce.rate = rate / reduce.share,
            Work::Failing(_) | Work::CheckpointUnreachable => return,
        }
        self.schedule_next_change(at, key);
    }

    /// Divides the speed of a machine by `slow`.
    pub(super) fn set_speed(&mut self, at: usize, slow: f64) {
        self.nodes[at].slowdown *= slow;
        self.update_demands(at);
        self.request_rate_update();
    }

    /// Sets the demands of the attempts that compute on a machine to its current speed.
    fn update_demands(&mut self, at: usize) {
        let speed_now = self.nodes[at].speed_now();
        let demand_of = |work: &Work| match work {
            Work::Map(map) => Some(map.bytes() * speed_now / map.work_s),
            Work::Reduce(ReduceRun { transfer: None, final_stages: Some(final_stages), .. }) => {
                Some(final_stages.demand(speed_now))
            }
            _ => None,
        };
        let runs = self.nodes[at].runs.iter();
        let demands = runs.filter_map(|run| Some((run.key, run.flow?, demand_of(&run.work)?)));
        for (key, flow, demand) in demands.collect::<Vec<_>>() {
            self.net.set_demand(flow, demand);
            self.apply_rate(at, key, flow);
        }
    }
}

/// Returns how many bytes per second a reduce can fetch. If it waits for more maps, this is no more
/// than it can use until rates are computed again.
pub(super) fn fetch_demand(reduce: &ReduceRun, setup: &crate::setup::Setup) -> f64 {
    if reduce.fetch.is_caught_up() {
        return 0.0;
    }
    let until_then = reduce.fetch.backlog() * reduce.share / setup.costs.net_epoch.as_secs_f64();
    let knows_all_maps = reduce.fetch.knows_all_maps(reduce.maps);
    if knows_all_maps { setup.costs.fetch } else { until_then.min(setup.costs.fetch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Setup, Workload, World,
        world::{fetch::Fetch, run::StoredCheckpoint},
    };
    use mrcore::{
        PerPhase,
        ids::{JobId, TaskId},
        task::{CheckpointInfo, Stage},
    };
    use std::collections::BTreeMap;

    /// Returns how many bytes per byte of output each machine of a cluster writes, for many reduces.
    fn writes(nodes: u32, reduces: u32) -> (World, BTreeMap<u32, f64>) {
        let setup = Setup::even(nodes, PerPhase { map: 1, reduce: 1 }, "fifo");
        let world = World::new(setup, Workload::default()).expect("a policy");
        let mut written: BTreeMap<u32, f64> = BTreeMap::new();
        for index in 0..reduces {
            let id = TaskId { job: JobId(1), phase: Phase::Reduce, index }.attempt(0);
            let mut path = Path::default();
            world.add_replicas(&mut path, index % nodes, id, 1.0, 1e6);
            for node in 0..nodes {
                *written.entry(node).or_default() += world.net.disk_part(&path, node);
            }
        }
        (world, written)
    }

    #[test]
    fn replicas_of_output_are_spread_over_all_machines() {
        // Racks of 40 and 18 machines.
        let (_, written) = writes(58, 5800);
        let all: f64 = written.values().sum();
        assert!((all - 3.0 * 5800.0).abs() < 1e-6, "three replicas each: {all}");
        let (low, high) =
            written.values().fold((f64::MAX, 0.0_f64), |(low, high), x| (low.min(*x), high.max(*x)));
        assert!(low > 150.0 && high < 700.0, "100 are own; a machine has {low} to {high}");
        let (_, written) = writes(2, 100);
        assert!((written.values().sum::<f64>() - 200.0).abs() < 1e-6, "no machine has two replicas");
    }

    #[test]
    fn checkpoints_have_the_rate_of_the_direction_that_they_use() {
        let rates = |cache: u64| {
            let mut setup = Setup::even(1, PerPhase { map: 1, reduce: 1 }, "fifo");
            let machine = &mut setup.machines[0];
            (machine.disk, machine.disk_writes, machine.cache) = (50e6, Some(20e6), cache);
            let world = World::new(setup, Workload::default()).expect("a policy");
            [world.checkpoint_write_rate(0), world.checkpoint_read_rate(0)]
        };
        assert_eq!(rates(0).map(|rate| rate.round() as u64), [20_000_000, 50_000_000]);
        // Cached files do not use the disk.
        assert_eq!(rates(1 << 30).map(|rate| rate.round() as u64), [100_000_000; 2]);
    }

    #[test]
    fn checkpoints_use_the_memory_that_tasks_leave() {
        let uncached = |task_memory: u64| {
            let mut setup = Setup::even(1, PerPhase { map: 1, reduce: 1 }, "fifo");
            let machine = &mut setup.machines[0];
            (machine.cache, machine.task_memory) = (100, task_memory);
            let mut world = World::new(setup, Workload::default()).expect("a policy");
            let checkpoint = CheckpointInfo { stage: Stage::Shuffle, bytes: 400, bytes_in: 0, records: 0 };
            let saved = StoredCheckpoint { fetch: Fetch::default(), final_stages: None, checkpoint };
            let id = TaskId { job: JobId(1), phase: Phase::Reduce, index: 0 }.attempt(0);
            world.nodes[0].checkpoints.insert(id, saved);
            world.nodes[0].uncached_share()
        };
        assert!(uncached(0) < 1e-9 && (uncached(10) - 0.75).abs() < 1e-9, "{}", uncached(10));
    }
}
