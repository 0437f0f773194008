//! The clusters of the papers, for `mrctl repro`, `mrctl sim --workload` and measurements.
//!
//! Except for that of COSHH, they use the timing of Hadoop 1: a tracker sends a heartbeat every three
//! seconds, and reports a free slot, and gets work, only with a heartbeat.

use crate::{Setup, workload::coshh};
use mrcore::{PerPhase, Span, metrics::shares::MinShare};
use schedulers::Params;

fn hadoop(nodes: u32, map: u32, reduce: u32) -> Setup {
    let mut setup = Setup::even(nodes, PerPhase { map, reduce }, "fifo");
    setup.set_heartbeat_interval(Span::secs(3));
    setup.set_heartbeat_only();
    setup
}

/// Sets the disks of all machines, in bytes per second, and their memory for cached files. The
/// papers give memory and number of disks, not their rates; a disk is assumed to have 100 to 120 MB/s.
fn set_disks(setup: &mut Setup, disk: f64, cache: u64) {
    setup.machines.iter_mut().for_each(|machine| (machine.disk, machine.cache) = (disk, cache));
}

/// Returns the cluster of the hSRTF paper: 58 nodes with 8 GB of memory.
pub fn hsrtf() -> Setup {
    let mut setup = hadoop(58, 8, 2);
    set_disks(&mut setup, 100e6, 4 << 30);
    setup
}

/// Returns the cluster of the Chronos paper: 8 nodes with 48 GB of memory, and two replicas per
/// block. A silent node is lost after 25 s.
pub fn chronos() -> Setup {
    let mut setup = hadoop(8, 8, 4);
    set_disks(&mut setup, 100e6, 32 << 30);
    (setup.replication, setup.output_replication) = (2, 2);
    setup.config.lost_after = Span::secs(25);
    setup
}

/// Returns the cluster of the FCS paper: 45 workers with 24 GB of memory and two disks. The paper does
/// not say how often output is replicated; with more than one replica the disks are overloaded.
pub fn fcs() -> Setup {
    let mut setup = hadoop(45, 8, 4);
    set_disks(&mut setup, 240e6, 12 << 30);
    setup.output_replication = 1;
    setup
}

/// Returns the cluster of the COSHH paper with `resources` unequal machines (six in table 3).
pub fn coshh(resources: u32) -> Setup {
    coshh::resources(resources, "fifo")
}

/// Returns the cluster of section 6.2.2 of the COSHH paper (growing number of resources): the
/// machines of table 10, with two slots each.
pub fn coshh_growing(resources: u32) -> Setup {
    coshh::resources_of_two_slots(resources, "fifo")
}

/// Returns policy parameters with the weights and minimum shares of the users, for every policy that
/// has shares of users. A minimum share is divided into map and reduce slots in the ratio 31 to 23,
/// that of the six machines of COSHH.
pub fn share_params(users: &[(String, MinShare)]) -> Params {
    let mut params = Params::new();
    for (user, min_share_of) in users {
        let (maps, reduces) = (min_share_of.min_share * 31.0 / 54.0, min_share_of.min_share * 23.0 / 54.0);
        for place in ["fair.pools", "fcs.pools", "coda.pools", "coshh.users"] {
            params.insert(format!("{place}.{user}.weight"), min_share_of.weight.to_string());
            params.insert(format!("{place}.{user}.min_maps"), format!("{maps:.0}"));
            params.insert(format!("{place}.{user}.min_reduces"), format!("{reduces:.0}"));
        }
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_with_shares_gets_those_of_the_users() {
        let user = ("U1".to_owned(), MinShare { min_share: 54.0, weight: 2.0 });
        let given = share_params(&[user]);
        let mut policies = 0;
        for policy in schedulers::describe(&Params::new()).expect("no parameters") {
            for place in ["pools", "users"].map(|place| format!("{}.{place}.U1", policy.section)) {
                let weight = format!("{place}.weight");
                let has_shares =
                    schedulers::make("fifo", &Params::from([(weight.clone(), "2".to_owned())])).is_ok();
                assert_eq!(given.contains_key(&weight), has_shares, "{place}");
                if has_shares {
                    let of = |field: &str| given.get(&format!("{place}.{field}")).map(String::as_str);
                    assert_eq!((of("min_maps"), of("min_reduces")), (Some("31"), Some("23")), "{place}");
                    policies += 1;
                }
            }
        }
        assert_eq!(policies, 4, "fair, fcs, coda and coshh");
    }
}
