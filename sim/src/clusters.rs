//! The clusters of the papers, for `mrctl repro`, `mrctl sim --workload` and measurements.
//!
//! They use the timing of Hadoop 1: a tracker sends a heartbeat every three seconds, and reports a
//! free slot only with its next heartbeat.

use crate::{Setup, workload::coshh};
use mrcore::{PerPhase, Span, metrics::shares::MinShare};
use schedulers::Params;

fn hadoop(nodes: u32, map: u32, reduce: u32) -> Setup {
    let mut setup = Setup::even(nodes, PerPhase { map, reduce }, "fifo");
    setup.set_heartbeat_interval(Span::secs(3));
    setup.out_of_band = false;
    setup
}

/// Returns the cluster of the hSRTF paper: 58 nodes.
pub fn hsrtf() -> Setup {
    hadoop(58, 8, 2)
}

/// Returns the cluster of the Chronos paper: 8 nodes and two replicas per block. A silent node is
/// lost after 25 s.
pub fn chronos() -> Setup {
    let mut setup = hadoop(8, 8, 4);
    setup.replication = 2;
    setup.config.lost_after = Span::secs(25);
    setup
}

/// Returns the cluster of the FCS paper: 45 workers.
pub fn fcs() -> Setup {
    hadoop(45, 8, 4)
}

/// Returns the cluster of the COSHH paper with `resources` unequal machines (six in table 3). Its
/// runs take weeks, so the heartbeat interval does not matter.
pub fn coshh(resources: u32) -> Setup {
    coshh::resources(resources, "fifo")
}

/// Returns the cluster of section 6.2.2 of the COSHH paper (growing number of resources): the
/// machines of table 10, with two slots each.
pub fn coshh_growing(resources: u32) -> Setup {
    coshh::resources_of_two_slots(resources, "fifo")
}

/// Returns policy parameters with the weights and minimum shares of the users. A minimum share is
/// divided into map and reduce slots in the ratio 31 to 23, that of the six machines of COSHH.
pub fn share_params(users: &[(String, MinShare)]) -> Params {
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
