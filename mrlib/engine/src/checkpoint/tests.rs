//! Saves and restores checkpoints, also after they were truncated, damaged or swapped.

use super::*;
use crate::{
    fetch::remote_checkpoint::RemoteCheckpoint,
    scratch::Scratch,
    segment::{SegmentWriter, Stored},
};
use mrlib_api::{Liveness, TaskControl};
use std::{fs, io};

fn run_of(path: &Path, records: u32) -> Run {
    let mut writer = SegmentWriter::create(path, 1, true).unwrap();
    for number in 0..records {
        writer.append(0, &number.to_be_bytes(), b"value").unwrap();
    }
    let extent = writer.finish().unwrap().extents[0];
    Run::new(Stored::File(path.into()), extent, "run".into())
}

/// Returns a small state: a run in memory, a partly read run on disk, and an empty run.
fn state(dir: &Path) -> ReduceState {
    let (memory, disk) = (run_of(&dir.join("a"), 20), run_of(&dir.join("b"), 300));
    let bytes = fs::read(dir.join("a")).unwrap().into();
    let disk = read_some(disk, 100);
    let empty = Run::in_memory("nothing", bytes::Bytes::new(), Extent::default());
    let map = |number: u32| Some((format!("job_1.m{number}.0"), number, 7));
    let memory = Run::in_memory("memory", bytes, memory.extent);
    let run_of_map = [memory.clone(), memory.followed_by(disk), empty];
    ReduceState {
        stage: Stage::Reduce,
        runs: run_of_map
            .into_iter()
            .zip(0..)
            .map(|(run, number)| SourceRun { run, map: map(number) })
            .collect(),
        counters: [("A".to_owned(), 1), ("B".to_owned(), u64::MAX)].into(),
        pieces: vec!["/out/part-r-00000.0".into()],
        reducer: b"state".to_vec(),
        open_pass: Some(OpenPass { output_run: 0, inputs: 1 }),
        consumed_bytes: 11,
        is_resuming: true,
    }
}

fn records(run: &Run) -> Result<Vec<Vec<u8>>, TaskError> {
    let mut found = Vec::new();
    for part in run.parts() {
        let mut reader = part.open()?;
        while reader.next()? {
            found.push(reader.key().to_vec());
        }
    }
    Ok(found)
}

/// Returns the contents of a state, with all records of its runs, for comparison.
fn contents(state: &ReduceState) -> Result<impl PartialEq + std::fmt::Debug + use<>, TaskError> {
    let read = |run_of_map: &SourceRun| Ok((run_of_map.map.clone(), records(&run_of_map.run)?));
    let runs = state.runs.iter().map(read).collect::<Result<Vec<_>, TaskError>>()?;
    let raw = |run: &Run| run.parts().map(|part| part.extent.raw).sum::<u64>();
    let whole = state.consumed_bytes + state.runs.iter().map(|run_of_map| raw(&run_of_map.run)).sum::<u64>();
    let ReduceState { stage, counters, pieces, reducer, open_pass, .. } = state.clone();
    Ok((stage, counters, pieces, reducer, open_pass, runs, whole))
}

fn restore_from(dirs: &[PathBuf], attempt: &str, partition: u32) -> Result<ReduceState, TaskError> {
    let source = CheckpointSource { attempt: attempt.into(), dirs: dirs.to_vec(), addr: String::new() };
    let scratch = Scratch::new(vec!["/nowhere".into()]);
    let mut remote = RemoteCheckpoint::new("", b"", attempt, TaskControl::default(), Liveness::default());
    restore(&source, partition, &scratch, &mut remote)
}

#[test]
fn saved_checkpoint_restores_and_owns_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(dir.path());
    // A folder that cannot be created is skipped.
    fs::write(dir.path().join("file"), "").unwrap();
    let dirs = [dir.path().join("file/x"), dir.path().join("checkpoint")];
    let bytes = save(&dirs, "job_1.r2.0", 2, &state).unwrap();
    assert!(bytes > 0 && bytes < 1 << 20, "{bytes}");
    let before = contents(&state).unwrap();
    for name in ["a", "b"] {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let again = restore_from(&dirs, "job_1.r2.0", 2).unwrap();
    assert_eq!(contents(&again).unwrap(), before);
    // Save the restored state again.
    let next = [dir.path().join("next")];
    save(&next, "job_1.r2.1", 2, &again).unwrap();
    fs::remove_dir_all(&dirs[1]).unwrap();
    assert_eq!(contents(&restore_from(&next, "job_1.r2.1", 2).unwrap()).unwrap(), before);
    for (attempt, partition) in [("job_1.r2.0", 2), ("job_1.r2.1", 1)] {
        assert!(matches!(restore_from(&next, attempt, partition), Err(TaskError::CheckpointCorrupt(_))));
    }
    assert!(matches!(restore_from(&dirs, "job_1.r2.0", 2), Err(TaskError::CheckpointCorrupt(_))));
    assert!(save(&dirs[..1], "job_1.r2.2", 2, &again).is_err(), "the folder cannot be created");
}

/// Saves a checkpoint with empty runs in memory, as after a map without records for the reduce.
/// Checks that it has no `memory` file and can be restored.
#[test]
fn empty_runs_restore_without_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let empty = |number: u32| SourceRun {
        run: Run::in_memory("nothing", bytes::Bytes::new(), Extent::default()),
        map: Some((format!("job_1.m{number}.0"), number, 0)),
    };
    let disk = run_of(&dir.path().join("b"), 300);
    let runs = vec![empty(0), SourceRun { run: disk, map: Some(("job_1.m2.0".into(), 2, 0)) }, empty(1)];
    let state = ReduceState { runs, ..ReduceState::default() };
    let dirs = [dir.path().join("checkpoint")];
    save(&dirs, "job_1.r2.0", 2, &state).unwrap();
    assert!(!dirs[0].join("memory").exists());
    let again = restore_from(&dirs, "job_1.r2.0", 2).unwrap();
    assert_eq!(contents(&again).unwrap(), contents(&state).unwrap());
}

/// A checkpoint with impossible lengths is rejected even if its checksum is valid, because a task
/// may have written it.
#[test]
fn inconsistent_lengths_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("checkpoint")];
    save(&dirs, "job_1.r2.0", 2, &state(dir.path())).unwrap();
    let good = super::read(&dirs).unwrap();
    let read = |corrupt: fn(&mut mr::Checkpoint)| {
        let mut bad = good.clone();
        corrupt(&mut bad);
        fs::write(dirs[0].join("state"), super::encode(&bad)).unwrap();
        super::parts(&dirs).map(|parts| (parts.len(), super::info(&super::read(&dirs).unwrap())))
    };
    assert_eq!(read(|_| ()).unwrap().0, 2 + good.runs.len());
    let corruptions: [fn(&mut mr::Checkpoint); 6] = [
        |bad| bad.memory_bytes = u64::MAX,
        |bad| bad.consumed_bytes = u64::MAX,
        |bad| bad.runs[0].offset = u64::MAX,
        |bad| bad.runs.iter_mut().for_each(|run| run.stored = u64::MAX / 2),
        |bad| bad.runs[0].start = Some(mr::CheckpointPosition { block: u64::MAX, ..Default::default() }),
        |bad| bad.runs[0].start = Some(mr::CheckpointPosition { raw: u64::MAX, ..Default::default() }),
    ];
    for (number, corrupt) in corruptions.into_iter().enumerate() {
        assert!(matches!(read(corrupt), Err(TaskError::Damaged { .. })), "{number}");
    }
}

/// Reads some records of a run. Returns the remainder.
fn read_some(run: Run, records: u32) -> Run {
    let mut reader = run.open().unwrap();
    for _ in 0..records {
        assert!(reader.next().unwrap());
    }
    Run { start: Some(reader.position()), ..run }
}

#[test]
fn checkpoint_contains_only_unread_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("of-many");
    let mut writer = SegmentWriter::create(&path, 4, false).unwrap();
    for number in 0..400_000u32 {
        writer.append(number / 100_000, &number.to_be_bytes(), b"some value").unwrap();
    }
    let extents = writer.finish().unwrap().extents;
    let whole = fs::read(&path).unwrap();
    let in_memory = |partition: usize| {
        let Extent { offset, stored, .. } = extents[partition];
        let bytes = whole[offset as usize..][..stored as usize].to_vec();
        Run::in_memory("memory", bytes.into(), extents[partition])
    };
    let on_disk = Run::new(Stored::File(path.clone()), extents[2], "disk".into());
    let runs = [in_memory(0), read_some(in_memory(1), 80_000), read_some(on_disk, 80_000), in_memory(3)];
    let state = ReduceState {
        stage: Stage::Reduce,
        runs: runs.into_iter().map(|run| SourceRun { run, map: None }).collect(),
        ..ReduceState::default()
    };
    let dirs = [dir.path().join("checkpoint")];
    let started = begin_save(&dirs, &state.runs);
    let one = extents[0].stored;
    let written = started.memory_bytes();
    assert!(2 * one < written && written < 5 * one / 2, "{written} of runs of {one}");
    assert_eq!(fs::metadata(dirs[0].join("memory")).unwrap().len(), written);
    started.complete(&dirs, "job_1.r2.0", 2, &state).unwrap();
    // The file contains mostly other data, so only the unread part is copied.
    let copy = fs::metadata(dirs[0].join("run-2")).unwrap().len();
    assert!(copy < one / 4, "{copy} of {one}");
    let before = contents(&state).unwrap();
    fs::remove_file(&path).unwrap();
    let again = restore_from(&dirs, "job_1.r2.0", 2).unwrap();
    assert_eq!(contents(&again).unwrap(), before);
    // Read more records and save again: the parts that were not saved are not needed to verify the
    // remainder.
    let read_some = |SourceRun { run, map }: SourceRun| SourceRun { run: read_some(run, 10_000), map };
    let further = ReduceState { runs: again.runs.into_iter().map(read_some).collect(), ..again };
    let next = [dir.path().join("next")];
    save(&next, "job_1.r2.1", 2, &further).unwrap();
    let again = restore_from(&next, "job_1.r2.1", 2).unwrap();
    assert_eq!(contents(&again).unwrap(), contents(&further).unwrap());
    // All runs in memory are in one file, again after the second save.
    let files = fs::read_dir(&next[0]).unwrap().count();
    assert_eq!(files, 3, "state, memory and the copy");
}

#[test]
fn damaged_checkpoint_is_refused_or_restores_the_same_state() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(dir.path());
    let dirs = [dir.path().join("checkpoint")];
    save(&dirs, "job_1.r2.0", 2, &state).unwrap();
    let before = contents(&state).unwrap();
    let refused = |what: &str| {
        let read = restore_from(&dirs, "job_1.r2.0", 2).and_then(|state| contents(&state));
        match read {
            Ok(same) => assert!(same == before, "{what}: different contents"),
            Err(TaskError::CheckpointCorrupt(_) | TaskError::Damaged { .. }) => return true,
            Err(error) => panic!("{what}: {error}"),
        }
        false
    };
    for name in ["state", "memory", "run-2"] {
        let path = dirs[0].join(name);
        let whole = fs::read(&path).unwrap();
        // Replace the file: it may be a hard link to a file of another checkpoint.
        fs::remove_file(&path).unwrap();
        let mut refusals = 0;
        for at in 0..whole.len() {
            fs::write(&path, &whole[..at]).unwrap();
            assert!(refused(&format!("{name} cut at {at}")), "{name} cut at {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            refusals += usize::from(refused(&format!("{name} flipped at {at}")));
        }
        assert!(name == "run-2" || refusals == whole.len(), "{name}: {refusals} of {}", whole.len());
        fs::remove_file(&path).unwrap();
        assert!(refused(name), "without {name}");
        fs::write(&path, &whole).unwrap();
        assert!(!refused(name));
    }
}

#[test]
fn invalid_checkpoint_is_rejected() {
    let path = Path::new("x");
    let sound = mr::Checkpoint { stage: "merge".into(), ..mr::Checkpoint::default() };
    assert_eq!(decode(&encode(&sound), path).unwrap(), sound);
    let run = |file: &str| mr::CheckpointRun { file: file.into(), ..mr::CheckpointRun::default() };
    let bad = [
        mr::Checkpoint { stage: "lunch".into(), ..sound.clone() },
        mr::Checkpoint { stage: "map".into(), ..sound.clone() },
        mr::Checkpoint { runs: vec![run("../run")], ..sound.clone() },
        mr::Checkpoint { runs: vec![run("..")], ..sound.clone() },
    ];
    for bad in bad {
        assert!(decode(&encode(&bad), path).is_err(), "{bad:?}");
    }
    let mut newer = encode(&sound);
    let length = newer.len() - CRC_BYTES;
    newer[4] += 1;
    let crc = crc32c::crc32c(&newer[..length]);
    newer[length..].copy_from_slice(&crc.to_le_bytes());
    assert!(decode(&newer, path).unwrap_err().to_string().contains("version is not supported"));
}

#[test]
fn full_disk_is_skipped_and_is_an_error_if_it_is_the_only_disk() {
    let dir = tempfile::tempdir().unwrap();
    let state = state(dir.path());
    let dirs = [dir.path().join("full"), dir.path().join("roomy")];
    let fill = |name: &str| {
        fs::create_dir_all(&dirs[0]).unwrap();
        std::os::unix::fs::symlink("/dev/full", dirs[0].join(name)).unwrap();
    };
    for name in ["memory", "state"] {
        fill(name);
        save(&dirs, "job_1.r2.0", 2, &state).unwrap();
        let again = restore_from(&dirs, "job_1.r2.0", 2).unwrap();
        assert_eq!(contents(&again).unwrap(), contents(&state).unwrap(), "{name}");
        for dir in &dirs {
            fs::remove_dir_all(dir).unwrap();
        }
        fill(name);
        let error = save(&dirs[..1], "job_1.r2.0", 2, &state).unwrap_err();
        assert!(crate::scratch::disk_failed(&error) && error.to_string().contains("full"), "{error}");
        assert_eq!(fs::read_dir(&dirs[0]).unwrap().count(), 0, "the folder is not empty");
    }
}

/// A state that is too large to be restored is not saved, and the refusal lets the reduce continue.
#[test]
fn oversized_state_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("kept")];
    let long = ReduceState { reducer: vec![7; super::STATE_BYTES_MAX as usize], ..state(dir.path()) };
    let error = save(&dirs, "job_1.r2.0", 2, &long).unwrap_err();
    assert!(matches!(&error, TaskError::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge));
    assert!(error.to_string().contains("the state of the reducer; the maximum is 1048576"), "{error}");
    assert_eq!(crate::execution::reduce::refusal(&error), Some(mrlib_api::PreemptRefusal::ReducerNotSavable));
    assert_eq!(fs::read_dir(&dirs[0]).unwrap().count(), 0, "a file is left");
    let fits = ReduceState { reducer: vec![7; super::STATE_BYTES_MAX as usize / 2], ..state(dir.path()) };
    save(&dirs, "job_1.r2.0", 2, &fits).unwrap();
    assert_eq!(read(&dirs).unwrap().reducer, fits.reducer);
}
