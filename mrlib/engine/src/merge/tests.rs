//! Compares merges with a sort of all records.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;

type Pair = (Vec<u8>, Vec<u8>);

fn backwards(a: &[u8], b: &[u8]) -> Ordering {
    b.iter().rev().cmp(a.iter().rev())
}

fn orders() -> impl Strategy<Value = SortOrder> {
    let keys = prop_oneof![
        Just(KeyOrder::Bytes),
        Just(KeyOrder::Reverse),
        Just(KeyOrder::By(backwards)),
        Just(KeyOrder::By(|a, b| a.len().cmp(&b.len())))
    ];
    (keys, any::<bool>()).prop_map(|(keys, values)| SortOrder { keys, values })
}

fn pair() -> impl Strategy<Value = Pair> {
    let key = prop_oneof![
        prop::collection::vec(0u8..3, 0..4),
        prop::collection::vec(0u8..2, 7..11),
        prop::collection::vec(any::<u8>(), 0..20)
    ];
    (key, prop::collection::vec(any::<u8>(), 0..6))
}

/// Returns a run in memory with these sorted records.
fn run(records: &[Pair]) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut writer = SegmentWriter::create(&path, 1, true).unwrap();
    for (key, value) in records {
        writer.append(0, key, value).unwrap();
    }
    let index = writer.finish().unwrap();
    Run::in_memory("run", Bytes::from(std::fs::read(path).unwrap()), index.extents[0])
}

fn sort(records: &mut [Pair], order: SortOrder) {
    records.sort_by(|a, b| order.compare((&a.0, &a.1), (&b.0, &b.1)));
}

fn read_all(mut cursor: impl Cursor) -> Vec<Pair> {
    let mut found = Vec::new();
    while cursor.next().unwrap() {
        found.push((cursor.key().to_vec(), cursor.value().to_vec()));
    }
    assert!(!cursor.next().unwrap(), "next returned true after the end");
    found
}

proptest! {
    #[test]
    fn order_of_prefixes_never_contradicts_the_order_of_keys(a in pair(), b in pair(), order in orders()) {
        let order = SortOrder { values: false, ..order };
        let by_prefix = order.prefix(&a.0).cmp(&order.prefix(&b.0));
        prop_assert!(by_prefix.is_eq() || by_prefix == order.compare((&a.0, &[]), (&b.0, &[])));
        let mut padded = a.0.clone();
        padded.resize(8, 0);
        prop_assert_eq!(prefix(&a.0), u64::from_be_bytes(padded[..8].try_into().unwrap()));
    }

    #[test]
    fn merge_is_a_stable_sort_of_all_runs(
        mut runs in prop::collection::vec(prop::collection::vec(pair(), 0..12), 0..12),
        order in orders(),
        factor in 2usize..6,
    ) {
        for records in &mut runs {
            sort(records, order);
        }
        let mut wanted = runs.concat();
        sort(&mut wanted, order);
        let stored: Vec<_> = runs.iter().map(|records| run(records)).collect();
        prop_assert_eq!(&read_all(Merge::open(&stored, order).unwrap()), &wanted);
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(vec![dir.path().into()]);
        let fewer = merge_down(stored, None, order, factor, true, &scratch, &mut || Ok(true)).unwrap().runs;
        prop_assert!(fewer.len() <= factor);
        prop_assert_eq!(&read_all(Merge::open(&fewer, order).unwrap()), &wanted);
        drop(fewer);
        prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn repeatedly_interrupted_merge_loses_nothing(
        mut runs in prop::collection::vec(prop::collection::vec(pair(), 0..12), 3..12),
        order in orders(),
        steps in 1u32..5,
    ) {
        for records in &mut runs {
            sort(records, order);
        }
        let mut wanted = runs.concat();
        sort(&mut wanted, order);
        let (mut runs, mut open_pass): (Vec<_>, _) = (runs.iter().map(|records| run(records)).collect(), None);
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(vec![dir.path().into()]);
        for round in 0.. {
            prop_assert!(round < 1000, "the merge does not end");
            let mut left = steps;
            let mut step = || {
                left = left.saturating_sub(1);
                Ok(left > 0)
            };
            let fewer = merge_down(runs, open_pass, order, 2, true, &scratch, &mut step).unwrap();
            (runs, open_pass) = (fewer.runs, fewer.open_pass);
            prop_assert_eq!(&read_all(Merge::open(&runs, order).unwrap()), &wanted);
            // If the first step already interrupts, the merge never makes progress.
            if fewer.is_done || steps == 1 {
                break;
            }
        }
    }

    #[test]
    fn groups_have_the_records_with_equal_keys(
        mut records in prop::collection::vec(pair(), 0..40),
        order in orders(),
        take in prop::collection::vec(0usize..4, 1..8),
    ) {
        sort(&mut records, order);
        // A grouping that is coarser than the order, if possible.
        let grouping = match order.keys {
            KeyOrder::Bytes => KeyOrder::By(|a, b| a.first().cmp(&b.first())),
            other => other,
        };
        let mut wanted: Vec<Vec<Pair>> = Vec::new();
        for record in &records {
            match wanted.last_mut() {
                Some(group) if grouping.compare(&group[0].0, &record.0).is_eq() => group.push(record.clone()),
                _ => wanted.push(vec![record.clone()]),
            }
        }
        let mut groups = Groups::new(Merge::open(&[run(&records)], order).unwrap(), grouping);
        for (at, group) in wanted.iter().enumerate() {
            let (key, mut values) = groups.next().unwrap().expect("as many groups");
            prop_assert_eq!(key, &group[0].0);
            // A reducer may stop early.
            let take = if at % 3 == 0 { take[at % take.len()] } else { usize::MAX };
            for (key, value) in group.iter().take(take) {
                prop_assert_eq!(values.next().unwrap().expect("as many values"), value);
                prop_assert_eq!(values.key(), key);
            }
            if take > group.len() {
                prop_assert!(values.next().unwrap().is_none());
                prop_assert_eq!(values.key(), &group[0].0);
            }
        }
        prop_assert!(groups.next().unwrap().is_none());
        prop_assert_eq!(groups.records(), records.len() as u64);
    }
}

#[test]
fn merge_passes_are_full_and_merge_the_smallest_adjacent_runs() {
    assert_eq!(next_pass(&[1; 64], 64), None);
    assert_eq!(next_pass(&[1; 65], 64), Some(0..2));
    assert_eq!(next_pass(&[9, 9, 1, 1, 9], 4), Some(2..4));
    assert_eq!(next_pass(&[9, 1, 1, 1, 9], 3), Some(1..4));
}

#[test]
fn merge_factor_is_limited_by_memory() {
    let mib = |n: u64| n << 20;
    assert_eq!(factor_for(vec![128 << 10; 1000], mib(16), 64), 64);
    assert_eq!(factor_for(vec![128 << 10; 1000], mib(4), 64), 32);
    // With little memory, merges still use more than two runs.
    assert_eq!(factor_for(vec![128 << 10; 1000], 1, 64), 8);
    let huge = [vec![mib(200); 5], vec![128 << 10; 100]].concat();
    assert_eq!(factor_for(huge.clone(), mib(64), 64), 2);
    assert_eq!(factor_for(huge.clone(), mib(700), 64), 3);
    assert_eq!(factor_for(huge, mib(1100), 64), 64);
    assert_eq!(factor_for(Vec::new(), 0, 1), 2);
}
