//! Runs a target on seeded mutations of its valid inputs, for a number of executions or for a time.

use crate::{Damage, Target, execute, mutate};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// Maximum duration of an execution. Long enough for a busy machine.
const EXECUTION_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a target is run, and with which seed.
#[derive(Debug, Clone, Copy)]
pub struct Campaign {
    /// Minimum number of executions.
    pub executions: u64,
    /// Minimum duration.
    pub time: Duration,
    /// Seed of the mutations.
    pub seed: u64,
}

/// The result of a run.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Number of executions.
    pub executions: u64,
    /// Number of inputs that the target accepted.
    pub accepted: u64,
    /// The longest execution.
    pub longest: Duration,
    /// Total duration.
    pub time: Duration,
    /// The input that violates a property, and the violation.
    pub finding: Option<(Vec<u8>, String)>,
}

impl Campaign {
    /// Runs the target until both minima are reached or a property is violated.
    pub fn run(self, target: &Target) -> Tally {
        let (began, mut tally) = (Instant::now(), Tally::default());
        let seeds = (target.seeds)();
        let mut contents = Vec::new();
        for seed in &seeds {
            match execute_and_check(target, seed, &mut tally, |content| {
                content.ok_or("a valid input is refused".to_owned())
            }) {
                Some(content) => contents.push(content),
                None => return tally,
            }
        }
        let mut random = mutate::Random::new(self.seed);
        while tally.executions < self.executions || began.elapsed() < self.time {
            let input = mutate::mutated(&mut random, &seeds);
            let fits = |content: Option<Vec<u8>>| {
                let known = content.as_ref().is_none_or(|content| match target.damage {
                    Damage::Unnoticed => true,
                    Damage::Refused => contents.contains(content),
                    Damage::CutShort => contents.iter().any(|whole| whole.starts_with(content)),
                });
                if known {
                    Ok(content.is_some())
                } else {
                    Err("a damaged input is accepted with content that no valid input has".to_owned())
                }
            };
            match execute_and_check(target, &input, &mut tally, fits) {
                Some(accepted) => tally.accepted += u64::from(accepted),
                None => break,
            }
        }
        tally.time = began.elapsed();
        tally
    }
}

/// Executes the target once, and checks the result with `fits`. Returns `None` and records the
/// finding if a property is violated.
fn execute_and_check<T>(
    target: &Target,
    input: &[u8],
    tally: &mut Tally,
    fits: impl FnOnce(Option<Vec<u8>>) -> Result<T, String>,
) -> Option<T> {
    let began = Instant::now();
    let content = catch_unwind(AssertUnwindSafe(|| execute(target, input)));
    let took = began.elapsed();
    tally.executions += 1;
    tally.longest = tally.longest.max(took);
    let judged = match content {
        Err(panic) => Err(message_of(&*panic)),
        Ok(_) if took > EXECUTION_TIME_MAX => {
            Err(format!("the execution took {took:.1?}: the maximum is {EXECUTION_TIME_MAX:?}"))
        }
        Ok(content) => fits(content),
    };
    match judged {
        Ok(fine) => Some(fine),
        Err(why) => {
            tally.finding = Some((input.to_vec(), why));
            None
        }
    }
}

/// Returns the message of a panic.
fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}
