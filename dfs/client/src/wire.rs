//! Converts between the generated types and the types of the client. All replies of servers are
//! validated here.
//!
//! Invariant: a missing field, an unknown enum value or an impossible number gives an error message
//! and never a panic.

use super::model::{
    BackupPart, BackupStart, DrainBlock, DrainStatus, FileStatus, Fsck, FsckBlock, FsckFile, Health,
    LocatedBlock, NodeAddress, NodeReport, NodeState, Quota, Report, SafemodeStatus, Usage,
};
use crate::ids::{BlockId, FileId, Nonce};
use crate::path::DfsPath;
use proto::dfs as pb;
use security::BlockToken;

/// A converted value, or a description of what is wrong with the reply.
pub(super) type WireResult<T> = Result<T, String>;

pub(super) fn file_status(status: Option<pb::FileStatus>) -> WireResult<FileStatus> {
    let status = status.ok_or("the reply has no file status")?;
    let path = DfsPath::parse(&status.path).map_err(|error| error.to_string())?;
    if !status.is_dir && status.block_size == 0 {
        return Err(format!("{path} has block size 0"));
    }
    Ok(FileStatus {
        path,
        is_dir: status.is_dir,
        file_id: FileId(status.file_id),
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
        quota: status.quota.map(quota),
    })
}

pub(super) fn quota(quota: pb::Quota) -> Quota {
    Quota { files: quota.files, space: quota.space }
}

pub(super) fn node_address(address: pb::DataNodeAddress) -> WireResult<NodeAddress> {
    if address.uuid.is_empty() || address.data_addr.is_empty() {
        return Err(format!("DataNode {:?} has no uuid or no address", address.node));
    }
    Ok(NodeAddress {
        node: if address.node.is_empty() { address.uuid.clone() } else { address.node },
        uuid: address.uuid,
        data_addr: address.data_addr,
        rack: address.rack,
        local_socket: Some(address.local_socket).filter(|path| !path.is_empty()).map(Into::into),
        host: address.host,
        seal: address.seal,
    })
}

pub(super) fn to_pb_address(address: &NodeAddress) -> pb::DataNodeAddress {
    let socket = address.local_socket.as_ref().map(|path| path.to_string_lossy().into_owned());
    pb::DataNodeAddress {
        node: address.node.clone(),
        uuid: address.uuid.clone(),
        data_addr: address.data_addr.clone(),
        rack: address.rack.clone(),
        local_socket: socket.unwrap_or_default(),
        host: address.host.clone(),
        seal: address.seal.clone(),
    }
}

pub(super) fn located_block(block: pb::LocatedBlock) -> WireResult<LocatedBlock> {
    let id = BlockId(block.block_id);
    if block.offset.checked_add(block.length).is_none() {
        return Err(format!("{id} has an impossible offset or length"));
    }
    let nodes = block.nodes.into_iter().map(node_address).collect::<WireResult<Vec<_>>>()?;
    let token = BlockToken::from_bytes(&block.token);
    let pb::LocatedBlock { offset, length, damaged_on, nonce, .. } = block;
    Ok(LocatedBlock { block: id, nonce: Nonce(nonce), offset, length, nodes, token, damaged_on })
}

/// Converts the blocks of a file and checks that they are consecutive.
pub(super) fn located_blocks(blocks: Vec<pb::LocatedBlock>) -> WireResult<Vec<LocatedBlock>> {
    let blocks = blocks.into_iter().map(located_block).collect::<WireResult<Vec<_>>>()?;
    for pair in blocks.windows(2) {
        if pair[0].offset + pair[0].length != pair[1].offset {
            return Err(format!("{} does not start at the end of {}", pair[1].block, pair[0].block));
        }
    }
    Ok(blocks)
}

pub(super) fn usage(reply: &pb::UsageReply) -> Usage {
    let pb::UsageReply { files, dirs, bytes, space, quota: limit } = *reply;
    Usage { files, dirs, bytes, space, quota: limit.map(quota) }
}

pub(super) fn safemode(safemode: Option<pb::Safemode>) -> WireResult<SafemodeStatus> {
    let pb::Safemode { on, reason, blocks_seen, blocks_needed } =
        safemode.ok_or("the reply has no safemode status")?;
    Ok(SafemodeStatus { on, reason, blocks_seen, blocks_needed })
}

fn node_state(state: i32) -> WireResult<NodeState> {
    match pb::NodeState::try_from(state) {
        Ok(pb::NodeState::Live) => Ok(NodeState::Live),
        Ok(pb::NodeState::Suspect) => Ok(NodeState::Suspect),
        Ok(pb::NodeState::Dead) => Ok(NodeState::Dead),
        Ok(pb::NodeState::Draining) => Ok(NodeState::Draining),
        Ok(pb::NodeState::Drained) => Ok(NodeState::Drained),
        Ok(pb::NodeState::Unspecified) | Err(_) => Err(format!("unknown node state {state}")),
    }
}

pub(super) fn drain_status(reply: pb::DrainReply) -> WireResult<DrainStatus> {
    let pb::DrainReply { state, blocks_left, stuck, staying, examples } = reply;
    let example = |block: pb::DrainBlock| {
        let pb::DrainBlock { block_id, path, wanted, have, why } = block;
        let path = DfsPath::parse(&path).map_err(|error| error.to_string())?;
        Ok(DrainBlock { block: BlockId(block_id), path, wanted, have, why })
    };
    let examples = examples.into_iter().map(example).collect::<WireResult<_>>()?;
    Ok(DrainStatus { state: node_state(state)?, blocks_left, stuck, staying, examples })
}

fn node_report(node: pb::NodeReport) -> WireResult<NodeReport> {
    Ok(NodeReport {
        address: node_address(node.address.ok_or("a node has no address")?)?,
        state: node_state(node.state)?,
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
    })
}

pub(super) fn report(reply: pb::ReportReply) -> WireResult<Report> {
    Ok(Report {
        cluster_id: reply.cluster_id,
        version: reply.version,
        started_ms: reply.started_ms,
        safemode: safemode(reply.safemode)?,
        files: reply.files,
        dirs: reply.dirs,
        blocks: reply.blocks,
        bytes: reply.bytes,
        capacity: reply.capacity,
        used: reply.used,
        free: reply.free,
        disks: reply.disks,
        under_replicated: reply.under_replicated,
        over_replicated: reply.over_replicated,
        missing: reply.missing,
        corrupt: reply.corrupt,
        corrupt_replicas: reply.corrupt_replicas,
        corrupt_found_total: reply.corrupt_found_total,
        corrupt_replaced_total: reply.corrupt_replaced_total,
        copies_pending: reply.copies_pending,
        copies_done_total: reply.copies_done_total,
        open_files: reply.open_files,
        last_edit: reply.last_edit,
        future_replicas: reply.future_replicas,
        stale_replicas: reply.stale_replicas,
        refused_nodes: reply.refused_nodes,
        epoch: reply.epoch,
        checks_pending: reply.checks_pending,
        checks_good_total: reply.checks_good_total,
        checks_good_bytes_total: reply.checks_good_bytes_total,
        checks_bad_total: reply.checks_bad_total,
        lost_edits: reply.lost_edits,
        nodes: reply.nodes.into_iter().map(node_report).collect::<WireResult<Vec<_>>>()?,
    })
}

fn fsck_block(block: &pb::FsckBlock) -> FsckBlock {
    // A replica on a draining node can still be read.
    let status = match block.live.saturating_add(block.draining) {
        0 if block.corrupt > 0 => Health::Corrupt,
        0 => Health::Missing,
        _ if block.live < block.wanted || block.corrupt > 0 => Health::Degraded,
        _ => Health::Healthy,
    };
    let pb::FsckBlock { block_id, length, wanted, live, corrupt, draining } = *block;
    FsckBlock { block: BlockId(block_id), length, status, wanted, live, corrupt, draining }
}

fn fsck_file(file: pb::FsckFile) -> WireResult<FsckFile> {
    let blocks: Vec<_> = file.blocks.iter().map(fsck_block).collect();
    // If no block is listed, the file has a problem that this version of the client does not know.
    let status = blocks.iter().map(|block| block.status).max().unwrap_or(Health::Degraded);
    let path = DfsPath::parse(&file.path).map_err(|error| error.to_string())?;
    Ok(FsckFile { path, status, open: file.open, blocks })
}

/// Adds a page to the result.
pub(super) fn fsck_page(total: &mut Fsck, page: pb::FsckReply) -> WireResult<()> {
    total.files = total.files.saturating_add(page.files);
    total.blocks = total.blocks.saturating_add(page.blocks);
    total.bytes = total.bytes.saturating_add(page.bytes);
    for file in page.problems {
        let file = fsck_file(file)?;
        // A block that is being written has no finalised replica yet. This is not an error.
        if !file.open {
            total.status = total.status.max(file.status);
        }
        total.problems.push(file);
    }
    Ok(())
}

pub(super) fn backup_part(chunk: pb::BackupChunk) -> BackupPart {
    match chunk.start {
        Some(pb::BackupStart { cluster_id, layout, journal, last_record, bytes }) => {
            BackupPart::Start(BackupStart { cluster_id, layout, journal, last_record, bytes })
        }
        None if !chunk.file.is_empty() => BackupPart::File(chunk.file),
        None if !chunk.data.is_empty() => BackupPart::Data(chunk.data),
        None => BackupPart::End(chunk.files),
    }
}
