//! A task process for tests of the tracker. It uses the umbilical protocol and does what the
//! setting `fake` of its job requests. It exits immediately if it was not started as a task.

use engine::{
    frame::{read_frame, write_frame},
    process::{LIMIT_AS_VAR, LIMIT_NOFILE_VAR, TRACKER_PID_VAR},
    segment::{Extent, Index},
    task::{PROTOCOL, UMBILICAL_VAR},
};
use proto::mr::{
    FetchFailed, FromTask, Progress, TaskHello, TaskResult, TaskStart, ToTask, from_task::Kind, map_event,
    task_spec, to_task,
};
use std::{
    collections::HashMap,
    fs,
    os::unix::{net::UnixStream, process::CommandExt},
    path::Path,
    process::{Command, exit},
    time::Duration,
};

fn send(stream: &mut UnixStream, kind: Kind) {
    write_frame(stream, &FromTask { kind: Some(kind) }).unwrap();
}

fn receive(stream: &mut UnixStream) -> Option<to_task::Kind> {
    read_frame::<ToTask>(stream).ok()??.kind
}

fn main() {
    let Some(path) = std::env::var_os(UMBILICAL_VAR) else { return };
    // As tasks on mrlib do, first ask the kernel to kill this process when the tracker dies.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    assert_eq!(std::env::var(TRACKER_PID_VAR).unwrap(), std::os::unix::process::parent_id().to_string());
    assert_eq!(std::env::var(LIMIT_NOFILE_VAR).unwrap(), "4096");
    assert!(std::env::var(LIMIT_AS_VAR).unwrap().parse::<u64>().unwrap() > 0);
    let mut stream = UnixStream::connect(path).unwrap();
    send(&mut stream, Kind::Hello(TaskHello { protocol: PROTOCOL, version: "test".into() }));
    let Some(to_task::Kind::Start(start)) = receive(&mut stream) else { return };
    let spec = start.spec.clone().unwrap();
    println!("this is {}", spec.attempt);
    println!("oom_score_adj {}", fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim());
    let here = fs::canonicalize(std::env::current_dir().unwrap()).unwrap();
    assert_eq!(here, Path::new(&start.work_dir), "the working folder is not the folder of the attempt");
    fs::write("scrap", "left behind").unwrap();
    let progress = Progress { done: 0.5, stage: "map".into(), ..Progress::default() };
    send(&mut stream, Kind::Progress(progress));
    let what = spec.conf.get("fake").cloned().unwrap_or_default();
    act(&mut stream, &start, &what);
}

#[allow(clippy::zombie_processes, reason = "leaving a grandchild behind is the point")]
fn act(stream: &mut UnixStream, start: &TaskStart, what: &str) {
    let sleep = || -> ! {
        loop {
            std::thread::sleep(Duration::from_secs(1000));
        }
    };
    match what.split_once(':').unwrap_or((what, "")) {
        ("exit", code) => {
            for line in 0..20 {
                eprintln!("line {line} of trouble");
            }
            exit(code.parse().unwrap());
        }
        ("crash", _) => {
            eprintln!("about to crash");
            std::process::abort();
        }
        ("failed", text) => {
            send(stream, Kind::Failed(text.into()));
            exit(1);
        }
        // Starts a process in another process group, whose parent exits at once.
        ("escape", then) => {
            let mut shell = Command::new("sh");
            let script = "sleep 1000 <&- >&- 2>&- & echo grandchild $!";
            shell.args(["-c", script]).process_group(0).status().unwrap();
            act(stream, start, then);
        }
        ("hang", _) => sleep(),
        // Starts a process that outlives this one, unless the process group is killed.
        ("fork", then) => {
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            println!("grandchild {}", child.id());
            act(stream, start, then);
        }
        ("close", _) => {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
            sleep();
        }
        ("unfetched", map) => {
            send(stream, Kind::FetchFailed(FetchFailed { attempt: map.into(), addr: "node2:7000".into() }));
            sleep();
        }
        // Writes a partial output, and then the output to another disk, as if the first disk were
        // full.
        ("elsewhere", _) => {
            fs::write(&start.map_output, "half").unwrap();
            let other = TaskStart { map_output: start.other_map_outputs[0].clone(), ..start.clone() };
            succeed(stream, &other);
        }
        ("events", count) => wait_for_events(stream, count.parse().unwrap()),
        ("side", name) => {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(name).unwrap().permissions().mode();
            println!("{} with mode {:o}", fs::read_to_string(name).unwrap(), mode & 0o777);
            succeed(stream, start);
        }
        ("silent", _) => exit(0),
        (what, how_much) => exceed_limit(stream, start, what, how_much),
    }
}

/// Sends, uses or prints too much, or succeeds if `what` is something else.
fn exceed_limit(stream: &mut UnixStream, start: &TaskStart, what: &str, how_much: &str) {
    match (what, how_much) {
        ("long", bytes) => {
            let status = "s".repeat(bytes.parse().unwrap());
            send(stream, Kind::Progress(Progress { status: status.clone(), ..Progress::default() }));
            send(stream, Kind::Failed(format!("begin{status}end")));
            exit(1);
        }
        ("counters", count) => {
            let counters = (0..count.parse().unwrap()).map(|number: u64| (format!("c{number}"), number));
            let counters = counters.collect();
            succeed_with(stream, start, TaskResult { counters, ..TaskResult::default() });
        }
        ("pieces", count) => {
            let pieces = (0..count.parse().unwrap()).map(|number: u64| format!("/out/{number:07}"));
            let pieces = pieces.collect();
            succeed_with(stream, start, TaskResult { pieces, ..TaskResult::default() });
        }
        ("eat", mib) => {
            let eaten = vec![1u8; mib.parse::<usize>().unwrap() << 20];
            println!("ate {}", std::hint::black_box(&eaten).len());
            std::thread::sleep(Duration::from_secs(1000));
        }
        ("print", _) => loop {
            println!("{}", "x".repeat(1000));
        },
        _ => succeed(stream, start),
    }
}

/// Waits for map events. Reports each event as a piece of the result, and the number of maps as a
/// counter.
fn wait_for_events(stream: &mut UnixStream, count: usize) {
    let mut pieces = Vec::new();
    let mut counters = HashMap::new();
    while pieces.len() < count {
        let Some(to_task::Kind::MapEvents(map_events)) = receive(stream) else { exit(4) };
        assert_eq!(map_events.first, pieces.len() as u64);
        counters.insert("MAPS".to_string(), u64::from(map_events.maps));
        for event in map_events.events {
            pieces.push(match event.kind.unwrap() {
                map_event::Kind::Available(map) => format!("{}={}", map.attempt, map.local_path),
                map_event::Kind::Withdrawn(map) => format!("-{map}"),
            });
        }
    }
    send(stream, Kind::Done(TaskResult { pieces, counters, ..TaskResult::default() }));
}

fn succeed(stream: &mut UnixStream, start: &TaskStart) {
    let counters = [("RECORDS".to_string(), 3)].into();
    succeed_with(stream, start, TaskResult { counters, ..TaskResult::default() });
}

/// Writes the map output, if the task has one, and reports success with this result.
fn succeed_with(stream: &mut UnixStream, start: &TaskStart, result: TaskResult) {
    if !start.map_output.is_empty() {
        let spec = start.spec.as_ref().unwrap();
        assert!(matches!(spec.input, Some(task_spec::Input::Split(_))));
        write_output(Path::new(&start.map_output), spec.reduces);
    }
    send(stream, Kind::Done(result));
}

fn write_output(path: &Path, partitions: u32) {
    let mut index = Index::default();
    let mut data = Vec::new();
    for partition in 0..partitions {
        let part = format!("partition {partition}");
        let (offset, stored) = (data.len() as u64, part.len() as u64);
        let crc = crc32c::crc32c(part.as_bytes());
        index.extents.push(Extent { offset, stored, raw: stored, records: 1, block_max: stored, crc });
        data.extend(part.as_bytes());
    }
    fs::write(path, data).unwrap();
    index.write(path).unwrap();
}
