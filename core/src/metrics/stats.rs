//! Means, quantiles and confidence intervals.

/// Returns the mean; 0 without values.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Returns the quantile at `part` (0 to 1), interpolated between the two nearest values; 0 without
/// values.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// Returns the maximum; 0 without values.
pub fn max(values: &[f64]) -> f64 {
    values.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0)
}

/// Returns half the width of the 95% confidence interval of the mean, by Student's t-distribution;
/// 0 for fewer than two values.
pub fn confidence(values: &[f64]) -> f64 {
    let count = values.len();
    if count < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
    student_t(count - 1) * (variance / count as f64).sqrt()
}

/// Returns the two-sided 95% quantile of Student's t-distribution with this many degrees of
/// freedom.
fn student_t(freedom: usize) -> f64 {
    const QUANTILES: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    if let Some(quantile) = QUANTILES.get(freedom.max(1) - 1) {
        return *quantile;
    }
    // It is between that of 30 degrees of freedom and that of the normal distribution.
    let (mut low, mut high, freedom) = (1.959, 2.043, freedom as f64);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        let p = incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + middle * middle));
        if p > 0.05 { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Returns the two-sided p-value of the hypothesis that the mean is 0, by Student's t-test; `None`
/// for fewer than two values. Values without variation are certain: 0, or 1 if they are all 0.
pub fn p_value(values: &[f64]) -> Option<f64> {
    let count = values.len();
    if count < 2 {
        return None;
    }
    let mean = mean(values);
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
    if variance <= 0.0 {
        return Some(if mean == 0.0 { 1.0 } else { 0.0 });
    }
    let (t, freedom) = (mean / (variance / count as f64).sqrt(), (count - 1) as f64);
    Some(incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t)))
}

/// Returns the exact two-sided p-value of the hypothesis that the values are symmetric around 0, by
/// Wilcoxon's signed-rank test, and whether most ranks are of positive values. A single value that is
/// far from the others has no more weight than one that is next to them. Zeros are left out, and equal
/// values share their ranks; `None` without values.
pub fn signed_rank(values: &[f64]) -> Option<(f64, bool)> {
    if values.is_empty() {
        return None;
    }
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| *value != 0.0).collect();
    sorted.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
    // Twice the ranks, which are integers also if values share them.
    let mut ranks = Vec::with_capacity(sorted.len());
    for same in sorted.chunk_by(|one, other| one.abs().total_cmp(&other.abs()).is_eq()) {
        let twice_mean = 2 * ranks.len() + same.len() + 1;
        ranks.extend(same.iter().map(|_| twice_mean));
    }
    let positive: usize =
        sorted.iter().zip(&ranks).filter(|(value, _)| **value > 0.0).map(|(_, rank)| rank).sum();
    let all: usize = ranks.iter().sum();
    let smaller = positive.min(all - positive);
    // The probability of each sum of ranks up to the smaller one, if each sign is as likely.
    let mut chances = vec![0.0; smaller + 1];
    chances[0] = 1.0;
    for rank in ranks {
        for sum in (0..=smaller).rev() {
            let with = if sum >= rank { chances[sum - rank] } else { 0.0 };
            chances[sum] = f64::midpoint(chances[sum], with);
        }
    }
    Some(((2.0 * chances.iter().sum::<f64>()).min(1.0), positive > all - positive))
}

/// Returns the regularised incomplete beta function of `x`: the continued fraction, evaluated from its
/// start by the method of Lentz.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    // The fraction converges quickly only on one side of the mean.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let log_front = a * x.ln() + b * (1.0 - x).ln() + log_gamma(a + b) - log_gamma(a) - log_gamma(b);
    let bounded = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut above, mut below) = (1.0, 1.0 / bounded(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = below;
    for step in 1..300 {
        let step = f64::from(step);
        let twice = a + 2.0 * step;
        let even = step * (b - step) * x / ((twice - 1.0) * twice);
        let odd = -(a + step) * (a + b + step) * x / (twice * (twice + 1.0));
        let mut last = 1.0;
        for term in [even, odd] {
            below = 1.0 / bounded(1.0 + term * below);
            above = bounded(1.0 + term / above);
            last = above * below;
            fraction *= last;
        }
        if (last - 1.0).abs() < 1e-14 {
            break;
        }
    }
    log_front.exp() * fraction / a
}

/// Returns the logarithm of the gamma function for positive arguments: Stirling's series, after the
/// argument has been raised above 10.
fn log_gamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 10.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let series = (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse / 1680.0))) / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series
}

/// Corrects p-values for the number of comparisons by the method of Holm, so that the chance of any
/// false rejection stays below the level of the test. Returns them in the order of `p_values`.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|one, other| p_values[*one].total_cmp(&p_values[*other]));
    let (mut corrected, mut least) = (vec![0.0; p_values.len()], 0.0_f64);
    for (rank, at) in order.into_iter().enumerate() {
        least = least.max(p_values[at] * (p_values.len() - rank) as f64).min(1.0);
        corrected[at] = least;
    }
    corrected
}

/// Returns Jain's fairness index: 1 if all values are equal, 1/n if all but one are 0. `None`
/// without values other than 0.
pub fn jain(values: &[f64]) -> Option<f64> {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_match_values_computed_by_hand() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert!((mean(&values) - 2.5).abs() < 1e-12);
        assert!((quantile(&values, 0.5) - 2.5).abs() < 1e-12);
        assert!((quantile(&values, 1.0) - 4.0).abs() < 1e-12);
        // s = 1.29099, n = 4, t = 3.182: 3.182 * 1.29099 / 2.
        assert!((confidence(&values) - 2.054).abs() < 1e-3);
        assert!(mean(&[]) == 0.0 && quantile(&[], 0.9) == 0.0 && confidence(&[1.0]) == 0.0);
    }

    #[test]
    fn p_values_match_the_tables_of_the_t_distribution() {
        // Two values with mean 1 and standard error 1/t have the statistic t with one degree of
        // freedom. The quantiles are those of `student_t`.
        let spread = |count: usize, t: f64| -> Vec<f64> {
            let deviation = (count as f64).sqrt() / t;
            // Half of the values above and half below the mean.
            let scale = deviation * ((count - 1) as f64 / count as f64).sqrt();
            (0..count).map(|at| if at % 2 == 0 { 1.0 + scale } else { 1.0 - scale }).collect()
        };
        assert!((student_t(60) - 2.000_3).abs() < 1e-4 && (student_t(1000) - 1.962_3).abs() < 1e-4);
        for count in [2, 4, 10, 30, 62] {
            let p = p_value(&spread(count, student_t(count - 1))).unwrap();
            assert!((p - 0.05).abs() < 1e-4, "{count} values: {p}");
        }
        // Two-sided p of t = 1 with one degree of freedom is 0.5, of t = 3 with 9 is 0.01496.
        assert!((p_value(&spread(2, 1.0)).unwrap() - 0.5).abs() < 1e-9);
        assert!((p_value(&spread(10, 3.0)).unwrap() - 0.014_956).abs() < 1e-5);
        assert_eq!(
            (p_value(&[1.0]), p_value(&[2.0, 2.0]), p_value(&[0.0, 0.0])),
            (None, Some(0.0), Some(1.0))
        );
    }

    #[test]
    fn signed_ranks_match_values_computed_by_hand() {
        let p = |values: &[f64]| signed_rank(values).map(|(p, _)| p);
        // All of n signs are equal with a probability of 2 / 2^n, however far a value is.
        assert_eq!(signed_rank(&[1.0, 2.0, 3.0, 4.0, 5.0, 600.0]), Some((2.0 / 64.0, true)));
        assert_eq!(signed_rank(&[-0.1; 5]), Some((2.0 / 32.0, false)));
        // Of the sums of the ranks 1 to 4, those up to 1 are 0 and 1.
        assert_eq!(p(&[-1.0, 2.0, 3.0, 4.0]), Some(4.0 / 16.0));
        assert_eq!((p(&[1.0, -1.0]), p(&[0.0, 0.0]), p(&[])), (Some(1.0), Some(1.0), None));
        // Two values share the ranks 1 and 2: of the sums, those up to 1.5 are 0, 1.5 and 1.5.
        assert_eq!(p(&[-1.0, 1.0, 2.0, 3.0]), Some(6.0 / 16.0));
        // Tables have 137 as the largest sum of 30 ranks at 5%: 30 + 29 + 28 + 27 + 23 = 137.
        let thirty = |negative: &[u32]| -> Vec<f64> {
            let of = |rank| if negative.contains(&rank) { -f64::from(rank) } else { f64::from(rank) };
            (1..=30).map(of).collect()
        };
        assert!(p(&thirty(&[30, 29, 28, 27, 23])) < Some(0.05), "{:?}", p(&thirty(&[30, 29, 28, 27, 23])));
        assert!(p(&thirty(&[30, 29, 28, 27, 24])) > Some(0.05), "{:?}", p(&thirty(&[30, 29, 28, 27, 24])));
    }

    #[test]
    fn holm_multiplies_the_smallest_most_and_keeps_the_order() {
        let corrected = holm(&[0.04, 0.01, 0.03]);
        let expected = [0.06, 0.03, 0.06];
        assert!(
            corrected.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-12),
            "{corrected:?}"
        );
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }

    #[test]
    fn index_of_jain_is_between_one_nth_and_one() {
        assert_eq!((jain(&[3.0, 3.0]), jain(&[0.0, 5.0]), jain(&[])), (Some(1.0), Some(0.5), None));
    }
}
