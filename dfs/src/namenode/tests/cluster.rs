//! Simulates a cluster with many random faults: nodes fail and return, replicas are damaged,
//! writers disappear, and the NameNode restarts, also from an older copy of its log. The first
//! phase checks safety: the invariants hold after every event, the last good replica of a block is
//! never deleted, and a replay of the log gives the namespace in memory. The second phase checks
//! liveness: without faults, the cluster repairs everything.

use super::{
    bench::{Bench, path},
    random::Random,
    replay::save_and_load_snapshot,
};
use crate::namenode::op::{BlockLength, Caller, Heartbeat, OnAbandon, Op};
use dfs_client::ids::{BlockId, FileId};

const NODES: usize = 6;
const STEPS: usize = 400;

/// A file that is being written.
struct Writer {
    file: FileId,
    holder: String,
    commits: Vec<BlockLength>,
}

struct RandomCluster {
    bench: Bench,
    random: Random,
    writers: Vec<Writer>,
    files_created: u32,
    /// Number of records in the copy of the log, if an operator has made one.
    copied_records: Option<usize>,
    /// How often each kind of fault has happened.
    fault_counts: [u32; 9],
}

impl RandomCluster {
    fn step(&mut self) {
        match self.random.below(24) {
            0..=3 => self.create(),
            4..=8 => self.write(),
            9..=11 => self.finish(),
            12 => self.drop_writer(),
            13 => self.stop_or_start(),
            14 => self.restart_node(),
            15 => self.damage_replica(),
            16 => self.lose_replica(),
            17 => self.delete(),
            18 => self.setrep(),
            19 => self.drain(),
            20 if self.random.once_in(4) => self.restart(),
            20 if self.random.once_in(6) => self.copy_or_restore(),
            21 if self.random.once_in(4) => self.safemode(),
            _ => {}
        }
        self.bench.tick();
        for index in 0..NODES {
            if self.random.once_in(3) {
                self.bench.nodes[index].loses_replies = self.random.once_in(8);
                self.bench.beat(index);
            }
        }
        self.check_located();
    }

    fn some_file(&mut self) -> String {
        format!("/d{}/f{}", self.random.below(3), self.random.below(self.files_created.max(1) as usize))
    }

    fn create(&mut self) {
        let at = format!("/d{}/f{}", self.random.below(3), self.files_created);
        let holder = format!("w{}", self.random.below(4));
        let on_abandon = self.random.pick(&[OnAbandon::Close, OnAbandon::Delete]);
        let replication = 1 + self.random.below(3) as u32;
        if let Ok(file) = self.bench.create_as(&at, &holder, replication, on_abandon) {
            self.files_created += 1;
            self.writers.push(Writer { file, holder, commits: vec![] });
        }
    }

    /// Writes a block through a pipeline in which all nodes except one may fail.
    fn write(&mut self) {
        if self.writers.is_empty() {
            return;
        }
        let at = self.random.below(self.writers.len());
        let (file, holder) = (self.writers[at].file, self.writers[at].holder.clone());
        let Ok((block, nodes)) = self.bench.add_block_as(file, &holder) else { return };
        let length = 1 + self.random.below(100) as u64;
        let mut written = 0;
        for uuid in nodes {
            let fails = written > 0 && self.random.once_in(4);
            let node = self.bench.node(uuid);
            if node.up && !fails {
                node.receive(block, length);
                written += 1;
            }
        }
        if written > 0 {
            self.writers[at].commits.push(BlockLength { block, length });
        } else {
            let _gone = self.bench.ask(Op::AbandonBlock { file, holder, block });
        }
    }

    fn finish(&mut self) {
        if self.writers.is_empty() {
            return;
        }
        let at = self.random.below(self.writers.len());
        let Writer { file, holder, commits } = &self.writers[at];
        let (file, holder, commits) = (*file, holder.clone(), commits.clone());
        let close = Op::Close { file, holder, commits, rename_to: None, overwrite: false };
        match self.bench.ask(close) {
            Err(error) if error.is_transient() => {}
            _ => drop(self.writers.remove(at)),
        }
    }

    fn drop_writer(&mut self) {
        if !self.writers.is_empty() {
            let at = self.random.below(self.writers.len());
            self.writers.remove(at);
            self.fault_counts[0] += 1;
        }
    }

    /// Stops a node, or starts it if it is down. At most two nodes are down at a time.
    fn stop_or_start(&mut self) {
        let down = self.bench.nodes.iter().filter(|node| !node.up).count();
        let at = self.random.below(NODES);
        if !self.bench.nodes[at].up {
            self.bench.nodes[at].up = true;
        } else if down < 2 {
            self.bench.nodes[at].up = false;
            self.fault_counts[1] += 1;
        }
    }

    fn restart_node(&mut self) {
        let at = self.random.below(NODES);
        let node = &mut self.bench.nodes[at];
        node.incarnation += 1;
        node.seq = 0;
        node.pending_reports = Heartbeat::default();
        self.fault_counts[2] += 1;
    }

    /// Chooses a replica on a node that is up, if another node that is up has a good replica of the
    /// same block.
    fn choose_replica(&mut self) -> Option<(usize, BlockId)> {
        let at = self.random.below(NODES);
        let blocks: Vec<BlockId> = self.bench.nodes[at].disk.keys().copied().collect();
        let block = *blocks.get(self.random.below(blocks.len().max(1)))?;
        let good = self.bench.good_on(block);
        let up = good.iter().filter(|other| **other != at && self.bench.nodes[**other].up).count();
        (up >= 1 && self.bench.nodes[at].up).then_some((at, block))
    }

    fn damage_replica(&mut self) {
        let Some((at, block)) = self.choose_replica() else { return };
        self.fault_counts[3] += 1;
        if self.random.once_in(2) {
            self.bench.nodes[at].move_to_bad(block);
        } else {
            // The damage is not noticed until a reader reports it.
            self.bench.nodes[at].disk.get_mut(&block).unwrap().1 = true;
            let uuid = self.bench.nodes[at].uuid;
            let _unknown =
                self.bench.state.report_bad_replica(self.bench.now, &Caller::superuser("ann"), block, uuid);
        }
    }

    fn lose_replica(&mut self) {
        let Some((at, block)) = self.choose_replica() else { return };
        self.fault_counts[4] += 1;
        self.bench.nodes[at].disk.remove(&block);
        self.bench.nodes[at].pending_reports.lost.push(block);
    }

    fn delete(&mut self) {
        let at = self.some_file();
        let _refused = self.bench.ask(Op::Delete { path: path(&at), recursive: true });
    }

    fn setrep(&mut self) {
        let at = self.some_file();
        let replication = Some(1 + self.random.below(4) as u32);
        let (mode, owner, group, modified_ms) = (None, None, None, None);
        let path = path(&at);
        let _refused =
            self.bench.ask(Op::SetAttributes { path, replication, mode, owner, group, modified_ms });
    }

    fn drain(&mut self) {
        let node = format!("n{}", 1 + self.random.below(2));
        let cancel = self.random.once_in(2);
        self.fault_counts[5] += 1;
        let _refused = self.bench.ask(Op::Drain { node, cancel });
    }

    fn restart(&mut self) {
        assert_eq!(&save_and_load_snapshot(self.bench.state.namespace()), self.bench.state.namespace());
        self.bench.restart();
        self.fault_counts[6] += 1;
    }

    /// Copies the log, or restores the copy as an operator would. DataNodes that have registered
    /// with a later start are refused until the operator accepts the older namespace. Then deletes
    /// the files without a good replica of a block, as the operator would.
    fn copy_or_restore(&mut self) {
        let Some(copy) = self.copied_records.take() else {
            self.copied_records = Some(self.bench.records.len());
            return;
        };
        self.fault_counts[8] += 1;
        self.writers.clear();
        if self.random.once_in(2) {
            // Set the clock back, so that the IDs in the lost records are assigned again, with
            // other nonces.
            self.bench.now.wall_ms = 1_700_000_000_000;
        }
        self.bench.restore(copy);
        self.bench.beat_all();
        self.bench.start(true);
        for node in &mut self.bench.nodes {
            (node.up, node.loses_replies) = (true, false);
        }
        self.bench.beat_all();
        self.bench.set_safemode(false);
        let fsck = self.bench.state.fsck(&path("/"), None, usize::MAX).unwrap();
        for file in fsck.problems {
            if file.blocks.iter().any(|block| self.bench.good_on(block.block).is_empty()) {
                let _open = self.bench.ask(Op::Delete { path: file.path, recursive: false });
            }
        }
    }

    /// Checks that readers are never sent to a replica of another block: all located replicas are
    /// on disk with the nonce of the block.
    fn check_located(&self) {
        for (id, _) in self.bench.nodes.iter().enumerate() {
            let node = &self.bench.nodes[id];
            for block in self.bench.state.located_on(node.uuid) {
                let Some(known) = self.bench.state.namespace().block(block) else { continue };
                if node.disk.contains_key(&block) {
                    assert_eq!(node.nonce(block), known.nonce, "{block} on {}", node.name);
                }
            }
        }
    }

    fn safemode(&mut self) {
        let on = self.random.once_in(3);
        self.bench.set_safemode(on);
        self.fault_counts[7] += 1;
    }

    /// Ends all faults, and checks that the cluster recovers without help.
    fn end_faults_and_check_recovery(&mut self) {
        for node in &mut self.bench.nodes {
            (node.up, node.loses_replies) = (true, false);
            let rotten: Vec<_> = node.disk.iter().filter(|(_, (_, bad))| *bad).map(|(b, _)| *b).collect();
            for block in rotten {
                node.move_to_bad(block);
            }
        }
        self.bench.set_safemode(false);
        for _ in 0..200 {
            self.bench.run_ms(1_000);
        }
        let report = self.bench.state.report(self.bench.now);
        let whole =
            (report.under_replicated, report.over_replicated, report.copies_pending, report.open_files);
        assert_eq!(whole, (0, 0, 0, 0), "{report:#?}");
        assert_eq!((report.missing, report.corrupt_replicas), (0, 0), "{report:#?}");
        assert!(self.bench.state.fsck(&path("/"), None, usize::MAX).unwrap().problems.is_empty());
        self.check_disks();
    }

    /// Checks that the disks have exactly the replicas that the NameNode knows.
    fn check_disks(&self) {
        let mut wanted = 0;
        for (at, node) in self.bench.nodes.iter().enumerate() {
            let namespace = self.bench.state.namespace();
            // Replicas of blocks that this namespace never assigned are kept, damaged or not.
            let quarantined: Vec<_> =
                node.quarantined.iter().filter(|block| !namespace.is_future(**block)).collect();
            assert!(quarantined.is_empty(), "{} still has {quarantined:?} quarantined", node.name);
            for block in node.disk.keys() {
                match namespace.block(*block) {
                    Some(known) if known.nonce == node.nonce(*block) => wanted += 1,
                    // An operator has accepted this namespace, so stale replicas must have been
                    // deleted. Replicas of blocks that it never assigned are kept.
                    Some(_) => panic!("the stale replica of {block} on node {at} was not deleted"),
                    None => assert!(namespace.is_future(*block), "{block} on {at} should have been deleted"),
                }
            }
        }
        let known: u64 = self.bench.state.report(self.bench.now).nodes.iter().map(|node| node.blocks).sum();
        assert_eq!(known, wanted);
    }
}

fn run(seed: u64) -> [u32; 9] {
    let bench = Bench::with_nodes(NODES);
    let mut cluster = RandomCluster {
        bench,
        random: Random(seed),
        writers: vec![],
        files_created: 0,
        copied_records: None,
        fault_counts: [0; 9],
    };
    for _ in 0..STEPS {
        cluster.step();
    }
    cluster.end_faults_and_check_recovery();
    cluster.fault_counts
}

#[test]
fn random_faults_lose_nothing_and_the_cluster_recovers() {
    let mut fault_counts = [0; 9];
    for seed in 0..30 {
        println!("seed {seed}");
        for (sum, hit) in fault_counts.iter_mut().zip(run(seed)) {
            *sum += hit;
        }
    }
    println!(
        "vanished, down, restarted, rotten, lost, drains, NameNode restarts, safemode, restores: {fault_counts:?}"
    );
    assert!(
        fault_counts.iter().all(|hit| *hit > 20 || *hit == fault_counts[8] && *hit > 8),
        "a fault happened too rarely: {fault_counts:?}"
    );
}
