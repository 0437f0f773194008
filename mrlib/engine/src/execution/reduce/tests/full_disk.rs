//! Tests a reduce whose disk is full when it saves its checkpoint.

use super::*;
use std::os::unix::fs::symlink;

/// Makes writes to the checkpoint files `memory` and `state` in this folder fail with ENOSPC, until
/// these files are removed.
fn fill(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    for name in ["memory", "state"] {
        symlink("/dev/full", dir.join(name)).unwrap();
    }
}

#[test]
fn reduce_without_disk_space_continues_and_can_be_paused_again() {
    let records = |map: u8| (0..40u8).map(|n| (n.wrapping_mul(37).wrapping_add(map), n)).collect::<Vec<_>>();
    let maps: Vec<_> = (0..5).map(records).collect();
    for state_between_keys in [StateBetweenKeys::None, StateBetweenKeys::Savable] {
        for memory in [1, 1 << 20] {
            let (output, counters, _) = Case::new(&maps, memory, state_between_keys).run(&[]);
            for when in [When::Fetched(2), When::Compared(90), When::Reduced(20)] {
                let mut case = Case::new(&maps, memory, state_between_keys);
                fill(&case.checkpoint_dirs(0));
                // A refused pause is requested again. Only the first request is refused, because
                // the failed save removes the links to /dev/full.
                let ended = case.attempt(None, Some(when)).unwrap();
                assert!(matches!(ended, ReduceEnd::Paused(_)), "{when:?}: {ended:?}");
                assert_eq!(case.node.control.refusals(), 1, "{when:?}");
                let source = case.checkpoint_source(&Step { when, elsewhere: false, damage: Damage::None });
                case.node.attempt += 1;
                let ended = case.attempt(Some(source), None).unwrap();
                let ReduceEnd::Done(outcome) = ended else { panic!("{when:?}: {ended:?}") };
                let written = case.node.written.lock().unwrap();
                let bytes: Vec<u8> = outcome.pieces.iter().flat_map(|piece| written[piece].clone()).collect();
                assert!(bytes == output, "{when:?}: the output differs from an undisturbed run");
                assert_eq!(stable_counters(&counters), stable_counters(&outcome.counters), "{when:?}");
            }
        }
    }
}
