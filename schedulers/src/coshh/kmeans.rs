//! k-means clustering. The random numbers are seeded: the same input gives the same result.

use mrcore::split_mix;

/// Maximum number of iterations. Usually a few are enough.
const ITERATIONS_MAX: usize = 100;

/// Returns the squared distance divided by the number of dimensions.
pub(super) fn distance2(a: &[f64], b: &[f64]) -> f64 {
    let sum: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    sum / a.len().max(1) as f64
}

/// Assigns points to at most `k` clusters, numbered from 0 without gaps. There are fewer clusters
/// if there are fewer distinct points.
pub(super) fn cluster(points: &[&[f64]], k: usize, seed: u64) -> Vec<usize> {
    if points.is_empty() {
        return Vec::new();
    }
    let mut centres = first_centres(points, k.max(1), seed);
    let mut of = assign(points, &centres);
    for _ in 0..ITERATIONS_MAX {
        for (number, centre) in centres.iter_mut().enumerate() {
            let members = points.iter().zip(&of).filter(|(_, of)| **of == number).map(|(point, _)| *point);
            if let Some(mean) = mean(members) {
                *centre = mean;
            }
        }
        let next = assign(points, &centres);
        if next == of {
            break;
        }
        of = next;
    }
    // Renumbers the clusters, so that empty ones leave no gaps.
    let mut used: Vec<usize> = of.clone();
    used.sort_unstable();
    used.dedup();
    of.iter().map(|number| used.binary_search(number).unwrap_or(0)).collect()
}

/// Returns the mean of some points; `None` without points.
pub(super) fn mean<'a>(points: impl Iterator<Item = &'a [f64]>) -> Option<Vec<f64>> {
    let mut sum: Vec<f64> = Vec::new();
    let mut count = 0.0;
    for point in points {
        sum.resize(point.len(), 0.0);
        sum.iter_mut().zip(point).for_each(|(sum, value)| *sum += value);
        count += 1.0;
    }
    (count > 0.0).then(|| sum.into_iter().map(|sum| sum / count).collect())
}

/// Chooses the first centres as k-means++ does: each further centre is a point, drawn in proportion
/// to its squared distance from the nearest centre so far.
fn first_centres(points: &[&[f64]], k: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut state = seed;
    let mut fraction = || split_mix::fraction(split_mix::next(&mut state));
    let first = (fraction() * points.len() as f64) as usize;
    let mut centres = vec![points[first.min(points.len() - 1)].to_vec()];
    while centres.len() < k {
        let far = |point: &&[f64]| {
            centres.iter().map(|centre| distance2(point, centre)).fold(f64::INFINITY, f64::min)
        };
        let far: Vec<f64> = points.iter().map(far).collect();
        let total: f64 = far.iter().sum();
        if total <= 0.0 {
            break;
        }
        let mut drawn = fraction() * total;
        let at = far.iter().position(|far| {
            drawn -= far;
            drawn < 0.0
        });
        let last = far.iter().rposition(|far| *far > 0.0).unwrap_or(0);
        centres.push(points[at.unwrap_or(last)].to_vec());
    }
    centres
}

/// Returns the index of the nearest centre of each point; the lowest index if several centres are
/// equally near.
fn assign(points: &[&[f64]], centres: &[Vec<f64>]) -> Vec<usize> {
    let nearest = |point: &&[f64]| {
        let mut best = (f64::INFINITY, 0);
        for (number, centre) in centres.iter().enumerate() {
            let far = distance2(point, centre);
            if far < best.0 {
                best = (far, number);
            }
        }
        best.1
    };
    points.iter().map(nearest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_points_share_a_cluster() {
        let points = [[0.0, 0.1], [5.0, 5.1], [0.1, 0.0], [5.1, 5.0], [0.0, 0.0]];
        let points: Vec<&[f64]> = points.iter().map(<[f64; 2]>::as_slice).collect();
        for seed in 0..20 {
            let of = cluster(&points, 2, seed);
            assert!(of[0] == of[2] && of[0] == of[4] && of[1] == of[3] && of[0] != of[1], "{seed}: {of:?}");
            assert_eq!(of, cluster(&points, 2, seed), "{seed}");
        }
    }

    #[test]
    fn there_are_no_more_clusters_than_different_points() {
        let points: Vec<&[f64]> = vec![&[1.0], &[1.0], &[2.0]];
        assert_eq!(cluster(&points, 5, 7).iter().max(), Some(&1));
        assert!(cluster(&[], 3, 7).is_empty());
    }
}
