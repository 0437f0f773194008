//! Tests reducers whose state cannot be saved, and checkpoints that disappear while they are read.

use super::*;

/// A reducer with state that cannot be saved can be paused before its last stage. In that stage it
/// refuses, and loses nothing.
#[test]
fn unsavable_reducer_refuses_preemption_and_continues() {
    let maps = vec![vec![(1, 1), (20, 2), (90, 3)], vec![(2, 5), (200, 7)]];
    let state_between_keys = StateBetweenKeys::NotSavable("it is only a test");
    let (output, counters, _) = Case::new(&maps, 1 << 20, state_between_keys).run(&[]);
    for records in 1..5 {
        let mut case = Case::new(&maps, 1 << 20, state_between_keys);
        let ended = case.attempt(None, Some(When::Reduced(records))).unwrap();
        let ReduceEnd::Done(outcome) = ended else { panic!("{ended:?}") };
        assert_eq!(stable_counters(&counters), stable_counters(&outcome.counters));
        let written = case.node.written.lock().unwrap();
        let bytes: Vec<u8> = outcome.pieces.iter().flat_map(|piece| written[piece].clone()).collect();
        assert!(bytes == output, "after {records} records");
        assert_eq!(
            case.node.control.last_refusal(),
            Some(PreemptRefusal::ReducerNotSavable),
            "after {records} records"
        );
    }
    let steps = [Step { when: When::Fetched(1), elsewhere: true, damage: Damage::None }];
    let (bytes, _, pauses) = Case::new(&maps, 1 << 20, state_between_keys).run(&steps);
    assert!(bytes == output && pauses[0] == 1, "{pauses:?}");
}

/// A file that disappears before it is read makes the checkpoint corrupt, and is not a failure of
/// the attempt.
#[test]
fn checkpoint_with_a_missing_file_is_corrupt() {
    let maps: Vec<_> = (0..6).map(|map| (0..40).map(|n| (n * 6 + map, n)).collect::<Vec<_>>()).collect();
    let mut case = Case::new(&maps, 1, StateBetweenKeys::None);
    let when = When::Compared(90);
    assert!(matches!(case.attempt(None, Some(when)).unwrap(), ReduceEnd::Paused(_)));
    let source = case.checkpoint_source(&Step { when, elsewhere: false, damage: Damage::None });
    let dir = source.dirs[0].clone();
    let error =
        TaskError::io(format!("open {}", dir.join("run-0").display()))(io::ErrorKind::NotFound.into());
    case.node.attempt += 1;
    let task = case.task(Some(source), MapFeed::new(6));
    assert!(matches!(as_checkpoint_error(&task, error), TaskError::CheckpointCorrupt(_)));
    let own = TaskError::io("open /elsewhere/spill-0")(io::ErrorKind::NotFound.into());
    assert!(matches!(as_checkpoint_error(&task, own), TaskError::Io { .. }));
}
