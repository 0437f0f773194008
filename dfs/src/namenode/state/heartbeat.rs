//! Processes the heartbeats of DataNodes and makes the replies.

use super::{State, checks::printable};
use crate::namenode::{
    namespace::Block,
    op::{Command, Heartbeat, HeartbeatAnswer, Now},
};
use dfs_client::ids::{NodeIncarnation, NodeUuid};

/// Maximum number of deletions per reply.
const DELETES_MAX: usize = 1000;

impl State {
    /// Processes a heartbeat. A repeated heartbeat (with the same `seq`) gets the same answer and
    /// changes nothing.
    pub fn heartbeat(
        &mut self,
        now: Now,
        node: NodeUuid,
        incarnation: NodeIncarnation,
        heartbeat: Heartbeat,
    ) -> HeartbeatAnswer {
        let Some(ix) = self.find_current(node, incarnation) else { return HeartbeatAnswer::RegisterAgain };
        let node = self.nodes.get_mut(ix);
        node.last_heartbeat_ms = now.mono_ms;
        if heartbeat.leaving {
            // Ignore the reports in the last heartbeat of a node. If the node returns, it registers
            // again.
            self.wait_for_return(now, ix);
            self.remove_dead(ix);
            self.nodes_changed();
            return HeartbeatAnswer::Commands(Vec::new());
        }
        let node = self.nodes.get_mut(ix);
        if node.must_register {
            return HeartbeatAnswer::RegisterAgain;
        }
        match &node.last_answer {
            Some((seq, answer)) if *seq == heartbeat.seq => return HeartbeatAnswer::Commands(answer.clone()),
            // A later heartbeat arrived first: the contents of this one are outdated.
            Some((seq, _)) if *seq > heartbeat.seq => return HeartbeatAnswer::Commands(Vec::new()),
            _ => {}
        }
        let was_suspect = std::mem::replace(&mut node.liveness, super::nodes::Liveness::Live)
            == super::nodes::Liveness::Suspect;
        let back = was_suspect.then(|| super::Event::NodeBack(node.registration.node.clone()));
        node.registration.usage.clone_from(&heartbeat.usage);
        if let Some(back) = back {
            self.note(back);
            self.heartbeats_changed(ix);
        }
        self.apply_heartbeat(ix, &heartbeat);
        // After the reports: they contain the deletions of earlier epochs.
        let acknowledged = &mut self.nodes.get_mut(ix).acknowledged;
        if std::mem::replace(acknowledged, heartbeat.epoch) != heartbeat.epoch {
            self.heartbeats_changed(ix);
        }
        let commands = if self.is_leader {
            self.repair_after_copies(now);
            self.take_commands(now, ix)
        } else {
            Vec::new()
        };
        self.nodes.get_mut(ix).last_answer = Some((heartbeat.seq, commands.clone()));
        HeartbeatAnswer::Commands(commands)
    }

    fn apply_heartbeat(&mut self, ix: super::NodeIx, heartbeat: &Heartbeat) {
        for replica in &heartbeat.received {
            self.nodes.get_mut(ix).mark_reported(replica.block);
            self.received_replica(ix, *replica);
        }
        for block in &heartbeat.deleted {
            self.nodes.get_mut(ix).mark_reported(*block);
            if !self.nodes.get_mut(ix).deletes.finish(*block) {
                self.lose_replica(ix, *block);
            }
        }
        for (block, reason) in &heartbeat.bad {
            self.nodes.get_mut(ix).mark_reported(*block);
            if !self.bad.contains(&(*block, ix)) && self.namespace.block(*block).is_some() {
                let node = &self.nodes.get(ix).registration.node;
                self.note(super::Event::ReplicaCorrupt(format!("{block} on {node}: {}", printable(reason))));
            }
            self.record_corrupt(ix, *block);
        }
        for block in &heartbeat.lost {
            self.nodes.get_mut(ix).mark_reported(*block);
            if self.nodes.get(ix).blocks.contains(block) {
                self.add_known_missing(*block, 1);
            }
            self.lose_replica(ix, *block);
        }
        for block in &heartbeat.checked {
            if self.checks.finish(*block, ix) {
                let length = self.namespace.block(*block).and_then(Block::length);
                self.checks.checked.good += 1;
                self.checks.checked.good_bytes += length.unwrap_or(0);
            }
            self.good_verified(ix, *block);
        }
        let bad = heartbeat.bad.iter().filter(|(block, _)| self.checks.finish(*block, ix)).count();
        self.checks.checked.bad += bad as u64;
        let received = heartbeat.received.iter().map(|replica| &replica.block);
        for block in received.chain(&heartbeat.deleted).chain(&heartbeat.lost) {
            self.checks.finish(*block, ix);
        }
    }

    /// Returns the commands to send. In safemode only checks are sent, no copies or deletions.
    fn take_commands(&mut self, now: Now, ix: super::NodeIx) -> Vec<Command> {
        let safe = self.in_safemode();
        let again_ms = self.settings.copy_timeout_ms;
        let node = self.nodes.get_mut(ix);
        let (newly_ordered, later): (Vec<_>, Vec<_>) =
            node.outbox.drain(..).partition(|command| !safe || matches!(command, Command::Check(..)));
        node.outbox.extend(later);
        let mut commands = newly_ordered;
        if !safe {
            let deletes = node.deletes.take_due(now.mono_ms, again_ms, DELETES_MAX);
            if !deletes.is_empty() {
                commands.push(Command::Delete(deletes));
            }
        }
        commands
    }
}
