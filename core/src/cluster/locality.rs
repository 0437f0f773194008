//! How near the input of a map is to a tracker.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How near the input of a map is to a tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    /// On the same host.
    NodeLocal,
    /// In the same rack.
    RackLocal,
    /// In another rack, or the input has no known hosts.
    OffRack,
}

impl Locality {
    /// Returns its name, such as `node-local`.
    pub const fn name(self) -> &'static str {
        match self {
            Locality::NodeLocal => "node-local",
            Locality::RackLocal => "rack-local",
            Locality::OffRack => "off-rack",
        }
    }
}

impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
