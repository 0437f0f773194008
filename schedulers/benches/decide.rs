//! How long a policy takes to decide, and a whole heartbeat: one line of JSON for each policy and size.
//!
//! `cargo bench -p fermata-schedulers [-- POLICY]`

use fermata_schedulers::{
    Params, specs,
    stage::{LARGE, Size, Stage},
};
use std::{hint::black_box, time::Instant};

const ROUNDS: u32 = 5000;

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let small = Size { waiting: LARGE.waiting / 10, ..LARGE };
    for spec in specs().iter().filter(|spec| chosen.is_empty() || chosen.contains(spec)) {
        for size in [small, LARGE] {
            measure(spec, size);
        }
    }
}

fn measure(spec: &str, size: Size) {
    let mut stage = Stage::new(spec, &Params::new(), size).expect("a registered policy");
    let time = |work: &mut dyn FnMut(u32)| {
        let mut nanos: Vec<u128> = (0..ROUNDS)
            .map(|round| {
                let begun = Instant::now();
                work(round.wrapping_mul(7919));
                begun.elapsed().as_nanos()
            })
            .collect();
        nanos.sort_unstable();
        let at = |part: usize| nanos[nanos.len() * part / 100] as f64 / 1000.0;
        (at(50), at(99))
    };
    let decide = time(&mut |tracker| drop(black_box(stage.ask(tracker))));
    let mut out = Vec::new();
    let heartbeat = time(&mut |tracker| {
        stage.heartbeat(tracker, &mut out);
        out.clear();
    });
    println!(
        "{{\"policy\":\"{spec}\",\"trackers\":{},\"jobs\":{},\"waiting_maps\":{},\"decide_median_us\":{:.2},\
         \"decide_p99_us\":{:.2},\"heartbeat_median_us\":{:.2},\"heartbeat_p99_us\":{:.2}}}",
        size.trackers, size.jobs, size.waiting, decide.0, decide.1, heartbeat.0, heartbeat.1
    );
}
