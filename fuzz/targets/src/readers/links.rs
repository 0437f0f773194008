//! Targets for readers of messages between processes on the data path: the umbilical and the
//! shuffle protocol.

use super::{
    SMALL_LIMIT,
    tasks::{records_of, sample_segment},
};
use crate::{Damage, Limit, Target};
use bytes::Bytes;
use engine::{
    fetch::{
        MapFeed,
        wire::{self, Answer, Request},
    },
    frame::{FRAME_BYTES_MAX, read_frame, write_frame},
    segment::{Extent, Run},
    task::PROTOCOL,
};
use prost::Message;
use proto::mr::{
    FetchFailed, FromTask, LaunchProgram, MapAvailable, MapEvent, Progress, TaskHello, TaskMapEvents,
    TaskPreempt, TaskResult, TaskSpec, TaskStart, ToTask, from_task, map_event, to_task,
};

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "umbilical_to_task",
        reads: "engine::frame::read_frame of ToTask and LaunchProgram, MapFeed::push",
        seeds: to_task_seeds,
        body: check_to_task,
        damage: Damage::Unnoticed,
        memory: FRAME_LIMIT,
    },
    Target {
        name: "umbilical_from_task",
        reads: "tasktracker::umbilical: messages of a task, and the checks of `talk`",
        seeds: from_task_seeds,
        body: check_from_task,
        damage: Damage::Unnoticed,
        memory: FRAME_LIMIT,
    },
    Target {
        name: "shuffle_request",
        reads: "engine::fetch::wire::Request::parse, types::AttemptId",
        seeds: || {
            let request = |token: &[u8], attempt| {
                wire::request(token, attempt, 9).expect("the request is within the limit")[4..].to_vec()
            };
            vec![request(b"secret", "job_7.m3.0"), request(b"", "job_1.r2.11"), request(&[1; 255], "x")]
        },
        body: check_request,
        damage: Damage::Unnoticed,
        memory: SMALL_LIMIT,
    },
    Target {
        name: "shuffle_answer",
        reads: "engine::fetch::wire::read_answer, and the fetched run",
        seeds: answer_seeds,
        body: check_answer,
        damage: Damage::Unnoticed,
        memory: Limit { fixed: 8 << 20, per_byte: 2048 },
    },
];

/// Memory for one frame of the maximum length, and for the messages that it can contain.
const FRAME_LIMIT: Limit = Limit { fixed: FRAME_BYTES_MAX + (1 << 20), per_byte: 1024 };

fn encode_frames<M: Message>(messages: &[M]) -> Vec<u8> {
    let mut out = Vec::new();
    for message in messages {
        write_frame(&mut out, message).expect("memory");
    }
    out
}

fn to_task_seeds() -> Vec<Vec<u8>> {
    let to = |kind| ToTask { kind: Some(kind) };
    let spec = TaskSpec { attempt: "job_1.m0.0".into(), ..TaskSpec::default() };
    let start = TaskStart {
        spec: Some(spec),
        work_dir: "/tmp/work".into(),
        scratch_dirs: vec!["/tmp/a".into(), "/tmp/b".into()],
        memory_bytes: 1 << 20,
        ..TaskStart::default()
    };
    let available = MapAvailable {
        attempt: "job_1.m0.0".into(),
        tracker: "node1".into(),
        shuffle_addr: "node1:7".into(),
        ..MapAvailable::default()
    };
    let event = |kind| MapEvent { kind: Some(kind) };
    let events = vec![
        event(map_event::Kind::Available(available)),
        event(map_event::Kind::Withdrawn("job_1.m0.0".into())),
    ];
    let map_events = TaskMapEvents { first: 0, events, maps: 2 };
    let stop = TaskPreempt { why: "no space".into(), kind: 1 };
    let launch = LaunchProgram { program: "/bin/cat".into(), confinement: None };
    vec![
        encode_frames(&[to(to_task::Kind::Start(start)), to(to_task::Kind::MapEvents(map_events))]),
        encode_frames(&[to(to_task::Kind::Preempt(stop))]),
        encode_frames(&[launch]),
    ]
}

/// Reads frames of one kind to the end of the input. Checks that encoding and decoding each message
/// again gives the same message. Returns whether all frames are valid.
fn read_all<M: Message + Default + PartialEq>(mut input: &[u8], mut each: impl FnMut(M)) -> bool {
    loop {
        match read_frame::<M>(&mut input) {
            Ok(Some(message)) => {
                let again = encode_frames(std::slice::from_ref(&message));
                let read: Option<M> =
                    read_frame(&mut again.as_slice()).expect("a message that was just encoded is valid");
                assert!(
                    read.is_some_and(|read| read == message),
                    "encoding and decoding a message again gives a different message"
                );
                each(message);
            }
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn check_to_task(input: &[u8]) -> Option<Vec<u8>> {
    let feed = MapFeed::new(3);
    let whole = read_all(input, |message: ToTask| {
        if let Some(to_task::Kind::MapEvents(map_events)) = message.kind {
            let _refused = feed.push(map_events);
        }
    });
    let launched = read_all(input, |_: LaunchProgram| ());
    (whole || launched).then(Vec::new)
}

fn from_task_seeds() -> Vec<Vec<u8>> {
    let from = |kind| FromTask { kind: Some(kind) };
    let hello = TaskHello { protocol: PROTOCOL, version: "x".into() };
    let progress =
        Progress { done: 0.5, stage: "map".into(), status: "working".into(), ..Progress::default() };
    let result = TaskResult {
        counters: [("RECORDS".to_owned(), 12)].into(),
        pieces: vec!["/out/part-r-00000.0".into()],
        ..TaskResult::default()
    };
    let unfetched = FetchFailed { attempt: "job_1.m3.0".into(), addr: "node2:7000".into() };
    vec![
        encode_frames(&[from(from_task::Kind::Hello(hello)), from(from_task::Kind::Progress(progress))]),
        encode_frames(&[from(from_task::Kind::FetchFailed(unfetched)), from(from_task::Kind::Done(result))]),
        encode_frames(&[
            from(from_task::Kind::Failed("it failed".into())),
            from(from_task::Kind::Fatal("always".into())),
        ]),
    ]
}

fn check_from_task(input: &[u8]) -> Option<Vec<u8>> {
    let messages = tasktracker::fuzzing::messages_of_a_task(input).ok()?;
    let again = tasktracker::fuzzing::messages_of_a_task(&encode_frames(&messages))
        .expect("a message that was just encoded is valid");
    // NaN does not equal itself.
    assert!(
        again == messages || format!("{messages:?}").contains("NaN"),
        "encoding and decoding {messages:?} again gives {again:?}"
    );
    Some(Vec::new())
}

fn check_request(input: &[u8]) -> Option<Vec<u8>> {
    let Request { token, attempt, partition } = Request::parse(input)?;
    let again =
        wire::request(token, attempt, partition).expect("a request that was read is within the limit");
    assert_eq!(&again[4..], input, "encoding an accepted input again gives different bytes");
    assert!(input.len() <= wire::REQUEST_BYTES_MAX);
    if let Ok(parsed) = attempt.parse::<types::AttemptId>() {
        assert_eq!(parsed.to_string(), attempt, "an attempt ID has a second spelling");
    }
    Some(input.to_vec())
}

fn answer_seeds() -> Vec<Vec<u8>> {
    let coming = |records, compress| {
        let (bytes, extent) = sample_segment(records, b"value", compress);
        [wire::data_header(&extent), bytes].concat()
    };
    vec![
        coming(3, false),
        coming(40, true),
        wire::refusal(wire::BUSY, "later"),
        wire::refusal(wire::DAMAGED, ""),
    ]
}

/// Reads an answer, and the run like a fetcher: the announced bytes, if their checksum matches.
fn check_answer(input: &[u8]) -> Option<Vec<u8>> {
    let mut rest = input;
    let answer = wire::read_answer(&mut rest).ok()?;
    let read = input.len() - rest.len();
    match answer {
        Answer::Refused(status, message) => {
            if !message.contains(char::REPLACEMENT_CHARACTER) {
                assert_eq!(
                    wire::refusal(status, &message),
                    input[..read],
                    "re-encoding the refusal does not give the original bytes"
                );
            }
        }
        Answer::Data(extent) => {
            assert_eq!(
                wire::data_header(&extent),
                input[..read],
                "re-encoding the answer does not give the original bytes"
            );
            let _ = extent.reader_bytes();
            let stored = usize::try_from(extent.stored).ok().and_then(|stored| rest.get(..stored))?;
            // A peer that sends wrong bytes can also send their checksum.
            let extent = Extent { crc: crc32c::crc32c(stored), ..extent };
            let run =
                Run { verified: true, ..Run::in_memory("fetched", Bytes::copy_from_slice(stored), extent) };
            records_of(&run).ok()?;
        }
    }
    Some(Vec::new())
}
