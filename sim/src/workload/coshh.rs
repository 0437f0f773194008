//! The workloads of the COSHH paper: the job classes of Facebook and Yahoo! (table 4), users
//! (table 5) and resources (tables 3 and 10).
//!
//! Each user submits the jobs of one class, in the proportions of the table. The table gives the
//! bytes and task-seconds of a class, but not the number of tasks. We use one map per 128 MB, but
//! at least as many as needed to complete the task-seconds within the duration, and at most
//! [`TASKS_MAX`]. The paper does not give arrival times; we use a Poisson process.

use super::{JobPlan, MapPlan, ReducePlan, Workload, seconds};
use crate::{
    rng::Rng,
    setup::{Machine, Setup},
};
use mrcore::{PerPhase, Span, job::Priority, metrics::shares::MinShare};

/// Maximum number of tasks per phase of a job. More would only make the simulation slower: a data
/// summary would have 231,000 maps on 31 slots.
pub const TASKS_MAX: u32 = 240;

/// Heartbeat interval. It is long because runs take years ([`interleaved`]).
const HEARTBEAT: Span = Span::secs(3600);

/// A class of jobs: a row of table 4.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Class {
    /// Name in the table.
    pub name: &'static str,
    duration_s: f64,
    jobs: u32,
    input: f64,
    shuffle: f64,
    output: f64,
    map_s: f64,
    reduce_s: f64,
    /// Minimum share of the user of this class (table 5).
    min_share: u32,
    /// Priority of the user of this class (table 5).
    priority: u32,
}

const fn class(
    name: &'static str,
    duration_s: f64,
    jobs: u32,
    [input, shuffle, output]: [f64; 3],
    [map_s, reduce_s]: [f64; 2],
    [min_share, priority]: [u32; 2],
) -> Class {
    Class { name, duration_s, jobs, input, shuffle, output, map_s, reduce_s, min_share, priority }
}

const KB: f64 = 1e3;
const MB: f64 = 1e6;
const GB: f64 = 1e9;
const TB: f64 = 1e12;

/// The classes of Facebook.
pub const FACEBOOK: [Class; 10] = [
    class("Small jobs", 32.0, 126, [21.0 * KB, 0.0, 871.0 * KB], [20.0, 0.0], [5, 1]),
    class("Fast data load", 1260.0, 25, [381.0 * KB, 0.0, 1.9 * GB], [6079.0, 0.0], [0, 2]),
    class("Slow data load", 6600.0, 3, [10.0 * KB, 0.0, 4.2 * GB], [26_321.0, 0.0], [0, 2]),
    class("Large data load", 4200.0, 10, [405.0 * KB, 0.0, 447.0 * GB], [66_657.0, 0.0], [5, 1]),
    class("Huge data load", 18_300.0, 3, [446.0 * KB, 0.0, 1.1 * TB], [125_662.0, 0.0], [10, 2]),
    class("Fast aggregate", 900.0, 10, [230.0 * GB, 8.8 * GB, 491.0 * MB], [104_338.0, 66_760.0], [15, 1]),
    class("Aggregate and expand", 1800.0, 6, [1.9 * TB, 502.0 * MB, 2.6 * GB], [348_942.0, 76_736.0], [4, 2]),
    class(
        "Expand and aggregate",
        5100.0,
        2,
        [418.0 * GB, 2.5 * TB, 45.0 * GB],
        [1_076_089.0, 974_395.0],
        [10, 1],
    ),
    class("Data transform", 2100.0, 14, [255.0 * GB, 788.0 * GB, 1.6 * GB], [384_562.0, 338_050.0], [10, 1]),
    class("Data summary", 3300.0, 1, [7.6 * TB, 51.0 * GB, 104.0 * KB], [4_843_452.0, 853_911.0], [15, 1]),
];

/// The classes of Yahoo!.
pub const YAHOO: [Class; 8] = [
    class("Small jobs", 60.0, 114, [174.0 * MB, 73.0 * MB, 6.0 * MB], [412.0, 740.0], [5, 1]),
    class("Fast aggregate", 2100.0, 23, [568.0 * GB, 76.0 * GB, 3.9 * GB], [270_376.0, 589_385.0], [0, 2]),
    class(
        "Expand and aggregate",
        2400.0,
        10,
        [206.0 * GB, 1.5 * TB, 133.0 * MB],
        [983_998.0, 1_425_941.0],
        [10, 2],
    ),
    class(
        "Transform expand",
        9300.0,
        5,
        [806.0 * GB, 235.0 * GB, 10.0 * TB],
        [257_567.0, 979_181.0],
        [15, 1],
    ),
    class(
        "Data summary",
        13_500.0,
        7,
        [4.9 * TB, 78.0 * GB, 775.0 * MB],
        [4_481_926.0, 1_663_358.0],
        [10, 1],
    ),
    class(
        "Large data summary",
        30_900.0,
        4,
        [31.0 * TB, 937.0 * GB, 475.0 * MB],
        [33_606_055.0, 31_884_004.0],
        [15, 2],
    ),
    class("Data transform", 3600.0, 36, [36.0 * GB, 15.0 * GB, 4.0 * GB], [15_021.0, 13_614.0], [10, 1]),
    class(
        "Large data transform",
        16_800.0,
        1,
        [5.5 * TB, 10.0 * TB, 2.5 * TB],
        [7_729_409.0, 8_305_880.0],
        [15, 1],
    ),
];

impl Class {
    fn tasks(&self, bytes: f64, task_s: f64) -> u32 {
        if task_s == 0.0 {
            return 0;
        }
        let blocks = (bytes / 128e6).ceil();
        let parallel = (task_s / self.duration_s).ceil();
        (blocks.max(parallel) as u32).clamp(1, TASKS_MAX)
    }

    fn plan(&self, number: usize, user: String, at_s: f64) -> JobPlan {
        let (maps, reduces) = (self.tasks(self.input, self.map_s), self.tasks(self.shuffle, self.reduce_s));
        let map = MapPlan {
            bytes: (self.input / f64::from(maps)) as u64,
            work_s: (self.map_s / f64::from(maps)) as f32,
            divisible: true,
        };
        let reduce = ReducePlan {
            share: 1.0 / reduces.max(1) as f32,
            factor: 0.0,
            fixed_s: (self.reduce_s / f64::from(reduces.max(1))) as f32,
        };
        JobPlan {
            at: seconds(at_s),
            name: format!("{}-{number}", self.name),
            group: self.name.to_owned(),
            user,
            queue: "default".into(),
            priority: Priority::Normal,
            maps: vec![map; maps as usize],
            hosts: Vec::new(),
            reduces: vec![reduce; reduces as usize],
            map_out: self.shuffle / self.input.max(1.0),
            reduce_rate: 1e12,
            merge_rate: 1e12,
            reduce_out: self.output / self.shuffle.max(1.0),
            startup_time: seconds(1.0),
            slow_start: 0.05,
            speculation: false,
            split_slow: true,
        }
    }
}

/// Returns the minimum share and weight of each user. If users are `identical`, there are no
/// minimum shares, and weights are equal.
pub fn min_shares(classes: &[Class], identical: bool) -> Vec<(String, MinShare)> {
    let min_share_of = |class: &Class| {
        let (min_share, weight) = if identical { (0, 1) } else { (class.min_share, class.priority) };
        MinShare { min_share: f64::from(min_share), weight: f64::from(weight) }
    };
    classes.iter().enumerate().map(|(at, class)| (format!("U{}", at + 1), min_share_of(class))).collect()
}

/// Returns `jobs` jobs in the proportions of the table, in random order.
pub fn workload(name: &str, classes: &[Class], jobs: u32, gap_s: f64, seed: u64) -> Workload {
    let mut rng = Rng::of(seed, name);
    let all: u32 = classes.iter().map(|class| class.jobs).sum();
    let mut order: Vec<usize> = Vec::new();
    let mut carried = 0.0;
    for (at, class) in classes.iter().enumerate() {
        let due = f64::from(class.jobs) * f64::from(jobs) / f64::from(all) + carried;
        let count = due.round().max(0.0);
        carried = due - count;
        order.extend(std::iter::repeat_n(at, count as usize));
    }
    rng.shuffle(&mut order);
    let mut at_s = 0.0;
    let mut plans = Vec::with_capacity(order.len());
    for (number, at) in order.into_iter().enumerate() {
        plans.push(classes[at].plan(number, format!("U{}", at + 1), at_s));
        at_s += rng.exponential(gap_s);
    }
    Workload { name: name.to_owned(), jobs: plans }
}

/// Returns a resource of 5 MHz with two slots. `stores` says whether it has large storage.
fn slow_machine(stores: bool) -> Machine {
    Machine {
        rack: 0,
        slots: PerPhase { map: 1, reduce: 1 },
        speed: 0.01,
        disk: if stores { 9e9 / 8.0 } else { 5e3 },
        cache: u64::MAX,
        nic: 12.5e6,
        disk_bytes: if stores { 4_000_000_000_000_000 } else { 400_000 },
    }
}

/// Returns a resource of 500 MHz, which is speed 1.
fn fast_machine(stores: bool, map: u32, reduce: u32) -> Machine {
    Machine { slots: PerPhase { map, reduce }, speed: 1.0, ..slow_machine(stores) }
}

/// Returns a cluster with the resources of table 3, repeated. The first six have 31 map and 23
/// reduce slots.
pub fn resources(count: u32, scheduler: &str) -> Setup {
    let fast = [fast_machine(false, 9, 7), fast_machine(true, 10, 6), fast_machine(false, 9, 7)];
    interleaved(fast, count, scheduler)
}

/// Returns a cluster with the resources of table 10, repeated, for growing clusters: as in table 3,
/// but with two slots each. The table has 500 GHz where table 3 has 500 MHz; we assume a typing
/// error.
pub fn resources_of_two_slots(count: u32, scheduler: &str) -> Setup {
    let fast = [fast_machine(false, 1, 1), fast_machine(true, 1, 1), fast_machine(false, 1, 1)];
    interleaved(fast, count, scheduler)
}

/// Returns a cluster that repeats the six types of machines in order. The arguments are types 2, 3
/// and 5; the others are slow. The network has 100 Mbit/s.
fn interleaved([two, three, five]: [Machine; 3], count: u32, scheduler: &str) -> Setup {
    let six = [slow_machine(true), two, three, slow_machine(true), five, slow_machine(false)];
    let mut setup = Setup::even(count, PerPhase { map: 1, reduce: 1 }, scheduler);
    // A run takes years, because a task of weeks takes a hundred times as long on a slow resource.
    // Heartbeats or timers every second or minute would dominate the run time of the simulation.
    // Trackers send a heartbeat at once if they have something to report.
    setup.set_heartbeat_interval(HEARTBEAT);
    setup.tick = HEARTBEAT;
    setup.costs.net_epoch = HEARTBEAT;
    setup.output_replication = 0;
    setup.config.absence = Span(10 * HEARTBEAT.0);
    setup.machines = six.iter().cycle().take(count as usize).cloned().collect();
    setup
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_has_the_proportions_of_the_paper() {
        for (classes, small) in [(&FACEBOOK[..], 63), (&YAHOO[..], 57)] {
            let workload = workload("test", classes, 100, 60.0, 1);
            assert!((99..=101).contains(&workload.jobs.len()), "{}", workload.jobs.len());
            assert_eq!(workload.jobs.iter().filter(|job| job.group == "Small jobs").count(), small);
        }
        let setup = resources(6, "fifo");
        assert_eq!(setup.slots(), PerPhase { map: 31, reduce: 23 }, "as section 6.2.1 says");
        let setup = resources_of_two_slots(102, "fifo");
        assert_eq!(
            setup.slots(),
            PerPhase { map: 102, reduce: 102 },
            "table 10: 17 of each type, two slots each"
        );
        assert_eq!(setup.machines.iter().filter(|machine| machine.speed < 0.1).count(), 51);
        let summary = FACEBOOK[9].plan(0, "U10".into(), 0.0);
        let total: f64 = summary.maps.iter().map(|map| f64::from(map.work_s)).sum();
        assert!((total - 4_843_452.0).abs() < 100.0);
        assert!(
            min_shares(&YAHOO, false).iter().map(|(_, min_share_of)| min_share_of.min_share).sum::<f64>()
                > 54.0
        );
    }
}
