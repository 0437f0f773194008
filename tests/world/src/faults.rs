//! What goes wrong in a run: cuts, loss, crashes with lost writes, slow disks, clocks that jump, and
//! changes of the leader.

use crate::{
    datanodes::DataNodes,
    namenodes::{DISK_DELAY, NameNodes},
    network::Host,
};
use journal::crash::{Damage, Survive};
use std::time::Duration;
use tokio::time::sleep;

const NAMENODES: u64 = 3;

/// Makes faults, and ends them.
pub(crate) struct Faults {
    all: NameNodes,
    nodes: DataNodes,
    /// The NameNode whose disk is damaged: a group survives that of one member.
    damaged: u64,
}

impl Faults {
    pub(crate) fn new(all: NameNodes, nodes: DataNodes) -> Self {
        let damaged = 1 + all.simulation.below(NAMENODES);
        Self { all, nodes, damaged }
    }

    /// Makes faults until `end`.
    pub(crate) async fn make(&self, end: Duration) {
        let Self { all, nodes, damaged } = self;
        let simulation = &all.simulation;
        while simulation.elapsed() < end {
            sleep(simulation.micros(50_000, 900_000)).await;
            self.restart_some().await;
            let id = 1 + simulation.below(NAMENODES);
            let leader = all.leader().map_or(id, |leader| leader.place);
            let victim = if simulation.chance(600) { leader } else { id };
            let fault = simulation.below(19);
            simulation.note("fault", [fault, victim]);
            match fault {
                0 | 17 => isolate(all, leader),
                1 => isolate(all, id),
                // One direction of one link.
                2 => all.network.cut([(Host::NameNode(id), Host::NameNode(id % NAMENODES + 1))]),
                // The leader receives no answers, or its messages do not arrive.
                3 => all.network.cut(others(leader).map(|other| (other, Host::NameNode(leader)))),
                4 => all.network.cut(others(leader).map(|other| (Host::NameNode(leader), other))),
                // Some clients and DataNodes do not reach a NameNode, or get no answers.
                5 => {
                    let is_to = simulation.chance(500);
                    let hosts = (0..8).map(Host::Client).chain((0..8).map(Host::DataNode));
                    let hosts = hosts.filter(|_| simulation.chance(500));
                    let leader = Host::NameNode(victim);
                    all.network.cut(hosts.map(|host| if is_to { (host, leader) } else { (leader, host) }));
                }
                6 => {
                    let longest = if simulation.chance(500) { 50_000 } else { 600_000 };
                    let delay = simulation.micros(2_000, longest).as_micros() as u64;
                    all.network.disturb(simulation.below(300), delay);
                }
                7 => all.crash(victim, survive(all)),
                8 => {
                    simulation.count("disk failed in the middle of its work");
                    all.fail_disk_after(victim, simulation.below(30));
                }
                9 => all.slow_disk(victim, simulation.micros(5_000, 400_000).as_micros() as u64),
                10 => all.set_clock(id, simulation.below(7_200_000).cast_signed() - 3_600_000),
                11 | 15 | 16 => {
                    let to = 1 + simulation.below(NAMENODES);
                    if let Some(running) = all.running(leader) {
                        // It is refused if that member does not answer.
                        let _refused = running.member.transfer(to).await;
                    }
                    if fault == 16 {
                        // A DataNode does not hear of it, and its heartbeats arrive.
                        let node = Host::DataNode(simulation.below(nodes.count() as u64));
                        all.network.cut((1..=NAMENODES).map(|id| (Host::NameNode(id), node)));
                    }
                }
                12 => all.snapshot(id).await,
                13 => {
                    let (damage, what) = match simulation.below(3) {
                        0 => (Damage::BitRot, "bit rot"),
                        1 => (Damage::BadSector, "bad sector"),
                        _ => (Damage::MisdirectedWrite, "misdirected write"),
                    };
                    simulation.count(what);
                    simulation.note(what, [*damaged]);
                    all.damage(*damaged, damage);
                }
                18 if simulation.chance(300) => all.lose_folder(*damaged),
                18 => all.damage_snapshot(*damaged),
                _ => nodes.crash(simulation.below(nodes.count() as u64) as usize),
            }
            if simulation.chance(200) {
                all.network.heal();
            }
            if simulation.chance(200) {
                all.stop(id).await;
            }
        }
    }

    /// Ends all faults, and waits until all members of the group run.
    pub(crate) async fn heal(&self) {
        let Self { all, nodes, .. } = self;
        all.network.end_faults();
        for id in 1..=NAMENODES {
            all.cancel_disk_faults(id);
            all.slow_disk(id, DISK_DELAY);
        }
        for at in 0..nodes.count() {
            nodes.restart(at);
        }
        while !all.is_complete() {
            self.restart(1000).await;
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts members that fail because of earlier damage.
    pub(crate) async fn keep_running(&self) {
        loop {
            self.restart(1000).await;
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn restart_some(&self) {
        let Self { all, nodes, .. } = self;
        self.restart(600).await;
        for at in 0..nodes.count() {
            if all.simulation.chance(400) {
                nodes.restart(at);
            }
        }
        for id in 1..=NAMENODES {
            if all.simulation.chance(300) {
                all.slow_disk(id, DISK_DELAY);
            }
        }
    }

    /// Crashes members that have failed, starts those that are down in `permille` of 1,000 cases, and
    /// adds those that were exchanged.
    async fn restart(&self, permille: u64) {
        let all = &self.all;
        for id in all.failed() {
            all.crash(id, survive(all));
        }
        for id in all.stopped() {
            if all.simulation.chance(permille) {
                self.start(id).await;
            }
        }
        all.join().await;
    }

    async fn start(&self, id: u64) {
        let all = &self.all;
        while let Err(why) = all.start(id).await {
            // It may crash while it starts.
            if !all.lose_writes(id, survive(all)) {
                assert!(id == self.damaged, "NameNode {id} does not start: {why}");
                all.exchange(id);
            }
        }
    }
}

fn survive(all: &NameNodes) -> Survive {
    match all.simulation.below(4) {
        0 => Survive::Everything,
        1 => Survive::SyncedOnly,
        _ => Survive::Seeded(all.simulation.random()),
    }
}

fn others(id: u64) -> impl Iterator<Item = Host> {
    (1..=NAMENODES).filter(move |other| *other != id).map(Host::NameNode)
}

fn isolate(all: &NameNodes, id: u64) {
    all.network.isolate(Host::NameNode(id), others(id));
}
