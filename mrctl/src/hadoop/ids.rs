//! IDs of jobs and attempts in the format of Hadoop, which clients look for in the output.
//!
//! `job_7` is `job_0000000000000_0007`: clients expect a long number and one of four digits. Both
//! together are the number of the job.

use crate::output::Usage;
use anyhow::{Result, anyhow};
use types::{AttemptId, JobId, Phase, TaskId};

/// The second number of an ID is less than this.
const NUMBERS: u32 = 10_000;

fn numbers(job: JobId) -> String {
    format!("{:013}_{:04}", job.0 / NUMBERS, job.0 % NUMBERS)
}

/// Formats the ID of a job, such as `job_7`. Returns another text unchanged.
pub(super) fn job(id: &str) -> String {
    id.parse::<JobId>().map_or_else(|_| id.to_owned(), |job| format!("job_{}", numbers(job)))
}

/// Formats the ID of the application of a job.
pub(super) fn application(id: &str) -> String {
    id.parse::<JobId>().map_or_else(|_| id.to_owned(), |job| format!("application_{}", numbers(job)))
}

/// Formats the ID of an attempt, such as `job_7.m3.0`. Returns another text unchanged.
pub(super) fn attempt(id: &str) -> String {
    let Ok(AttemptId { task: TaskId { job, phase, index }, number }) = id.parse() else {
        return id.to_owned();
    };
    let phase = if phase == Phase::Map { 'm' } else { 'r' };
    format!("attempt_{}_{phase}_{index:06}_{number}", numbers(job))
}

/// Parses the ID of a job, of Hadoop or of Fermata. Returns that of Fermata.
pub(super) fn parse_job(text: &str) -> Result<String> {
    let own = text.parse::<JobId>().ok().map(|JobId(number)| number);
    let of_hadoop = || {
        let (high, low) = text.strip_prefix("job_")?.split_once('_')?;
        let low = low.parse::<u32>().ok().filter(|low| *low < NUMBERS)?;
        high.parse::<u32>().ok()?.checked_mul(NUMBERS)?.checked_add(low)
    };
    let number = own.or_else(of_hadoop).ok_or_else(|| {
        anyhow!(Usage(format!("{text:?} is not the ID of a job, such as job_0000000000000_0007 or job_7")))
    })?;
    Ok(JobId(number).to_string())
}

/// Parses the ID of an attempt, of Hadoop or of Fermata. Returns that of Fermata.
pub(super) fn parse_attempt(text: &str) -> Result<String> {
    if text.parse::<AttemptId>().is_ok() {
        return Ok(text.to_owned());
    }
    let parts: Vec<&str> = text.split('_').collect();
    if let ["attempt", high, low, kind, index, number] = parts[..]
        && let (Some(phase), Ok(index), Ok(number)) = (phase(kind), index.parse(), number.parse())
    {
        let JobId(job) =
            parse_job(&format!("job_{high}_{low}"))?.parse().map_err(|_| not_an_attempt(text))?;
        return Ok(AttemptId { task: TaskId { job: JobId(job), phase, index }, number }.to_string());
    }
    Err(not_an_attempt(text))
}

fn phase(letter: &str) -> Option<Phase> {
    match letter {
        "m" => Some(Phase::Map),
        "r" => Some(Phase::Reduce),
        _ => None,
    }
}

fn not_an_attempt(text: &str) -> anyhow::Error {
    let example = "attempt_0000000000000_0007_m_000003_0 or job_7.m3.0";
    anyhow!(Usage(format!("{text:?} is not the ID of an attempt, such as {example}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_a_long_number_and_one_of_four_digits() {
        assert_eq!(job("job_7"), "job_0000000000000_0007");
        assert_eq!(application("job_7"), "application_0000000000000_0007");
        assert_eq!(job("job_1794835503"), "job_0000000179483_5503");
        assert_eq!(attempt("job_7.r3.1"), "attempt_0000000000000_0007_r_000003_1");
        assert_eq!(attempt("job_7.m12.0"), "attempt_0000000000000_0007_m_000012_0");
        for id in ["job_7", "job_1794835503", "job_10000"] {
            assert_eq!(parse_job(&job(id)).unwrap(), id);
            assert_eq!(parse_job(id).unwrap(), id);
        }
        for id in ["job_7.r3.1", "job_1794835503.m0.0"] {
            assert_eq!(parse_attempt(&attempt(id)).unwrap(), id);
            assert_eq!(parse_attempt(id).unwrap(), id);
        }
        assert!(parse_attempt("attempt_1_2_x_0_0").is_err());
        for text in ["7", "job_", "job_1_2_3", "job_1_10000", "job_4294967295_0001"] {
            assert!(parse_job(text).is_err(), "{text}");
        }
    }
}
