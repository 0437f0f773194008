//! A task process for the tracker's tests: speaks the umbilical and does what the setting `fake` of its job says.
//! Ends at once when nobody started it as a task.

use prost::Message;
use proto::mr::{
    FromTask, Progress, TaskHello, TaskResult, TaskStart, ToTask, from_task::Kind, map_event, task_spec,
    to_task,
};
use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, exit},
    time::Duration,
};

fn send(stream: &mut UnixStream, kind: Kind) {
    let body = FromTask { kind: Some(kind) }.encode_to_vec();
    stream.write_all(&(body.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(&body).unwrap();
}

fn receive(stream: &mut UnixStream) -> Option<to_task::Kind> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut body).ok()?;
    ToTask::decode(&body[..]).unwrap().kind
}

fn main() {
    let Some(path) = std::env::var_os("FERMATA_UMBILICAL") else { return };
    // As mrlib does, first thing: die with the tracker.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    assert_eq!(
        std::env::var("FERMATA_TRACKER_PID").unwrap(),
        std::os::unix::process::parent_id().to_string()
    );
    assert_eq!(std::env::var("FERMATA_RLIMIT_NOFILE").unwrap(), "4096");
    let mut stream = UnixStream::connect(path).unwrap();
    send(&mut stream, Kind::Hello(TaskHello { protocol: 1, version: "test".into() }));
    let Some(to_task::Kind::Start(start)) = receive(&mut stream) else { return };
    let spec = start.spec.clone().unwrap();
    println!("this is {}", spec.attempt);
    let here = fs::canonicalize(std::env::current_dir().unwrap()).unwrap();
    assert_eq!(here, Path::new(&start.work_dir), "its folder is the attempt's");
    fs::write("scrap", "left lying about").unwrap();
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
        ("failed", words) => {
            send(stream, Kind::Failed(words.into()));
            exit(1);
        }
        ("hang", _) => sleep(),
        // A grandchild that outlives its parent, unless the group is killed.
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
            send(stream, Kind::Unfetched(map.into()));
            sleep();
        }
        ("events", count) => wait_for_events(stream, count.parse().unwrap()),
        ("side", name) => {
            println!("{}", fs::read_to_string(name).unwrap());
            done(stream, start);
        }
        ("silent", _) => exit(0),
        _ => done(stream, start),
    }
}

/// Says each map event back as a piece.
fn wait_for_events(stream: &mut UnixStream, count: usize) {
    let mut pieces = Vec::new();
    while pieces.len() < count {
        let Some(to_task::Kind::MapEvents(news)) = receive(stream) else { exit(4) };
        assert_eq!(news.first, pieces.len() as u64);
        for event in news.events {
            pieces.push(match event.kind.unwrap() {
                map_event::Kind::Available(map) => format!("{}={}", map.attempt, map.local_path),
                map_event::Kind::Withdrawn(map) => format!("-{map}"),
            });
        }
    }
    send(stream, Kind::Done(TaskResult { pieces, ..TaskResult::default() }));
}

fn done(stream: &mut UnixStream, start: &TaskStart) {
    if !start.map_output.is_empty() {
        let spec = start.spec.as_ref().unwrap();
        assert!(matches!(spec.input, Some(task_spec::Input::Split(_))));
        write_output(Path::new(&start.map_output), spec.reduces);
    }
    let counters = [("RECORDS".to_string(), 3)].into();
    send(stream, Kind::Done(TaskResult { counters, ..TaskResult::default() }));
}

fn write_output(path: &Path, partitions: u32) {
    let mut index = Vec::from(b"FMTX");
    index.extend(1u32.to_le_bytes());
    index.extend(partitions.to_le_bytes());
    let mut data = Vec::new();
    for partition in 0..partitions {
        let part = format!("partition {partition}");
        for number in [data.len() as u64, part.len() as u64, part.len() as u64, 1] {
            index.extend(number.to_le_bytes());
        }
        index.extend(crc32c::crc32c(part.as_bytes()).to_le_bytes());
        data.extend(part.as_bytes());
    }
    index.extend(crc32c::crc32c(&index).to_le_bytes());
    fs::write(path, data).unwrap();
    fs::write(format!("{}.index", path.display()), index).unwrap();
}
