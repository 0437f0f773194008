//! Converts the results of the state machine to gRPC replies.

use crate::namenode::{
    op::{Command, HeartbeatAnswer, Quota},
    state::State,
    view::{
        DrainBlock, DrainStatus, FileStatus, FsckBlock, FsckFile, FsckPage, LocatedBlock, NodeAddress,
        NodeReport, NodeState, Report, SafemodeStatus, Usage,
    },
};
use dfs_client::ids::{BlockId, Nonce};
use journal::backup::{Part, Parts};
use proto::dfs as pb;
use security::BlockKey;

pub(crate) fn status(status: FileStatus) -> pb::FileStatus {
    pb::FileStatus {
        path: status.path.as_str().into(),
        is_dir: status.is_dir,
        file_id: status.file_id.0,
        length: status.length,
        replication: status.replication,
        block_size: status.block_size,
        owner: status.owner,
        group: status.group,
        mode: status.mode,
        modified_ms: status.modified_ms,
        accessed_ms: status.accessed_ms,
        open: status.open,
        blocks: status.blocks,
        quota: status.quota.map(quota_to_wire),
    }
}

fn quota_to_wire(quota: Quota) -> pb::Quota {
    pb::Quota { files: quota.files, space: quota.space }
}

fn address(address: NodeAddress) -> pb::DataNodeAddress {
    pb::DataNodeAddress {
        node: address.node,
        uuid: address.uuid.to_string(),
        data_addr: address.data_addr,
        rack: address.rack,
        local_socket: address.local_socket,
        host: address.host,
        seal: Vec::new(),
    }
}

/// Converts the address of a node to which a caller may write, and adds the signature of the
/// NameNode.
fn sealed_address(node: NodeAddress, key: &BlockKey) -> pb::DataNodeAddress {
    let seal = key.seal(&node.data_addr);
    pb::DataNodeAddress { seal, ..address(node) }
}

/// Converts a block for a reader, and adds the token to read it.
pub(crate) fn block_for_reading(block: LocatedBlock, key: &BlockKey) -> pb::LocatedBlock {
    pb::LocatedBlock {
        token: key.read_token(block.block.0, block.nonce.0).to_bytes(),
        block_id: block.block.0,
        nonce: block.nonce.0,
        offset: block.offset,
        length: block.length,
        nodes: block.nodes.into_iter().map(address).collect(),
        damaged_on: block.damaged_on,
    }
}

/// Converts a block for a writer, and adds the token to write at most `max` bytes.
pub(crate) fn block_for_writing(block: LocatedBlock, key: &BlockKey, max: u64) -> pb::LocatedBlock {
    pb::LocatedBlock {
        token: key.write_token(block.block.0, block.nonce.0, max).to_bytes(),
        block_id: block.block.0,
        nonce: block.nonce.0,
        offset: block.offset,
        length: block.length,
        nodes: block.nodes.into_iter().map(|node| sealed_address(node, key)).collect(),
        damaged_on: block.damaged_on,
    }
}

pub(crate) fn usage(usage: Usage) -> pb::UsageReply {
    pb::UsageReply {
        files: usage.files,
        dirs: usage.dirs,
        bytes: usage.bytes,
        space: usage.space,
        quota: usage.quota.map(quota_to_wire),
    }
}

pub(crate) fn fsck(page: FsckPage) -> pb::FsckReply {
    pb::FsckReply {
        problems: page.problems.into_iter().map(fsck_file).collect(),
        files: page.files,
        blocks: page.blocks,
        bytes: page.bytes,
        more: page.more,
        last_path: page.last_path.map_or_else(String::new, |path| path.as_str().into()),
    }
}

fn fsck_file(file: FsckFile) -> pb::FsckFile {
    let block = |block: FsckBlock| pb::FsckBlock {
        block_id: block.block.0,
        length: block.length,
        wanted: block.wanted,
        live: block.live,
        corrupt: block.corrupt,
        draining: block.draining,
    };
    pb::FsckFile {
        path: file.path.as_str().into(),
        open: file.open,
        blocks: file.blocks.into_iter().map(block).collect(),
    }
}

pub(crate) fn safemode(safemode: SafemodeStatus) -> pb::Safemode {
    pb::Safemode {
        on: safemode.on,
        reason: safemode.reason,
        blocks_seen: safemode.blocks_seen,
        blocks_needed: safemode.blocks_needed,
    }
}

pub(crate) fn drain_status(status: DrainStatus) -> pb::DrainReply {
    let example = |block: DrainBlock| pb::DrainBlock {
        block_id: block.block.0,
        path: block.path.to_string(),
        wanted: block.wanted,
        have: block.have,
        why: block.why,
    };
    pb::DrainReply {
        state: node_state(status.state).into(),
        blocks_left: status.blocks_left,
        stuck: status.stuck,
        staying: status.staying,
        examples: status.examples.into_iter().map(example).collect(),
    }
}

fn node_state(state: NodeState) -> pb::NodeState {
    match state {
        NodeState::Live => pb::NodeState::Live,
        NodeState::Suspect => pb::NodeState::Suspect,
        NodeState::Dead => pb::NodeState::Dead,
        NodeState::Draining => pb::NodeState::Draining,
        NodeState::Drained => pb::NodeState::Drained,
    }
}

fn node_report(node: NodeReport) -> pb::NodeReport {
    pb::NodeReport {
        state: node_state(node.state).into(),
        address: Some(address(node.address)),
        capacity: node.capacity,
        used: node.used,
        free: node.free,
        blocks: node.blocks,
        last_heartbeat_ms_ago: node.last_heartbeat_ms_ago,
        volumes: node.volumes,
        failed_volumes: node.failed_volumes,
        blocks_left_to_drain: node.blocks_left_to_drain,
        version: node.version,
        reported: node.reported,
    }
}

/// Returns the part of a report that is sent if only safemode is requested.
pub(crate) fn safemode_report(state: &State) -> pb::ReportReply {
    pb::ReportReply {
        cluster_id: state.cluster_id().to_owned(),
        safemode: Some(safemode(state.safemode())),
        ..pb::ReportReply::default()
    }
}

pub(crate) fn report(report: Report, last_edit: u64) -> pb::ReportReply {
    pb::ReportReply {
        cluster_id: report.cluster_id,
        safemode: Some(safemode(report.safemode)),
        files: report.files,
        dirs: report.dirs,
        blocks: report.blocks,
        bytes: report.bytes,
        capacity: report.capacity,
        used: report.used,
        free: report.free,
        disks: report.disks,
        under_replicated: report.under_replicated,
        over_replicated: report.over_replicated,
        missing: report.missing,
        corrupt: report.corrupt,
        corrupt_replicas: report.corrupt_replicas,
        corrupt_found_total: report.corrupt_found_total,
        corrupt_replaced_total: report.corrupt_replaced_total,
        copies_pending: report.copies_pending,
        copies_done_total: report.copies_done_total,
        open_files: report.open_files,
        last_edit,
        started_ms: report.started_ms,
        nodes: report.nodes.into_iter().map(node_report).collect(),
        version: env!("CARGO_PKG_VERSION").into(),
        future_replicas: report.future_replicas,
        stale_replicas: report.stale_replicas,
        refused_nodes: report.refused_nodes,
        checks_pending: report.checks_pending,
        checks_good_total: report.checks.good,
        checks_good_bytes_total: report.checks.good_bytes,
        checks_bad_total: report.checks.bad,
        epoch: report.epoch,
        lost_edits: String::new(),
    }
}

/// Converts a command, with the addresses of its targets. Targets that no longer exist are omitted,
/// and a copy without targets is dropped: repair will order it again.
fn command(state: &State, command: Command, key: &BlockKey) -> Option<pb::Command> {
    use pb::command::Kind;
    let kind = match command {
        Command::Copy { block, nonce, length, targets } => {
            let located = state.located_block(block, &targets).ok()?;
            let targets: Vec<_> = located.nodes.into_iter().map(|node| sealed_address(node, key)).collect();
            if targets.is_empty() {
                return None;
            }
            let token = key.copy_token(block.0, nonce.0, length).to_bytes();
            Kind::Copy(pb::CopyBlock { block_id: block.0, nonce: nonce.0, length, targets, token })
        }
        Command::Delete(blocks) => {
            let named =
                |(block, nonce): (BlockId, Nonce)| pb::NamedBlock { block_id: block.0, nonce: nonce.0 };
            Kind::Delete(pb::DeleteBlocks { blocks: blocks.into_iter().map(named).collect() })
        }
        Command::Check(block, nonce) => {
            Kind::Check(pb::CheckBlock { block: Some(pb::NamedBlock { block_id: block.0, nonce: nonce.0 }) })
        }
    };
    Some(pb::Command { kind: Some(kind) })
}

pub(crate) fn heartbeat_reply(state: &State, answer: HeartbeatAnswer, key: &BlockKey) -> pb::HeartbeatReply {
    let namespace = state.namespace();
    let mut reply = pb::HeartbeatReply {
        epoch: namespace.epoch(),
        start: namespace.start_id().map_or(0, |start| start.0),
        leads: state.is_leader(),
        ..pb::HeartbeatReply::default()
    };
    match answer {
        HeartbeatAnswer::RegisterAgain => reply.register_again = true,
        HeartbeatAnswer::Commands(commands) => {
            reply.commands = commands.into_iter().filter_map(|one| command(state, one, key)).collect();
        }
    }
    reply
}

/// The first message of a backup.
pub(crate) fn backup_start(parts: &Parts, cluster_id: String) -> pb::BackupChunk {
    let start = pb::BackupStart {
        cluster_id,
        layout: journal::home::LAYOUT,
        journal: parts.journal.into(),
        last_record: parts.last_record,
        bytes: parts.bytes,
    };
    pb::BackupChunk { start: Some(start), ..Default::default() }
}

pub(crate) fn backup_chunk(part: Part) -> pb::BackupChunk {
    let mut chunk = pb::BackupChunk::default();
    match part {
        Part::File(path) => chunk.file = path,
        Part::Data(bytes) => chunk.data = bytes,
        Part::End(files) => chunk.files = files,
    }
    chunk
}
