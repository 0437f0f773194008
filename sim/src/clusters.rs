//! The papers' clusters, each defined once: for `mrctl repro`, for `mrctl sim --workload` and for measurements.
//!
//! Hadoop of their time: heartbeats of three seconds, and a tracker whose slot comes free says so with the next one.

use crate::{Setup, workload::coshh};
use mrcore::{PerPhase, Span, metrics::shares::MinShare};
use schedulers::Params;

fn hadoop(nodes: u32, map: u32, reduce: u32) -> Setup {
    let mut setup = Setup::even(nodes, PerPhase { map, reduce }, "fifo");
    setup.beat_every(Span::secs(3));
    setup.out_of_band = false;
    setup
}

/// hSRTF's: 58 nodes.
pub fn hsrtf() -> Setup {
    hadoop(58, 8, 2)
}

/// Chronos's: 8 nodes, two copies of each block, a silent node is lost after 25 s.
pub fn chronos() -> Setup {
    let mut setup = hadoop(8, 8, 4);
    setup.replication = 2;
    setup.config.lost_after = Span::secs(25);
    setup
}

/// FCS's: 45 workers.
pub fn fcs() -> Setup {
    hadoop(45, 8, 4)
}

/// COSHH's: so many unequal resources, six of them in table 3. Its runs are of weeks, and heartbeats do not matter to them.
pub fn coshh(resources: u32) -> Setup {
    coshh::resources(resources, "fifo")
}

/// COSHH's where the number of resources grows (section 6.2.2): those of table 10, two slots each.
pub fn coshh_growing(resources: u32) -> Setup {
    coshh::resources_of_two_slots(resources, "fifo")
}

/// What policies are told of users and what these were promised: minimum shares, in the proportion of map and reduce slots
/// of COSHH's six resources, and weights.
pub fn with_params(users: &[(String, MinShare)]) -> Params {
    let mut params = Params::new();
    for (user, min_share_of) in users {
        let (maps, reduces) = (min_share_of.min_share * 31.0 / 54.0, min_share_of.min_share * 23.0 / 54.0);
        for place in ["fair.pools", "coshh.users"] {
            params.insert(format!("{place}.{user}.weight"), min_share_of.weight.to_string());
            params.insert(format!("{place}.{user}.min_maps"), format!("{maps:.0}"));
            params.insert(format!("{place}.{user}.min_reduces"), format!("{reduces:.0}"));
        }
    }
    params
}
