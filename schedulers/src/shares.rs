//! Dividing slots: each gets in proportion to its weight, but no less than its minimum and no more than it can use.

/// One that wants slots.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Claim {
    /// Its part, relative to the others.
    pub weight: f64,
    /// At least this, if it can use it.
    pub min: f64,
    /// At most this.
    pub demand: f64,
}

/// Divides `total` by water-filling: a level is sought such that the shares `clamp(weight * level, min, demand)` add up
/// to the total. If the minimums alone are more than there is, they shrink in proportion; if all demands are less, each
/// gets its demand.
pub fn divide(total: f64, claims: &[Claim]) -> Vec<f64> {
    let min = |claim: &Claim| claim.min.min(claim.demand);
    let mins: f64 = claims.iter().map(min).sum();
    if mins >= total {
        return claims.iter().map(|claim| min(claim) * total / mins.max(f64::MIN_POSITIVE)).collect();
    }
    let demand: f64 = claims.iter().map(|claim| claim.demand).sum();
    if demand <= total {
        return claims.iter().map(|claim| claim.demand).collect();
    }
    let share = |claim: &Claim, level: f64| (claim.weight * level).max(min(claim)).min(claim.demand);
    let filled = |level: f64| claims.iter().map(|claim| share(claim, level)).sum::<f64>();
    // The sum grows steadily with the level and bends where a claim meets its minimum or its demand: the level lies
    // between two bends, and the line between them is straight.
    let mut bends: Vec<f64> = claims
        .iter()
        .filter(|claim| claim.weight > 0.0)
        .flat_map(|claim| [min(claim) / claim.weight, claim.demand / claim.weight])
        .collect();
    bends.sort_by(f64::total_cmp);
    let after = bends.partition_point(|bend| filled(*bend) < total);
    let low = if after == 0 { 0.0 } else { bends[after - 1] };
    let high = bends.get(after).copied().unwrap_or(low);
    let (at_low, at_high) = (filled(low), filled(high));
    let level =
        if at_high > at_low { low + (high - low) * (total - at_low) / (at_high - at_low) } else { low };
    claims.iter().map(|claim| share(claim, level)).collect()
}

/// Whether moving one slot from one who holds more than its share to one who holds less brings the two together nearer to
/// their shares. Never both ways at once.
pub fn should_move(to: (f64, f64), from: (f64, f64)) -> bool {
    let (deficit, excess) = (to.1 - to.0, from.0 - from.1);
    deficit > 0.0 && excess > 0.0 && deficit + excess > 1.0 + 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(weight: f64, min: f64, demand: f64) -> Claim {
        Claim { weight, min, demand }
    }

    fn close(got: &[f64], wanted: &[f64]) {
        assert_eq!(got.len(), wanted.len());
        assert!(got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{got:?} is not {wanted:?}");
    }

    #[test]
    fn equal_weights_get_equal_shares() {
        close(&divide(12.0, &[claim(1.0, 0.0, 100.0); 3]), &[4.0; 3]);
    }

    #[test]
    fn unused_share_is_redistributed() {
        // 10 slots; the first wants 2; the rest, 8, goes 1 to 3.
        let claims = [claim(1.0, 0.0, 2.0), claim(1.0, 0.0, 50.0), claim(3.0, 0.0, 50.0)];
        close(&divide(10.0, &claims), &[2.0, 2.0, 6.0]);
    }

    #[test]
    fn a_minimum_comes_first() {
        // 10 slots; one is owed 6; the other two divide 4.
        let claims = [claim(1.0, 6.0, 50.0), claim(1.0, 0.0, 50.0), claim(1.0, 0.0, 50.0)];
        close(&divide(10.0, &claims), &[6.0, 2.0, 2.0]);
        // A minimum that cannot be used does not count.
        close(&divide(10.0, &[claim(1.0, 6.0, 1.0), claim(1.0, 0.0, 50.0)]), &[1.0, 9.0]);
    }

    #[test]
    fn minimums_beyond_the_total_shrink_in_proportion() {
        close(&divide(6.0, &[claim(1.0, 8.0, 50.0), claim(1.0, 4.0, 50.0)]), &[4.0, 2.0]);
    }

    #[test]
    fn less_demand_than_slots_is_met() {
        close(&divide(10.0, &[claim(1.0, 0.0, 3.0), claim(5.0, 0.0, 4.0)]), &[3.0, 4.0]);
        close(&divide(10.0, &[]), &[]);
        close(&divide(0.0, &[claim(1.0, 0.0, 3.0)]), &[0.0]);
    }

    #[test]
    fn a_slot_moves_only_towards_the_shares() {
        assert!(should_move((1.0, 3.0), (5.0, 3.0)));
        // 10 slots for three: 3, 3, 4 against 3.33 each is as good as it gets.
        assert!(!should_move((3.0, 10.0 / 3.0), (4.0, 10.0 / 3.0)));
        assert!(!should_move((3.0, 3.0), (5.0, 3.0)));
        assert!(!should_move((1.0, 3.0), (2.0, 3.0)));
    }
}
