//! The workloads of the COSHH paper: the job classes of Facebook and Yahoo! (table 4), users
//! (table 5) and resources (tables 3 and 10).
//!
//! Each user submits the jobs of one class, in the proportions of the table. The table gives the
//! bytes and task-seconds of a class, but not the number of tasks. We use one map per 128 MB of
//! input (the block size of the paper) and one reduce per 128 MB of shuffled data, but at least as
//! many as needed to complete the task-seconds within the duration. A hundred jobs of Yahoo! then
//! have about 800,000 tasks, so jobs are reduced: a job has a part of its tasks ([`SCALE`]), each
//! of the original size, and the same part of its bytes and task-seconds. The paper does not give
//! arrival times; we use a Poisson process.

use super::{JobPlan, MapPlan, ReducePlan, Workload, seconds};
use crate::{
    rng::Rng,
    setup::{Machine, Setup},
};
use mrcore::{PerPhase, Span, job::Priority, metrics::shares::MinShare};

/// A job has one task of this many, at least one per phase that it has.
pub const SCALE: u32 = 20;

/// Heartbeat interval of a tracker that has nothing to report.
const HEARTBEAT: Span = Span::secs(60);

/// Bytes of a block.
const BLOCK_BYTES: f64 = 128e6;

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
    /// Returns the number of tasks of a phase, before it is reduced by [`SCALE`].
    fn tasks(&self, bytes: f64, task_s: f64) -> f64 {
        if task_s == 0.0 {
            return 0.0;
        }
        let blocks = (bytes / BLOCK_BYTES).ceil();
        let parallel = (task_s / self.duration_s).ceil();
        blocks.max(parallel).max(1.0)
    }

    fn maps(&self) -> f64 {
        self.tasks(self.input, self.map_s)
    }

    fn reduces(&self) -> f64 {
        self.tasks(self.shuffle, self.reduce_s)
    }

    /// Returns the seconds of a task on a machine of speed 1, without reads.
    fn task_seconds(&self) -> PerPhase<f64> {
        PerPhase { map: self.map_s / self.maps().max(1.0), reduce: self.reduce_s / self.reduces().max(1.0) }
    }

    fn plan(&self, number: usize, user: String, at_s: f64) -> JobPlan {
        let reduced =
            |tasks: f64| if tasks > 0.0 { (tasks / f64::from(SCALE)).round().max(1.0) as usize } else { 0 };
        let (maps, reduces) = (reduced(self.maps()), reduced(self.reduces()));
        let task_s = self.task_seconds();
        let map = MapPlan {
            bytes: (self.input / self.maps().max(1.0)) as u64,
            work_s: task_s.map as f32,
            divisible: true,
        };
        let reduce =
            ReducePlan { share: 1.0 / reduces.max(1) as f32, factor: 0.0, fixed_s: task_s.reduce as f32 };
        JobPlan {
            at: seconds(at_s),
            name: format!("{}-{number}", self.name),
            group: self.name.to_owned(),
            user,
            queue: "default".into(),
            priority: Priority::Normal,
            maps: vec![map; maps],
            hosts: Vec::new(),
            reduces: vec![reduce; reduces],
            map_out: self.shuffle / self.input.max(1.0),
            reduce_rate: 1e12,
            merge_rate: 1e12,
            reduce_out: self.output / self.shuffle.max(1.0),
            startup_time: seconds(1.0),
            slow_start: 0.05,
            // The paper does not mention speculative execution. Every task on a resource with a
            // hundredth of the speed is a straggler, and under every policy it would be repeated or
            // split on fast resources: not the policy, but speculation would choose the place.
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

/// Returns parameters of `coshh` that give it the durations of tasks, which the paper assumes to be
/// known: of each user on a machine of speed 1, and the speed of each machine.
pub fn given_durations(classes: &[Class], machines: &[Machine]) -> Vec<(String, String)> {
    let users = classes.iter().enumerate().flat_map(|(at, class)| {
        let time = class.task_seconds();
        let key = |phase: &str| format!("coshh.users.U{}.{phase}_time", at + 1);
        [(key("map"), format!("{}s", time.map)), (key("reduce"), format!("{}s", time.reduce))]
    });
    let node =
        |(at, machine): (usize, &Machine)| (format!("coshh.nodes.n{at}.speed"), machine.speed.to_string());
    users.chain(machines.iter().enumerate().map(node)).collect()
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
    // Trackers register within the first heartbeat interval. A job that comes before would find
    // only some of them, perhaps only slow ones.
    let mut at_s = HEARTBEAT.as_secs_f64();
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
        cores: f64::INFINITY,
        disk: if stores { 9e9 / 8.0 } else { 5e3 },
        disk_writes: None,
        cache: u64::MAX,
        task_memory: 0,
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
    // A task on a slow resource takes up to five days. Heartbeats every three seconds would be most
    // of the events of a run. Trackers send a heartbeat at once if they have something to report.
    setup.set_heartbeat_interval(HEARTBEAT);
    setup.tick = Span::secs(10);
    setup.costs.net_epoch = Span::secs(10);
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
        assert!(
            min_shares(&YAHOO, false).iter().map(|(_, min_share_of)| min_share_of.min_share).sum::<f64>()
                > 54.0
        );
    }
    /// A map of the largest class reads a block and takes 139 s; before, it took 39 hours.
    #[test]
    fn tasks_have_the_sizes_of_the_paper() {
        let plan = |class: &Class| class.plan(0, "U1".into(), 0.0);
        let summary = plan(&YAHOO[5]);
        assert_eq!((summary.maps.len(), summary.reduces.len()), (12_109, 366));
        assert!((summary.maps[0].work_s - 138.76).abs() < 0.01, "{}", summary.maps[0].work_s);
        assert_eq!(summary.maps[0].bytes, 127_999_735, "31 TB in 242,188 blocks");
        // A twentieth of the task-seconds, except in classes with fewer than twenty tasks.
        let total = |job: &JobPlan| job.maps.iter().map(|map| f64::from(map.work_s)).sum::<f64>();
        for class in FACEBOOK.iter().chain(&YAHOO) {
            let (tasks, job) = (class.maps(), plan(class));
            let wanted = if tasks < f64::from(SCALE) { class.map_s / tasks } else { class.map_s / 20.0 };
            assert!((total(&job) / wanted - 1.0).abs() < 0.04, "{}: {} s", class.name, total(&job));
            assert_eq!(job.reduces.is_empty(), class.reduce_s == 0.0, "{}", class.name);
        }
        // A task of a class takes at most its duration.
        for class in FACEBOOK.iter().chain(&YAHOO) {
            let PerPhase { map, reduce } = class.task_seconds();
            assert!(map.max(reduce) <= class.duration_s, "{}: {map} s, {reduce} s", class.name);
        }
        let given = given_durations(&YAHOO, &resources(6, "coshh").machines);
        let of = |key: &str| given.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        assert_eq!(of("coshh.nodes.n0.speed"), Some("0.01"));
        assert_eq!(of("coshh.nodes.n1.speed"), Some("1"));
        assert!(of("coshh.users.U6.map_time").is_some_and(|time| time.starts_with("138.76")));
    }
}
