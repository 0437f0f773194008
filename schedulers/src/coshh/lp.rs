//! Solves the linear program of section 3.2 of the paper: which fraction of each resource each
//! class should get, so that all arrival rates could grow by the greatest common factor.

use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};

/// The coefficients of the solver are limited to the range from this value to its inverse, because
/// the solver needs coefficients within six orders of magnitude on either side of 1. The limit also
/// gives every class a part of some resource.
const RELATIVE_RATE_MIN: f64 = 1e-6;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Allocation {
    /// The factor by which all arrival rates could grow.
    pub(super) lambda: f64,
    /// The fraction of resource j for class i, by class and resource.
    pub(super) delta: Vec<Vec<f64>>,
}

/// Solves `max λ s.t. Σ_j count_j μ_ij δ_ij ≥ λ α_i, Σ_i δ_ij ≤ 1, δ ≥ 0`. `α_i` (`alpha`) is the
/// arrival rate of class i, `μ_ij` (`mu`) is the rate at which one resource j runs jobs of class i,
/// and j stands for `count_j` identical resources. Every class must have a positive rate on some
/// resource. Returns `None` if the solver fails.
pub(super) fn allocate(alpha: &[f64], mu: &[Vec<f64>], count: &[f64]) -> Option<Allocation> {
    if alpha.is_empty() {
        return None;
    }
    // Scaled so that every class, if it had all resources, could grow by a factor of at least 1.
    let grown = |i: usize, j: usize| count[j] * mu[i][j] / alpha[i];
    let alone = |i: usize| (0..count.len()).map(|j| grown(i, j)).sum::<f64>();
    let unit = (0..alpha.len()).map(alone).min_by(f64::total_cmp).filter(|unit| *unit > 0.0)?;
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    let lambda = problem.add_var(1.0, (0.0, f64::INFINITY));
    let mut rows: Vec<LinearExpr> = Vec::new();
    let mut columns: Vec<LinearExpr> = vec![LinearExpr::empty(); count.len()];
    let mut parts: Vec<Vec<Option<Variable>>> = Vec::new();
    for i in 0..alpha.len() {
        let mut row = LinearExpr::empty();
        row.add(lambda, -1.0);
        let mut of_class = vec![None; count.len()];
        for (j, column) in columns.iter_mut().enumerate() {
            let gain = (grown(i, j) / unit).min(1.0 / RELATIVE_RATE_MIN);
            // A resource that is useless for the class gets no variable.
            if gain > RELATIVE_RATE_MIN {
                let part = problem.add_var(0.0, (0.0, f64::INFINITY));
                row.add(part, gain);
                column.add(part, 1.0);
                of_class[j] = Some(part);
            }
        }
        rows.push(row);
        parts.push(of_class);
    }
    for row in rows {
        problem.add_constraint(row, ComparisonOp::Ge, 0.0);
    }
    for column in columns {
        problem.add_constraint(column, ComparisonOp::Le, 1.0);
    }
    let solution = problem.solve().ok()?.into_solution().ok()?;
    let value = |part: &Option<Variable>| part.map_or(0.0, |part| solution.var_value(part).max(0.0));
    Some(Allocation {
        lambda: solution.var_value(lambda) * unit,
        delta: parts.iter().map(|of_class| of_class.iter().map(value).collect()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_of_the_paper_has_the_printed_solution() {
        // Resource 1 is best for class 1, but class 2 needs it more: class 2 runs 2 jobs a second
        // on resource 1 and 0.5 on half of resource 2, class 1 runs 2.5 on the other half. 2.5 /
        // 2.45 = 1.0204.
        let got = allocate(&[2.45, 2.45], &[vec![9.0, 5.0], vec![2.0, 1.0]], &[1.0, 1.0]).unwrap();
        assert!((got.lambda - 1.0204).abs() < 5e-5, "{got:?}");
        let wanted = [[0.0, 0.5], [1.0, 0.5]];
        for (got, wanted) in got.delta.iter().flatten().zip(wanted.iter().flatten()) {
            assert!((got - wanted).abs() < 1e-6, "{got} is not {wanted}");
        }
    }

    #[test]
    fn identical_resources_multiply_the_rate() {
        // Two classes, 3 equal resources with 4 jobs a second each: 12 a second in total, for an
        // arrival rate of 1 + 3, so λ = 3.
        let got = allocate(&[1.0, 3.0], &[vec![4.0], vec![4.0]], &[3.0]).unwrap();
        assert!((got.lambda - 3.0).abs() < 1e-6, "{got:?}");
        assert!((got.delta[0][0] - 0.25).abs() < 1e-6 && (got.delta[1][0] - 0.75).abs() < 1e-6, "{got:?}");
    }

    #[test]
    fn class_with_a_very_high_rate_still_gets_a_part_of_some_resource() {
        let got = allocate(&[1.0, 1.0], &[vec![1.0, 1.0], vec![1e12, 1e12]], &[1.0, 1.0]).unwrap();
        assert!(got.delta[1].iter().any(|part| *part > 1e-9), "{got:?}");
        assert!((got.lambda - 2.0).abs() < 1e-3, "{got:?}");
    }

    /// Solves the linear program for two classes without the solver. For a given λ, nodes are
    /// assigned to class 1 in increasing order of μ₂/μ₁ until it reaches the service rate λ·α₁; the
    /// rest of the nodes is assigned to class 2. Returns the largest λ, found by bisection, for
    /// which class 2 reaches the service rate λ·α₂.
    fn solve_two_classes_directly(alpha: [f64; 2], mu: &[Vec<f64>]) -> f64 {
        let mut order: Vec<usize> = (0..mu[0].len()).collect();
        order.sort_by(|a, b| (mu[1][*a] / mu[0][*a]).total_cmp(&(mu[1][*b] / mu[0][*b])));
        let leaves_enough = |lambda: f64| {
            let (mut wanted, mut rest) = (lambda * alpha[0], 0.0);
            for node in &order {
                let part = (wanted / mu[0][*node]).clamp(0.0, 1.0);
                wanted -= part * mu[0][*node];
                rest += (1.0 - part) * mu[1][*node];
            }
            wanted <= 1e-12 && rest >= lambda * alpha[1]
        };
        let (mut low, mut high) = (0.0, 1e6);
        for _ in 0..100 {
            let middle = f64::midpoint(low, high);
            if leaves_enough(middle) { low = middle } else { high = middle }
        }
        low
    }

    #[test]
    fn two_classes_match_the_direct_solution() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            0.01 + (state >> 40) as f64 / (1_u64 << 20) as f64
        };
        for nodes in 1..40 {
            let alpha = [random(), random()];
            let mu: Vec<Vec<f64>> = (0..2).map(|_| (0..nodes).map(|_| random()).collect()).collect();
            let got = allocate(&alpha, &mu, &vec![1.0; nodes]).unwrap();
            let wanted = solve_two_classes_directly(alpha, &mu);
            assert!(
                (got.lambda / wanted - 1.0).abs() < 1e-5,
                "{nodes} nodes: {} is not {wanted}",
                got.lambda
            );
            assert_eq!(
                Some(got),
                allocate(&alpha, &mu, &vec![1.0; nodes]),
                "the same input gives the same solution"
            );
        }
    }

    #[test]
    fn problem_without_classes_or_rates_has_no_solution() {
        assert_eq!(allocate(&[], &[], &[1.0]), None);
        assert_eq!(allocate(&[1.0], &[vec![0.0]], &[1.0]), None);
    }
}
