//! Failed fetches of map outputs.

use crate::ids::AttemptId;

/// A report that a reduce could not fetch a map output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchFailure {
    /// The attempt of the reduce that tried to fetch.
    pub reduce: AttemptId,
    /// The attempt of the map whose output could not be fetched.
    pub map: AttemptId,
    /// The shuffle address that the reduce used. If the tracker of the map has a different address
    /// now, the failure does not count.
    pub addr: String,
}
