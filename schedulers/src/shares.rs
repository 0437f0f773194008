//! Divides slots in proportion to weights, with a minimum and a maximum for each part.

/// How many slots a pool or a job may get.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SlotDemand {
    /// The weight relative to others.
    pub weight: f64,
    /// The minimum, unless the demand is lower.
    pub min: f64,
    /// The maximum.
    pub demand: f64,
}

/// Divides `total` by water-filling: finds a level such that the shares `clamp(weight * level, min,
/// demand)` add up to the total. If the minimums exceed the total, they are reduced in proportion.
/// If the total exceeds the demands, each share is the demand.
pub fn divide(total: f64, claims: &[SlotDemand]) -> Vec<f64> {
    let min = |claim: &SlotDemand| claim.min.min(claim.demand);
    let mins: f64 = claims.iter().map(min).sum();
    if mins >= total {
        return claims.iter().map(|claim| min(claim) * total / mins.max(f64::MIN_POSITIVE)).collect();
    }
    let demand: f64 = claims.iter().map(|claim| claim.demand).sum();
    if demand <= total {
        return claims.iter().map(|claim| claim.demand).collect();
    }
    let share = |claim: &SlotDemand, level: f64| (claim.weight * level).max(min(claim)).min(claim.demand);
    let filled = |level: f64| claims.iter().map(|claim| share(claim, level)).sum::<f64>();
    // The sum of the shares is a piecewise linear function of the level. It changes its slope where
    // a claim reaches its minimum or its demand, so the level is found by interpolation between two
    // such points.
    let mut points: Vec<f64> = claims
        .iter()
        .filter(|claim| claim.weight > 0.0)
        .flat_map(|claim| [min(claim) / claim.weight, claim.demand / claim.weight])
        .collect();
    points.sort_by(f64::total_cmp);
    let after = points.partition_point(|point| filled(*point) < total);
    let low = if after == 0 { 0.0 } else { points[after - 1] };
    let high = points.get(after).copied().unwrap_or(low);
    let (at_low, at_high) = (filled(low), filled(high));
    let level =
        if at_high > at_low { low + (high - low) * (total - at_low) / (at_high - at_low) } else { low };
    claims.iter().map(|claim| share(claim, level)).collect()
}

/// Returns whether moving one slot from a claim above its share to a claim below its share brings
/// both nearer to their shares. Each argument is (held slots, share). Never true in both
/// directions.
pub fn should_move(to: (f64, f64), from: (f64, f64)) -> bool {
    let (deficit, excess) = (to.1 - to.0, from.0 - from.1);
    deficit > 0.0 && excess > 0.0 && deficit + excess > 1.0 + 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(weight: f64, min: f64, demand: f64) -> SlotDemand {
        SlotDemand { weight, min, demand }
    }

    fn assert_close(got: &[f64], wanted: &[f64]) {
        assert_eq!(got.len(), wanted.len());
        assert!(got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?} is not {wanted:?}");
    }

    #[test]
    fn equal_weights_get_equal_shares() {
        assert_close(&divide(12.0, &[claim(1.0, 0.0, 100.0); 3]), &[4.0; 3]);
    }

    #[test]
    fn unused_share_is_redistributed() {
        // 10 slots: the first claim needs 2, the other 8 are divided 1 to 3.
        let claims = [claim(1.0, 0.0, 2.0), claim(1.0, 0.0, 50.0), claim(3.0, 0.0, 50.0)];
        assert_close(&divide(10.0, &claims), &[2.0, 2.0, 6.0]);
    }

    #[test]
    fn minimums_are_met_before_the_rest_is_divided() {
        // 10 slots: one claim has a minimum of 6, the other two divide 4.
        let claims = [claim(1.0, 6.0, 50.0), claim(1.0, 0.0, 50.0), claim(1.0, 0.0, 50.0)];
        assert_close(&divide(10.0, &claims), &[6.0, 2.0, 2.0]);
        // A minimum that cannot be used does not count.
        assert_close(&divide(10.0, &[claim(1.0, 6.0, 1.0), claim(1.0, 0.0, 50.0)]), &[1.0, 9.0]);
    }

    #[test]
    fn minimums_beyond_the_total_shrink_in_proportion() {
        assert_close(&divide(6.0, &[claim(1.0, 8.0, 50.0), claim(1.0, 4.0, 50.0)]), &[4.0, 2.0]);
    }

    #[test]
    fn demands_below_the_total_are_met() {
        assert_close(&divide(10.0, &[claim(1.0, 0.0, 3.0), claim(5.0, 0.0, 4.0)]), &[3.0, 4.0]);
        assert_close(&divide(10.0, &[]), &[]);
        assert_close(&divide(0.0, &[claim(1.0, 0.0, 3.0)]), &[0.0]);
    }

    #[test]
    fn slot_moves_only_if_both_claims_get_nearer_to_their_shares() {
        assert!(should_move((1.0, 3.0), (5.0, 3.0)));
        // 10 slots for three claims: 3, 3 and 4 is the best integer division of 3.33 each.
        assert!(!should_move((3.0, 10.0 / 3.0), (4.0, 10.0 / 3.0)));
        assert!(!should_move((3.0, 3.0), (5.0, 3.0)));
        assert!(!should_move((1.0, 3.0), (2.0, 3.0)));
    }
}
