//! Compares the encoding of facts in the journal with the bytes in `facts.golden`.

use crate::storage::{self, Storage};
use journal::{Recovery, codec, crash::CrashDisk};
use mrcore::{
    Fact, PerPhase, Phase, Time,
    fact::{Entry, Start},
    ids::{Incarnation, JobId, RequestId, TaskId, TrackerId},
    job::{InputPin, JobOutcome, JobSpec, Payload, Priority, Program, Secret, Split},
    task::{AttemptResult, PreemptKind, Stage},
    why::Why,
};
use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path, sync::Arc};

/// Returns at least one example of every fact. Examples differ in the variants of enums that they
/// contain.
fn examples() -> Vec<Fact> {
    let (job, tracker) = (JobId(3), TrackerId(2));
    let task = TaskId { job, phase: Phase::Map, index: 1 };
    let reduce = TaskId { job, phase: Phase::Reduce, index: 4 };
    let (attempt, paused) = (task.attempt(2), reduce.attempt(0));
    let text = || "text".to_owned();
    let result =
        AttemptResult { counters: vec![("RECORDS".into(), 9)], pieces: vec!["/o/p".into()], bytes_out: 7 };
    let split = Split {
        source: "/in".into(),
        start: 10,
        end: 300,
        divisible: true,
        hosts: vec!["h1".into()],
        pin: InputPin { file: 5, length: 400 },
    };
    let spec = |program, priority| JobSpec {
        name: "name".into(),
        user: "user".into(),
        queue: "queue".into(),
        priority,
        program,
        splits: vec![split.clone()],
        reduces: 2,
        output: "/out".into(),
        slow_start: 0.5,
        speculation: true,
        split_slow: false,
        attempts_max: 4,
        conf: [("key".to_owned(), "value".to_owned())].into(),
        payload: Payload {
            inputs: vec!["/in".into()],
            files: vec!["/file".into()],
            staging: Some("/staging".into()),
            whole_files: true,
            shuffle_token: Secret::new(vec![1, 2]),
        },
    };
    let submitted = |program, priority| Fact::JobSubmitted {
        job,
        request: RequestId(6),
        spec: Arc::new(spec(program, priority)),
    };
    let mut facts = vec![
        Fact::JobTrackerStarted { epoch: 7, scheduler: "fifo".into() },
        Fact::TrackerJoined {
            tracker,
            name: "n1".into(),
            incarnation: Incarnation(8),
            host: "h1".into(),
            rack: "r1".into(),
            shuffle_addr: "h1:1".into(),
            logs_addr: "h1:2".into(),
            slots: PerPhase { map: 2, reduce: 1 },
        },
        Fact::TrackerSuspected { tracker, why: text() },
        Fact::TrackerRecovered { tracker },
        Fact::TrackerLost { tracker, why: text() },
        submitted(Program::Builtin("wordcount".into()), Priority::Normal),
        submitted(Program::Executable("/bin/job".into()), Priority::VeryHigh),
        Fact::JobCommitting { job },
        Fact::JobEnded { job, outcome: JobOutcome::Succeeded },
        Fact::JobEnded { job, outcome: JobOutcome::Failed(text()) },
        Fact::JobEnded { job, outcome: JobOutcome::Killed(text()) },
        Fact::JobForgotten { job },
        Fact::AttemptLaunched {
            attempt,
            tracker,
            speculative: true,
            resumed_from: Some(paused),
            why: Why::rule("oldest-job").with("share", 0.25),
        },
        Fact::MapSplit { attempt, position: 20, result: result.clone() },
        Fact::TaskReleased { task: reduce },
        Fact::CheckpointLost { attempt: paused, why: text() },
        Fact::AttemptSucceeded { attempt, result },
        Fact::AttemptFailed { attempt, error: text() },
        Fact::AttemptKilled { attempt, why: text(), bytes_in: 9, interrupted: true },
        Fact::MapOutputLost { attempt, why: text(), unfetched: true },
        Fact::MapOutputMoved { attempt },
        Fact::TrackerBlacklisted { job, tracker },
        Fact::IdsSkipped { epoch: 9, job: 10 },
        Fact::TrackerDraining { tracker, by: text(), until: Time(11) },
        Fact::DrainCancelled { tracker, by: text() },
        Fact::MapOutputCopied { attempt, tracker, bytes: 12 },
        Fact::CheckpointCopied { attempt: paused, tracker, bytes: 13 },
        Fact::PreemptionRefused { attempt, refusals: 14, why: text() },
        Fact::PreemptionDeadlineSet { attempt, until: Time(15) },
        Fact::TrackerForgotten { tracker, name: "n1".into(), why: text() },
    ];
    facts
        .extend([None, Some(text())].map(|refusal| Fact::RequestAnswered { request: RequestId(6), refusal }));
    for kind in [PreemptKind::Kill, PreemptKind::Split, PreemptKind::Pause] {
        facts.push(Fact::PreemptionRequested { attempt, kind, why: text(), fault: true, hold: false });
    }
    let stages = Stage::ALL.into_iter();
    let (bytes, bytes_in, interrupted) = (16, 17, true);
    let pause = |stage| Fact::AttemptPaused { attempt: paused, stage, bytes, bytes_in, interrupted };
    facts.extend(stages.map(pause));
    facts.push(Fact::StartRecorded { start: Start { epoch: 18, id: 19 }, accepted: true });
    facts
}

#[test]
fn encoding_of_every_fact_matches_the_golden_file() {
    let mut actual = String::new();
    let mut variants = BTreeSet::new();
    for fact in examples() {
        let entry = Entry { at: Time(1), fact };
        let bytes = codec::encode(&entry);
        assert_eq!(codec::decode::<Entry>(&bytes).unwrap(), entry);
        // The first byte is the version of the codec, the second the time, the third the variant.
        variants.insert(bytes[2]);
        let kind = format!("{:?}", entry.fact);
        let kind = kind.split_whitespace().next().unwrap();
        write!(actual, "{kind} ").unwrap();
        for byte in &bytes {
            write!(actual, "{byte:02x}").unwrap();
        }
        actual.push('\n');
    }
    let next = variants.len() as u8;
    assert!(variants.iter().copied().eq(0..next), "an example of a fact is missing: {variants:?}");
    let error = codec::decode::<Entry>(&[codec::VERSION, 1, next]).unwrap_err().to_string();
    assert!(error.contains("variant index"), "an example of the fact with number {next} is missing: {error}");

    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/facts.golden");
    if std::env::var_os("FERMATA_BLESS").is_some() {
        fs::write(&golden, &actual).unwrap();
    }
    let expected = fs::read_to_string(&golden).unwrap();
    for (expected, actual) in expected.lines().zip(actual.lines()) {
        assert_eq!(
            actual, expected,
            "the encoding of a fact has changed, so journals of earlier builds cannot be read: increase LAYOUT in \
             base/journal/src/home.rs, then run this test with FERMATA_BLESS=1"
        );
    }
    assert_eq!(actual.lines().count(), expected.lines().count(), "run this test with FERMATA_BLESS=1");
}

#[test]
fn error_for_an_undecodable_record_says_that_another_build_wrote_it() {
    let disk = CrashDisk::new();
    let storage = Storage::open_log(Arc::new(disk.clone()), "c".into(), Recovery::Refuse).unwrap();
    let appended = storage.log.append(&[codec::VERSION, 1, u8::MAX]).unwrap();
    storage.log.sync(appended).unwrap();
    drop(storage);
    let storage = Storage::open_log(Arc::new(disk), "c".into(), Recovery::Refuse).unwrap();
    let error = storage::read_entries(storage.replay, |_| Ok(())).unwrap_err().to_string();
    assert!(error.starts_with("journal: record 1 cannot be decoded: "), "{error}");
    assert!(error.contains("another build wrote it"), "{error}");
}
