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
    QUANTILES.get(freedom.max(1) - 1).copied().unwrap_or(1.96)
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
}
