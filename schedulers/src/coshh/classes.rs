//! Computes the classes of jobs and the nodes suggested for them. This is the long computation,
//! with plain numbers as input and output.
//!
//! Jobs with the same user, program, size and priority are a *kind*. Kinds that take about the same
//! time on every node form a class. There are two classifications, one of the kinds whose users
//! have a minimum share, and one of all kinds. Both classifications and their linear programs are
//! one [`Problem`].

use super::{
    kmeans::{cluster, distance2, mean},
    lp::allocate,
};
use mrcore::compute::{Numbers, Problem};
use std::collections::{BTreeMap, BTreeSet};

/// A node is suggested for a class only if the class should get more than this fraction of the
/// node.
pub(super) const PART_MIN: f64 = 1e-9;

/// Nodes are merged in the linear program if the logarithms of their rates differ by less than
/// about this, for every class.
const MERGED_RATE_DIFFERENCE: f64 = 0.1;

/// The properties of one kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct KindFacts {
    /// Kinds of different ranks (priority and weight of the user) are in different classes.
    pub(super) rank: usize,
    /// The number of the user. Each rank has at most as many classes as users.
    pub(super) user: usize,
    /// Whether the user has a minimum share.
    pub(super) has_min_share: bool,
    /// Arrival rate in jobs per second.
    pub(super) arrivals: f64,
    /// Seconds that a job would take on each node alone; 0 if it cannot run there.
    pub(super) times: Vec<f64>,
    /// Whether each node is fast enough to run it.
    pub(super) fast_enough: Vec<bool>,
}

/// Returns the features of a kind by which it fits a class: the logarithms of its times.
pub(super) fn features(times: &[f64]) -> Vec<f64> {
    times.iter().map(|seconds| if *seconds > 0.0 { seconds.ln() } else { 0.0 }).collect()
}

/// Returns the distance between the [`features`] of two kinds; 0.5 means that their times differ by
/// a factor of 1.6.
pub(super) fn distance(a: &[f64], b: &[f64]) -> f64 {
    distance2(a, b).sqrt()
}

/// One classification.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Classes {
    /// The class of each kind, in the order of the kinds in the problem.
    pub(super) class_of_kind: Vec<Option<usize>>,
    /// The centre of each class.
    pub(super) centres: Vec<Vec<f64>>,
    /// The fraction of each node that each class should get, by class and node.
    pub(super) delta: Vec<Vec<f64>>,
    /// The factor by which all arrival rates could grow before the cluster is saturated.
    pub(super) lambda: f64,
}

/// Returns the problem to solve: both classifications of these kinds, on this number of nodes. With
/// `literal`, kinds are clustered by rates, as in the paper, and only equal nodes are merged.
pub(super) fn problem(kinds: &[KindFacts], nodes: usize, literal: bool, seed: u64) -> Problem {
    let list = |value: fn(&KindFacts) -> f64| kinds.iter().map(value).collect::<Vec<f64>>();
    let input = Numbers::default()
        .with("rank", list(|kind| kind.rank as f64))
        .with("user", list(|kind| kind.user as f64))
        .with("has_min_share", list(|kind| f64::from(u8::from(kind.has_min_share))))
        .with("arrivals", list(|kind| kind.arrivals))
        .with("times", kinds.iter().flat_map(|kind| kind.times.iter().copied()).collect())
        .with(
            "fit",
            kinds
                .iter()
                .flat_map(|kind| kind.fast_enough.iter().map(|fit| f64::from(u8::from(*fit))))
                .collect(),
        )
        .with("nodes", vec![nodes as f64])
        .with("literal", vec![f64::from(u8::from(literal))])
        .with("seed", vec![seed as f64]);
    Problem { name: "coshh-classes", input, solve }
}

/// Reads the two classifications from a solution; `None` if the computation failed.
pub(super) fn read_classes(numbers: &Numbers, nodes: usize) -> Option<[Classes; 2]> {
    let names = [["of1", "centres1", "delta1", "lambda1"], ["of2", "centres2", "delta2", "lambda2"]];
    let read = |[of, centres, delta, lambda]: [&str; 4]| {
        let rows = |name: &str| -> Vec<Vec<f64>> {
            numbers.list(name).chunks(nodes.max(1)).map(<[f64]>::to_vec).collect()
        };
        Some(Classes {
            class_of_kind: numbers
                .list(of)
                .iter()
                .map(|number| (*number >= 0.0).then_some(*number as usize))
                .collect(),
            centres: rows(centres),
            delta: rows(delta),
            lambda: numbers.first_number(lambda)?,
        })
    };
    let [first, second] = names.map(read);
    Some([first?, second?])
}

fn solve(input: &Numbers) -> Numbers {
    let nodes = input.first_number("nodes").unwrap_or(0.0) as usize;
    let seed = input.first_number("seed").unwrap_or(0.0) as u64;
    let number = |name: &str, at: usize| input.list(name).get(at).copied().unwrap_or(0.0);
    let rows = input.list("times").chunks(nodes.max(1)).enumerate();
    let kinds: Vec<KindFacts> = rows
        .map(|(at, times)| KindFacts {
            rank: number("rank", at) as usize,
            user: number("user", at) as usize,
            has_min_share: number("has_min_share", at) > 0.0,
            arrivals: number("arrivals", at),
            times: times.to_vec(),
            fast_enough: (0..times.len()).map(|node| number("fit", at * nodes + node) > 0.0).collect(),
        })
        .collect();
    let literal = input.first_number("literal").unwrap_or(0.0) > 0.0;
    let [first, second] = [true, false].map(|min_share| classify(&kinds, min_share, literal, seed));
    let of = |classes: &Classes| -> Vec<f64> {
        classes.class_of_kind.iter().map(|class| class.map_or(-1.0, |class| class as f64)).collect()
    };
    Numbers::default()
        .with("of1", of(&first))
        .with("centres1", first.centres.concat())
        .with("delta1", first.delta.concat())
        .with("lambda1", vec![first.lambda])
        .with("of2", of(&second))
        .with("centres2", second.centres.concat())
        .with("delta2", second.delta.concat())
        .with("lambda2", vec![second.lambda])
}

/// Computes one classification and solves its linear program. Kinds that cannot run anywhere are in
/// no class.
fn classify(kinds: &[KindFacts], min_share_only: bool, literal: bool, seed: u64) -> Classes {
    let takes_part = |kind: &KindFacts| {
        (kind.has_min_share || !min_share_only) && kind.times.iter().any(|seconds| *seconds > 0.0)
    };
    let points: Vec<Vec<f64>> = kinds.iter().map(|kind| clustering_point(kind, literal)).collect();
    let mut ranks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, _) in kinds.iter().enumerate().filter(|(_, kind)| takes_part(kind)) {
        ranks.entry(kinds[at].rank).or_default().push(at);
    }
    let mut classes = Classes { class_of_kind: vec![None; kinds.len()], ..Classes::default() };
    let mut count = 0;
    for members in ranks.values() {
        let users: BTreeSet<usize> = members.iter().map(|at| kinds[*at].user).collect();
        let their: Vec<&[f64]> = members.iter().map(|at| points[*at].as_slice()).collect();
        let found = cluster(&their, users.len(), seed);
        for (at, number) in members.iter().zip(&found) {
            classes.class_of_kind[*at] = Some(count + number);
        }
        count += found.iter().max().map_or(0, |last| last + 1);
    }
    allocate_nodes(kinds, count, literal, &mut classes);
    classes
}

/// Returns the features that k-means uses: the logarithms of the times and of the arrival rate. With
/// `literal`, the execution rates and the arrival rate, as in section 3.1 of the paper.
fn clustering_point(kind: &KindFacts, literal: bool) -> Vec<f64> {
    let (mut point, arrivals) = if literal {
        (kind.times.iter().copied().map(execution_rate).collect(), kind.arrivals)
    } else {
        (features(&kind.times), kind.arrivals.max(1e-9).ln())
    };
    point.push(arrivals);
    point
}

/// Returns the rate of a job that takes this long on a node; 0 if it cannot run there.
fn execution_rate(seconds: f64) -> f64 {
    if seconds > 0.0 { 1.0 / seconds } else { 0.0 }
}

/// Solves the linear program of a classification.
fn allocate_nodes(kinds: &[KindFacts], count: usize, literal: bool, classes: &mut Classes) {
    let (mut alpha, mut mu) = (Vec::new(), Vec::new());
    for class in 0..count {
        let members: Vec<&KindFacts> = kinds
            .iter()
            .zip(&classes.class_of_kind)
            .filter(|(_, of)| **of == Some(class))
            .map(|(kind, _)| kind)
            .collect();
        let middles: Vec<Vec<f64>> = members.iter().map(|kind| features(&kind.times)).collect();
        classes.centres.push(mean(middles.iter().map(Vec::as_slice)).unwrap_or_default());
        let arrivals: f64 = members.iter().map(|kind| kind.arrivals).sum();
        let nodes = members.first().map_or(0, |kind| kind.times.len());
        let rate = |node: usize| {
            let each = members.iter().filter(|kind| kind.times[node] > 0.0 && kind.fast_enough[node]);
            each.map(|kind| kind.arrivals / kind.times[node]).sum::<f64>() / arrivals.max(f64::MIN_POSITIVE)
        };
        alpha.push(arrivals.max(f64::MIN_POSITIVE));
        mu.push((0..nodes).map(rate).collect::<Vec<f64>>());
    }
    let (of_node, merged, counts) = merge_similar_nodes(&mu, literal);
    if let Some(found) = allocate(&alpha, &merged, &counts) {
        classes.lambda = found.lambda;
        classes.delta =
            found.delta.iter().map(|row| of_node.iter().map(|group| row[*group]).collect()).collect();
    }
}

/// Merges nodes on which every class runs about equally fast. A cluster of a thousand nodes of
/// three types needs only three columns, and all nodes of a type get the same solution. Returns the
/// group of each node, the mean rate of each class on each group, and the number of nodes in each
/// group. With `literal`, only nodes with equal rates are merged: the program of the paper has a
/// column for each node, and an even division among equal columns is one of its solutions.
fn merge_similar_nodes(mu: &[Vec<f64>], literal: bool) -> (Vec<usize>, Vec<Vec<f64>>, Vec<f64>) {
    let nodes = mu.first().map_or(0, Vec::len);
    let step = |rate: f64| match rate {
        _ if literal => rate.to_bits().cast_signed(),
        rate if rate > 0.0 => (rate.ln() / MERGED_RATE_DIFFERENCE).round() as i64,
        _ => i64::MIN,
    };
    let mut groups: BTreeMap<Vec<i64>, usize> = BTreeMap::new();
    let (mut of_node, mut counts) = (Vec::new(), Vec::new());
    let mut merged: Vec<Vec<f64>> = vec![Vec::new(); mu.len()];
    for node in 0..nodes {
        let next = groups.len();
        let group = *groups.entry(mu.iter().map(|row| step(row[node])).collect()).or_insert(next);
        if group == next {
            counts.push(0.0);
            for row in &mut merged {
                row.push(0.0);
            }
        }
        counts[group] += 1.0;
        merged.iter_mut().zip(mu).for_each(|(sums, row)| sums[group] += row[node]);
        of_node.push(group);
    }
    for row in &mut merged {
        row.iter_mut().zip(&counts).for_each(|(sum, count)| *sum /= count);
    }
    (of_node, merged, counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(user: usize, rank: usize, has_min_share: bool, arrivals: f64, times: &[f64]) -> KindFacts {
        KindFacts {
            rank,
            user,
            has_min_share,
            arrivals,
            times: times.to_vec(),
            fast_enough: vec![true; times.len()],
        }
    }

    fn solve_classes(kinds: &[KindFacts]) -> [Classes; 2] {
        let nodes = kinds[0].times.len();
        read_classes(&problem(kinds, nodes, false, 1).solve(), nodes).unwrap()
    }

    #[test]
    fn two_classes_on_two_resources_match_the_paper() {
        let kinds =
            [kind(0, 0, true, 2.45, &[1.0 / 9.0, 1.0 / 5.0]), kind(1, 0, false, 2.45, &[1.0 / 2.0, 1.0])];
        let [minimum, all] = solve_classes(&kinds);
        assert!((all.lambda - 1.0204).abs() < 5e-5, "{all:?}");
        let (one, two) = (all.class_of_kind[0].unwrap(), all.class_of_kind[1].unwrap());
        let wanted = [(one, [0.0, 0.5]), (two, [1.0, 0.5])];
        for (class, parts) in wanted {
            assert!(all.delta[class].iter().zip(parts).all(|(a, b)| (a - b).abs() < 1e-6), "{all:?}");
        }
        // Alone, the first class has both resources: (9 + 5) / 2.45.
        assert_eq!(minimum.class_of_kind, [Some(0), None]);
        assert!((minimum.lambda - 14.0 / 2.45).abs() < 1e-6, "{minimum:?}");
    }

    #[test]
    fn kinds_of_different_ranks_are_in_different_classes() {
        // A small version of the first example of the paper: users 0 and 2 are similar, user 1 has
        // a different rank, user 3 is much slower.
        let kinds = [
            kind(0, 0, true, 1.0, &[10.0, 20.0]),
            kind(1, 1, true, 1.0, &[10.0, 20.0]),
            kind(2, 0, true, 1.0, &[11.0, 21.0]),
            kind(2, 0, true, 1.0, &[10.5, 20.5]),
            kind(3, 0, false, 1.0, &[900.0, 2000.0]),
        ];
        let [minimum, all] = solve_classes(&kinds);
        assert_ne!(all.class_of_kind[0], all.class_of_kind[1]);
        assert_ne!(all.class_of_kind[0], all.class_of_kind[4]);
        assert_eq!(minimum.class_of_kind[4], None);
        // Three users of rank 0 make at most three classes. Every class gets a part of some node.
        assert!(all.delta.iter().all(|row| row.iter().any(|part| *part > PART_MIN)), "{all:?}");
    }

    /// Either class would get both nodes if it were the only one. The first may not run on the
    /// second node, so the second class gets that node.
    #[test]
    fn class_is_not_suggested_for_a_node_where_it_may_not_run() {
        let slow = |user| KindFacts {
            fast_enough: vec![true, false],
            ..kind(user, user, false, 1.0, &[1.0, 100.0])
        };
        let [_, all] = solve_classes(&[slow(0), kind(1, 1, false, 1.0, &[1.0, 100.0])]);
        let (one, other) = (all.class_of_kind[0].unwrap(), all.class_of_kind[1].unwrap());
        assert!(all.delta[one][1] <= PART_MIN && all.delta[one][0] > PART_MIN, "{all:?}");
        assert!(all.delta[other][1] > PART_MIN, "{all:?}");
    }

    #[test]
    fn similar_nodes_are_merged_into_one_group() {
        let mu = vec![vec![1.0, 1.02, 5.0, 1.01]];
        let (of_node, merged, counts) = merge_similar_nodes(&mu, false);
        assert_eq!(of_node, [0, 0, 1, 0]);
        assert_eq!(counts, [3.0, 1.0]);
        assert!((merged[0][0] - 1.01).abs() < 1e-9);
    }

    #[test]
    fn only_equal_nodes_are_merged_with_literal() {
        let (of_node, merged, counts) = merge_similar_nodes(&[vec![1.0, 1.02, 1.0, 0.0]], true);
        assert_eq!((of_node, counts), (vec![0, 1, 0, 2], vec![2.0, 1.0, 1.0]));
        assert_eq!(merged, [[1.0, 1.02, 0.0]]);
    }

    /// Times of 1, 4 and 1000 s. The logarithms of 1 and 4 are near, but the rates of 4 and 1000
    /// are: 0.25 and 0.001.
    #[test]
    fn kinds_are_clustered_by_rates_with_literal() {
        let times = [1.0, 4.0, 1000.0];
        let kinds = [0, 1, 0].into_iter().zip(times).map(|(user, time)| kind(user, 0, false, 1.0, &[time]));
        let kinds: Vec<KindFacts> = kinds.collect();
        let classes = |literal: bool| {
            let [_, all] = read_classes(&problem(&kinds, 1, literal, 1).solve(), 1).unwrap();
            all.class_of_kind
        };
        let (ours, printed) = (classes(false), classes(true));
        assert!(ours[0] == ours[1] && ours[1] != ours[2], "{ours:?}");
        assert!(printed[0] != printed[1] && printed[1] == printed[2], "{printed:?}");
    }

    #[test]
    fn kind_that_cannot_run_on_any_node_is_in_no_class() {
        let [_, all] = solve_classes(&[kind(0, 0, false, 1.0, &[0.0]), kind(0, 0, false, 1.0, &[3.0])]);
        assert_eq!(all.class_of_kind, [None, Some(0)]);
        assert!((all.lambda - 1.0 / 3.0).abs() < 1e-6);
    }
}
