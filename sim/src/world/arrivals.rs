//! Submits the jobs of the workload. Input blocks are placed by the placement code of the file
//! system.

use super::{KnownJob, SimEvent, World, fetch::MapLog};
use crate::{BEGINNING, rng::Rng, workload::JobPlan};
use mrcore::{
    Event,
    ids::JobId,
    job::{JobSpec, Payload, Program, Split},
    metrics::GROUP,
};
use placement::{Candidate, PlacementRequest, place};
use std::{collections::BTreeMap, sync::Arc};

/// Maximum number of machines that are candidates for a block. In a larger cluster a random subset
/// is used, because placing a million blocks on ten thousand machines would otherwise dominate the
/// run time.
const CANDIDATES_MAX: usize = 96;

impl World {
    /// Schedules the next submission.
    pub(super) fn schedule_arrival(&mut self) {
        if let Some(job) = self.workload.jobs.get(self.next_arrival) {
            let at = (BEGINNING + job.at).max(self.now);
            self.queue.push(at, SimEvent::Arrival);
        }
    }

    /// Submits the job that is due, or stores it until the JobTracker is available.
    pub(super) fn handle_arrival(&mut self) {
        self.stop_skipping_idle_time();
        let plan = self.next_arrival;
        self.next_arrival += 1;
        if self.core.is_some() {
            self.submit(plan);
        } else {
            self.unsubmitted.push(plan);
        }
        self.schedule_arrival();
    }

    pub(super) fn submit(&mut self, plan: usize) {
        let Some(core) = &self.core else { return };
        let id = JobId(core.cluster().newest_job().0 + 1);
        let copies = self.setup.replication.min(self.nodes.len());
        let job = &self.workload.jobs[plan];
        let mut rng = Rng::of(self.setup.seed, &job.name).forked(plan as u64);
        let replicas = if job.hosts.is_empty() {
            self.place_blocks(job, copies, &mut rng)
        } else {
            spread_hosts(&job.hosts, copies, self.nodes.len())
        };
        let spec = Arc::new(self.spec(plan, &replicas, copies));
        let input: u64 = job.maps.iter().map(|map| map.bytes).sum();
        let map_output_bytes = input as f64 * job.map_out;
        let log = MapLog::default();
        self.jobs_known.insert(id, KnownJob { plan, replicas, copies, map_output_bytes, log });
        let request = self.request();
        if self.random.is_some() {
            self.send_twice(Event::Submission { request, spec });
        } else {
            self.send_event(Event::Submission { request, spec });
        }
    }

    /// Chooses the machines with the replicas of the input blocks: `copies` per map.
    fn place_blocks(&self, job: &JobPlan, copies: usize, rng: &mut Rng) -> Vec<u32> {
        let candidate = |at: usize| Candidate {
            name: &self.nodes[at].name,
            host: &self.nodes[at].name,
            rack: &self.nodes[at].rack,
            free: self.setup.machines[at].disk_bytes,
            load: 0,
            usable: self.nodes[at].has_blocks(),
        };
        let nodes = self.nodes.len();
        let takes_all = nodes <= CANDIDATES_MAX;
        let mut some: Vec<usize> = if takes_all { (0..nodes).collect() } else { Vec::new() };
        let mut candidates: Vec<Candidate<'_>> = some.iter().copied().map(candidate).collect();
        let mut replicas = Vec::with_capacity(job.maps.len() * copies);
        for map in &job.maps {
            let placing = PlacementRequest {
                count: copies,
                block_bytes: map.bytes,
                seed: rng.bits(),
                ..PlacementRequest::default()
            };
            if !takes_all {
                some.clear();
                some.extend((0..CANDIDATES_MAX).map(|_| rng.index(nodes)));
                some.sort_unstable();
                some.dedup();
                candidates.clear();
                candidates.extend(some.iter().copied().map(candidate));
            }
            let chosen = place(&candidates, &placing);
            let last = chosen.last().map_or_else(|| rng.index(nodes), |at| some[*at]) as u32;
            let chosen = chosen.into_iter().map(|at| some[at] as u32);
            replicas.extend(chosen.chain(std::iter::repeat(last)).take(copies));
        }
        replicas
    }

    fn spec(&self, plan: usize, replicas: &[u32], copies: usize) -> JobSpec {
        let job = &self.workload.jobs[plan];
        let mut rng = self.setup.random_events.then(|| Rng::of(self.setup.seed, &job.name));
        let attempts_max = rng.as_mut().map_or(4, |rng| 2 + rng.below(3) as u32);
        let splits = job.maps.iter().zip(replicas.chunks(copies.max(1))).map(|(map, at)| {
            let mut hosts: Vec<String> = at.iter().map(|at| self.nodes[*at as usize].name.clone()).collect();
            hosts.dedup();
            Split {
                source: format!("/{plan}"),
                start: 0,
                end: map.bytes.max(1),
                divisible: rng.as_mut().is_none_or(|rng| !rng.one_in(8)) && map.divisible,
                hosts,
                pin: mrcore::job::InputPin::default(),
            }
        });
        JobSpec {
            name: job.name.clone(),
            user: job.user.clone(),
            queue: job.queue.clone(),
            priority: job.priority,
            program: Program::Builtin(job.group.clone()),
            splits: splits.collect(),
            reduces: job.reduces.len() as u32,
            output: String::new(),
            slow_start: job.slow_start,
            speculation: job.speculation,
            split_slow: job.split_slow,
            attempts_max,
            conf: BTreeMap::from([(GROUP.to_owned(), job.group.clone())]),
            payload: Payload::default(),
        }
    }
}

/// Returns `copies` machines per map: those of the trace that exist in this cluster. If there are
/// too few, the last one is repeated.
fn spread_hosts(hosts: &[Vec<u32>], copies: usize, nodes: usize) -> Vec<u32> {
    let fits = |at: &u32| (*at as usize) < nodes;
    let some = |map: (usize, &Vec<u32>)| {
        let (index, at) = map;
        let valid: Vec<u32> = at.iter().copied().filter(fits).collect();
        let last = valid.last().copied().unwrap_or((index % nodes.max(1)) as u32);
        valid.into_iter().chain(std::iter::repeat(last)).take(copies).collect::<Vec<_>>()
    };
    hosts.iter().enumerate().flat_map(some).collect()
}

#[cfg(test)]
mod tests {
    use crate::{World, trial, workload::history::read_texts};

    #[test]
    fn replayed_job_is_split_only_if_the_real_one_could_be() {
        let head = r#"{"format":3,"job":"job_7","at_us":1000000,"spec":{"name":"n","user":"ann","queue":"q","priority":"normal","program":"builtin:sort","reduces":0,"slow_start":0.05,"speculation":true,"split_slow":false,"splits":[{"source":"/a","start":0,"end":100},{"end":150,"divisible":false}]}}"#;
        let ended = r#"{"at_us":2000000,"fact":{"job-ended":{"outcome":"succeeded"}}}"#;
        let history = read_texts(&[("a test".into(), [head, ended].join("\n"))]).expect("it reads");
        let world = World::new(trial::short().setup, history.workload).expect("a policy");
        let spec = world.spec(0, &[0, 0], 1);
        let divisible: Vec<bool> = spec.splits.iter().map(|split| split.divisible).collect();
        assert_eq!((spec.split_slow, divisible), (false, vec![true, false]));
    }
}
