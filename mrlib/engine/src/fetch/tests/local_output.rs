//! Tests map outputs on the disks of this node.

use super::*;
use crate::segment::{Index, SegmentWriter};

fn available_locally(attempt: &str, path: &std::path::Path) -> MapEvent {
    let (attempt, local_path) = (attempt.to_owned(), path.display().to_string());
    let available = MapAvailable { attempt, local_path, ..MapAvailable::default() };
    MapEvent { kind: Some(map_event::Kind::Available(available)) }
}

#[test]
fn local_output_is_verified_and_a_damaged_one_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |attempt: &str| {
        let path = folder.path().join(attempt);
        let mut writer = SegmentWriter::create(&path, PARTITION + 1, false).expect("a working disk");
        writer.append(PARTITION, attempt.as_bytes(), b"value").expect("a working disk");
        let index = writer.finish().expect("a working disk");
        index.write(&path).expect("a working disk");
        path
    };
    let (good, bad, again) = (write("job_1.m0.0"), write("job_1.m1.0"), write("job_1.m1.1"));
    let mut bytes = std::fs::read(&bad).expect("a working disk");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&bad, bytes).expect("a working disk");
    let mut shuffle =
        Shuffle::new(2, vec![available_locally("job_1.m0.0", &good), available_locally("job_1.m1.0", &bad)]);
    let replacement = available_locally("job_1.m1.1", &again);
    let mut rerun = false;
    shuffle.on_events = Box::new(move |fetch_failures, _| {
        if fetch_failures.is_empty() || std::mem::replace(&mut rerun, true) {
            return Vec::new();
        }
        assert_eq!(fetch_failures, ["job_1.m1.0"]);
        vec![withdrawn("job_1.m1.0"), replacement.clone()]
    });
    let fetched = shuffle.run().expect("both outputs exist");
    assert_eq!(fetched.keys().collect::<Vec<_>>(), ["job_1.m0.0", "job_1.m1.1"]);
    let extent = Index::read(&good).expect("a working disk").extents[PARTITION as usize];
    let whole = std::fs::read(&good).expect("a working disk");
    assert_eq!(fetched["job_1.m0.0"], whole[extent.offset as usize..][..extent.stored as usize]);
}

#[test]
fn local_read_error_is_no_fault_of_a_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("output");
    std::fs::write(&path, b"").expect("a working disk");
    std::fs::create_dir(Index::path_of(&path)).expect("a working disk");
    let mut shuffle = Shuffle::new(1, vec![available_locally("job_1.m0.0", &path)]);
    let error = shuffle.run().expect_err("a folder cannot be read");
    assert!(matches!(error, TaskError::Io { .. }), "{error}");
    assert!(shuffle.fetch_failures.is_empty(), "a fetch failure was reported");
}

#[test]
fn small_local_output_is_copied_to_memory_and_a_large_one_is_opened_when_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |map: u32, bytes: usize| {
        let path = folder.path().join(format!("m{map}"));
        let mut writer = SegmentWriter::create(&path, PARTITION + 1, false).expect("a working disk");
        if bytes > 0 {
            writer.append(PARTITION, b"key", &vec![b'x'; bytes]).expect("a working disk");
        }
        writer.finish().and_then(|index| index.write(&path)).expect("a working disk");
        available_locally(&format!("job_1.m{map}.0"), &path)
    };
    let events = vec![write(0, 0), write(1, 10), write(2, 3 << 20)];
    let mut shuffle = Shuffle::new(3, events);
    let (feed, options, scratch, control) =
        (shuffle.feed.clone(), shuffle.options.clone(), shuffle.scratch.clone(), TaskControl::default());
    let runs =
        fetch_all(&feed, &options, &scratch, &control, Vec::new(), &mut shuffle).expect("valid outputs");
    let runs: Vec<_> = runs.outputs.into_iter().filter(|fetched| fetched.run.extent.records > 0).collect();
    let kinds: Vec<_> = runs.iter().map(|fetched| (&fetched.run.stored, fetched.run.verified)).collect();
    // An output that is read again from disk is verified again.
    assert!(matches!(kinds[..], [(Stored::Memory(_), true), (Stored::File(_), false)]), "{kinds:?}");
    for FetchedOutput { run, .. } in &runs {
        assert!(run.open().and_then(|mut reader| reader.next()).expect("a valid run"));
    }
}
