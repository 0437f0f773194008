//! Compares the output of the sort buffer with a sort in memory.

use super::*;
use crate::partition::HashPartitioner;
use mrlib_api::{KeyFields, KeyOrder, Partitioner, Values};
use proptest::prelude::*;

type Pair = (Vec<u8>, Vec<u8>);

/// Adds eight-byte numbers, in place or not.
struct Sum {
    in_place: bool,
}

fn number(value: &[u8]) -> u64 {
    let mut eight = [0; 8];
    eight[..value.len()].copy_from_slice(value);
    u64::from_le_bytes(eight)
}

impl Reducer for Sum {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let mut sum = 0u64;
        while let Some(value) = values.next()? {
            sum = sum.wrapping_add(number(value));
        }
        let counter = context.counter("SUMS");
        context.add(counter, 1);
        out.emit(key, &sum.to_le_bytes())
    }

    fn fold(&mut self, into: &mut [u8], value: &[u8]) -> bool {
        if self.in_place
            && let Ok(sum) = <&mut [u8; 8]>::try_from(into)
        {
            *sum = u64::from_le_bytes(*sum).wrapping_add(number(value)).to_le_bytes();
            return true;
        }
        false
    }

    fn adds(&self) -> bool {
        self.in_place
    }
}

/// Emits all pairs unchanged: such a combiner must not change the result.
struct Identity;

impl Reducer for Identity {
    fn reduce(
        &mut self,
        _: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _: &mut Context,
    ) -> Result<(), TaskError> {
        let mut all = Vec::new();
        while let Some(value) = values.next()? {
            let value = value.to_vec();
            all.push((values.key().to_vec(), value));
        }
        all.iter().try_for_each(|(key, value)| out.emit(key, value))
    }
}

/// Partitions by the first byte of the value.
struct ByValue;

impl Partitioner for ByValue {
    fn partition(&self, _: &[u8], value: &[u8], partitions: u32) -> u32 {
        u32::from(value.first().copied().unwrap_or(0)) % partitions
    }
}

struct Case {
    spec: SortSpec,
    by_value: bool,
    combiner: Option<Box<dyn Reducer>>,
}

/// Sorts pairs with the buffer. Returns the pairs of each partition, the counts and the bytes of
/// the output.
fn sort(case: Case, pairs: &[Pair]) -> (Vec<Vec<Pair>>, SortCounts, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let disks = [dir.path().join("a"), dir.path().join("b")];
    for disk in &disks {
        std::fs::create_dir(disk).unwrap();
    }
    let partitioning =
        if case.by_value { Partitioning::Custom(Box::new(ByValue)) } else { Partitioning::Hash };
    let mut buffer = MapBuffer::new(
        case.spec,
        partitioning,
        case.combiner,
        Scratch::new(disks.clone().into()),
        Liveness::default(),
    );
    for (key, value) in pairs {
        buffer.emit(key, value).unwrap();
    }
    let path = dir.path().join("out");
    // Every write to this file fails with a full disk. Without pairs nothing is written.
    let full = dir.path().join("full");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let places = if pairs.is_empty() { vec![path.clone()] } else { vec![full.clone(), path.clone()] };
    let (index, counts) = buffer.finish(&places, &mut || Ok(())).unwrap();
    assert_eq!(Index::read(&path).unwrap(), index);
    assert!(pairs.is_empty() || full.symlink_metadata().is_err(), "the partial file was not removed");
    for disk in disks {
        assert_eq!(std::fs::read_dir(disk).unwrap().count(), 0, "spills were not removed");
    }
    let read = |partition| {
        let mut reader = Run::of_file(path.clone(), partition).unwrap().open().unwrap();
        let mut found = Vec::new();
        while reader.next().unwrap() {
            found.push((reader.key().to_vec(), reader.value().to_vec()));
        }
        found
    };
    ((0..case.spec.partitions).map(read).collect(), counts, std::fs::read(&path).unwrap())
}

/// Partitions and sorts pairs in memory.
fn model(case: &Case, pairs: &[Pair]) -> Vec<Vec<Pair>> {
    let SortSpec { partitions, order, .. } = case.spec;
    let mut all = vec![Vec::new(); partitions as usize];
    for (key, value) in pairs {
        let by_value = ByValue.partition(key, value, partitions);
        let by_hash = HashPartitioner.partition(key, value, partitions);
        all[if case.by_value { by_value } else { by_hash } as usize].push((key.clone(), value.clone()));
    }
    for own in &mut all {
        own.sort_by(|a, b| order.compare((&a.0, &a.1), (&b.0, &b.1)));
    }
    all
}

/// Returns the sums of adjacent values with equal keys.
fn summed(parts: &[Vec<Pair>], order: SortOrder) -> Vec<Vec<(Vec<u8>, u64)>> {
    let one = |own: &Vec<Pair>| {
        let same = |a: &Pair, b: &Pair| order.keys.compare(&a.0, &b.0).is_eq();
        let sum = |group: &[Pair]| group.iter().fold(0u64, |sum, pair| sum.wrapping_add(number(&pair.1)));
        own.chunk_by(same).map(|group| (group[0].0.to_ascii_lowercase(), sum(group))).collect()
    };
    parts.iter().map(one).collect()
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop::sample::select(&b"abAB"[..]), 0..3),
        prop::collection::vec(0u8..2, 0..10),
        prop::collection::vec(any::<u8>(), 0..20)
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let keys = prop_oneof![
        Just(KeyOrder::Bytes),
        Just(KeyOrder::Reverse),
        Just(KeyOrder::By(|a, b| a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase()))),
        Just(KeyOrder::Fields(KeyFields::parse("-k2,2 -k1r", b'a').expect("valid options")))
    ];
    let memory = prop_oneof![0u64..2000, 2000u64..20_000];
    (keys, any::<bool>(), 1u32..5, memory, 2usize..6, any::<bool>(), any::<bool>()).prop_map(
        |(keys, values, partitions, memory_bytes, merge_factor, compress, by_value)| {
            let order = SortOrder { keys, values };
            let spec = SortSpec { partitions, order, memory_bytes, merge_factor, compress };
            Case { spec, by_value, combiner: None }
        },
    )
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, by value: {}", self.spec, self.by_value)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    #[test]
    fn output_is_a_stable_sort_by_partition(
        case in case(),
        pairs in prop::collection::vec((key(), prop::collection::vec(any::<u8>(), 0..30)), 0..200),
    ) {
        let wanted = model(&case, &pairs);
        let (found, counts, _) = sort(case, &pairs);
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(counts.records, pairs.len() as u64);
        prop_assert_eq!(counts.combine_in, 0);
    }

    #[test]
    fn combiner_does_not_change_the_sums(
        case in case(),
        in_place: bool,
        pairs in prop::collection::vec((key(), prop::collection::vec(any::<u8>(), 0..9)), 0..300),
    ) {
        let order = case.spec.order;
        let plain = summed(&model(&case, &pairs), order);
        let (spec, by_value) = (case.spec, case.by_value);
        let with = |combiner: Box<dyn Reducer>| Case { spec, by_value, combiner: Some(combiner) };
        let (found, counts, bytes) = sort(with(Box::new(Sum { in_place })), &pairs);
        prop_assert_eq!(&summed(&found, order), &plain);
        for own in &found {
            prop_assert!(own.is_sorted_by(|a, b| order.compare((&a.0, &a.1), (&b.0, &b.1)).is_le()));
        }
        prop_assert!(counts.combine_in >= counts.combine_out);
        let (_, _, again) = sort(with(Box::new(Sum { in_place })), &pairs);
        prop_assert_eq!(bytes, again, "a map run again gives the same bytes");
        // Compare the values of a key as a set: the input of a combiner has no order within a key
        // unless the job requests it.
        let (same, _, _) = sort(with(Box::new(Identity)), &pairs);
        let in_order = |mut parts: Vec<Vec<Pair>>| {
            for own in &mut parts {
                own.sort();
            }
            parts
        };
        prop_assert_eq!(in_order(same), in_order(model(&with(Box::new(Identity)), &pairs)));
    }
}

fn spec(memory_bytes: u64) -> SortSpec {
    let order = SortOrder::default();
    SortSpec { partitions: 3, order, memory_bytes, merge_factor: 8, compress: true }
}

#[test]
fn thousands_of_spills_are_merged_in_several_passes() {
    let pairs: Vec<Pair> =
        (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761).to_be_bytes().into(), b"v".into())).collect();
    let case = Case { spec: spec(290), by_value: false, combiner: None };
    let wanted = model(&case, &pairs);
    let (found, counts, _) = sort(case, &pairs);
    assert!(found == wanted);
    assert!(counts.spilled > 4 * 20_000, "several passes: {}", counts.spilled);
}

#[test]
fn pairs_that_exceed_the_memory_are_sorted() {
    let mut pairs: Vec<Pair> = (0..40_000u64)
        .map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().into(), vec![7; 60]))
        .collect();
    pairs.push((b"long".to_vec(), vec![1; 3 << 20]));
    pairs.insert(100, (vec![9; 2 << 20], b"".to_vec()));
    let case = Case { spec: spec(256 << 10), by_value: false, combiner: None };
    let wanted = model(&case, &pairs);
    let (found, counts, _) = sort(case, &pairs);
    assert!(found == wanted);
    assert!(counts.bytes > 10 * (256 << 10));
    let case = Case { spec: spec(256 << 10), by_value: false, combiner: Some(Box::new(Identity)) };
    let (found, _, _) = sort(case, &pairs);
    assert!(found == wanted, "with a combiner that changes nothing");
}

#[test]
fn few_distinct_keys_are_combined_without_spills() {
    for in_place in [true, false] {
        let pairs: Vec<Pair> = (0..100_000u32)
            .map(|n| (format!("key number {}", n % 100).into_bytes(), 1u64.to_le_bytes().into()))
            .collect();
        let case = Case { spec: spec(64 << 10), by_value: false, combiner: Some(Box::new(Sum { in_place })) };
        let (found, counts, _) = sort(case, &pairs);
        let all = found.concat();
        assert_eq!(all.len(), 100);
        assert!(all.iter().all(|pair| number(&pair.1) == 1000));
        assert_eq!((counts.combine_in, counts.combine_out, counts.spilled), (100_000, 100, 100));
        assert_eq!(counts.combiner.counters().contains_key("SUMS"), !in_place);
    }
}

#[test]
fn spill_repeated_after_a_full_disk_counts_once() {
    let counted = |full: bool| {
        let dir = tempfile::tempdir().unwrap();
        let disks = [dir.path().join("a"), dir.path().join("b")];
        for disk in &disks {
            std::fs::create_dir(disk).unwrap();
        }
        // Every write to these files fails with a full disk.
        for spill in 0..if full { 100 } else { 0 } {
            std::os::unix::fs::symlink("/dev/full", disks[0].join(format!("spill-{spill}"))).unwrap();
        }
        let combiner: Option<Box<dyn Reducer>> = Some(Box::new(Sum { in_place: false }));
        let scratch = Scratch::new(disks.into());
        let mut buffer =
            MapBuffer::new(spec(16 << 10), Partitioning::Hash, combiner, scratch, Liveness::default());
        for n in 0..20_000u32 {
            buffer.emit(format!("key {}", n % 1000).as_bytes(), &1u64.to_le_bytes()).unwrap();
        }
        let (_, counts) = buffer.finish(&[dir.path().join("out")], &mut || Ok(())).unwrap();
        (counts.combiner.counters(), counts.combine_in, counts.combine_out, counts.spilled)
    };
    let counts = counted(false);
    assert!(counts.3 > 2000, "the buffer must spill: {counts:?}");
    assert_eq!(counted(true), counts);
}

#[test]
fn misbehaving_partitioner_or_combiner_is_an_error() {
    struct Wild;
    impl Partitioner for Wild {
        fn partition(&self, _: &[u8], _: &[u8], partitions: u32) -> u32 {
            partitions
        }
    }
    struct Other;
    impl Reducer for Other {
        fn reduce(
            &mut self,
            _: &[u8],
            _: &mut dyn Values,
            out: &mut dyn Emit,
            _: &mut Context,
        ) -> Result<(), TaskError> {
            out.emit(b"other", b"")
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(vec![dir.path().into()]);
    let mut buffer = MapBuffer::new(
        spec(1000),
        Partitioning::Custom(Box::new(Wild)),
        None,
        scratch.clone(),
        Liveness::default(),
    );
    let error = buffer.emit(b"a", b"").unwrap_err().to_string();
    assert_eq!(error, "the partitioner chose partition 3, but the job has 3 partitions, numbered from 0");
    let mut buffer =
        MapBuffer::new(spec(1000), Partitioning::Hash, Some(Box::new(Other)), scratch, Liveness::default());
    buffer.emit(b"a", b"").unwrap();
    buffer.emit(b"a", b"").unwrap();
    let error = buffer.finish(&[dir.path().join("out")], &mut || Ok(())).unwrap_err().to_string();
    assert_eq!(error, "the combiner emitted key \"other\" for key \"a\": a combiner must not change keys");
}
