//! Fetches of map outputs.

use crate::ids::AttemptId;

/// A reduce could not fetch a map output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchFailure {
    /// The reduce that tried to fetch.
    pub reduce: AttemptId,
    /// The map whose output it tried to fetch.
    pub map: AttemptId,
    /// The shuffle address that it used. If the tracker has another address now, the failure does
    /// not count.
    pub addr: String,
}
