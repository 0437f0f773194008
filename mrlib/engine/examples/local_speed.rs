//! Measures a built-in program in local mode: prints elapsed seconds and CPU seconds.
//!
//! `cargo run --release -p fermata-engine --example local_speed -- PROGRAM IN OUT [REDUCES]
//! [KEY=VALUE ...]`

use fermata_engine::{
    local::{LocalRun, run_local},
    registry,
};
use mrlib_api::{Conf, TaskError};
use rustix::time::{ClockId, clock_gettime};
use std::{path::PathBuf, time::Instant};

fn main() -> Result<(), TaskError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, input, output, rest @ ..] = arguments.as_slice() else {
        return Err("usage: local_speed PROGRAM IN OUT [REDUCES] [KEY=VALUE ...]".into());
    };
    let reduces = rest.first().map_or(Ok(2), |text| text.parse()).map_err(|_| "REDUCES must be a number")?;
    let settings = rest.iter().skip(1).filter_map(|setting| setting.split_once('='));
    let conf: Conf = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let job = registry::job(program, &conf)?;
    let run = LocalRun {
        inputs: vec![PathBuf::from(input)],
        output: PathBuf::from(output),
        reduces,
        threads: 2,
        conf,
    };
    let started = Instant::now();
    run_local(&job, &run)?;
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    println!("{program}: {:.2} s, {cpu:.2} s of CPU time", started.elapsed().as_secs_f64());
    Ok(())
}
