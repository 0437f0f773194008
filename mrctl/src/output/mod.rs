//! Output of the commands, progress bars, and exit codes.

mod progress;

pub(crate) use progress::{Meter, SimulationProgress};
pub(crate) use view::output::*;

use clap::builder::RangedI64ValueParser;
use client::Error;
use dfs_client::{ClientError, error::Kind};
use std::ops::RangeBounds;

/// Parses an option that is a whole number from a range. `value_parser!(u64)` would say that the digits
/// of a negative number are invalid, not which numbers are valid.
pub(crate) fn whole_number(range: impl RangeBounds<i64>) -> RangedI64ValueParser<u64> {
    RangedI64ValueParser::new().range(range)
}

/// Parses an option that is a time above 0.
pub(crate) fn positive_time(text: &str) -> Result<daemon::Period, String> {
    let time: daemon::Period = text.parse().map_err(|error: daemon::QuantityError| error.to_string())?;
    if time.0.is_zero() { Err("the time must be above 0".into()) } else { Ok(time) }
}

/// Returns the exit code for an error: 2 for a usage error, 1 for a failure.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let usage = error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.is::<dfs_client::path::PathError>()
            || cause.is::<daemon::config::ConfigError>()
            || cause.downcast_ref::<Error>().is_some_and(Error::is_usage)
            || cause.downcast_ref::<ClientError>().is_some_and(|error| error.is(Kind::Invalid))
    });
    if usage { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_exit_with_2_and_failures_with_1() {
        let refused = |kind| ClientError::Refused(dfs_client::error::Error::new(kind, "x"));
        assert_eq!(exit_code(&Usage("x".into()).into()), 2);
        assert_eq!(exit_code(&dfs_client::path::DfsPath::parse("relative").unwrap_err().into()), 2);
        assert_eq!(exit_code(&anyhow::Error::from(refused(Kind::Invalid)).context("y")), 2);
        assert_eq!(exit_code(&refused(Kind::NotFound).into()), 1);
        assert_eq!(exit_code(&anyhow::anyhow!("x")), 1);
    }
}
