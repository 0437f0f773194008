//! Converts gRPC requests to operations and validates them. Malformed requests are refused here.

use crate::namenode::op::{
    BlockLength, Caller, CommitMove, Heartbeat, OnAbandon, Op, Quota, Registration, Replica, Request, Usage,
};
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, FileId, NodeIncarnation, NodeUuid, Nonce, RequestId, Start, StartId},
    path::DfsPath,
};
use proto::dfs as pb;
use security::{Identity, request_id_of};

const USER_BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 1024;
const LIST_ENTRIES_MAX: usize = 100_000;
/// Maximum number of nodes that a writer may exclude. A writer excludes each node once.
const EXCLUDED_NODES_MAX: usize = 10_000;
/// Maximum length of all source paths of a concat. Every folder in every path is looked up while
/// the state is locked.
const SOURCES_BYTES_MAX: usize = 1 << 20;

fn invalid_request(message: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, message)
}

/// A mutating request: its ID and its operation.
pub(crate) trait Mutation {
    fn request_id(&self) -> &[u8];
    fn op(self) -> Result<Op, Error>;
}

/// Converts a gRPC request to a [`Request`]: its caller, ID and operation.
pub(crate) fn request<M: Mutation>(request: tonic::Request<M>) -> Result<Request, Error> {
    let caller = caller(&request)?;
    let message = request.into_inner();
    let id = <[u8; 16]>::try_from(message.request_id()).map_err(|_| {
        invalid_request(format!("request_id has {} bytes: it must have 16", message.request_id().len()))
    })?;
    Ok(Request { id: RequestId(request_id_of(&caller.user, id)), caller, op: message.op()? })
}

/// Returns the caller, as determined by the gate before the service.
pub(crate) fn caller<M>(request: &tonic::Request<M>) -> Result<Caller, Error> {
    let identity = Identity::of(request.extensions())
        .map_err(|status| Error::new(Kind::Denied, status.message().to_owned()))?;
    Ok(Caller {
        user: identity.name.as_ref().into(),
        groups: identity.groups.clone(),
        superuser: identity.superuser,
    })
}

fn short_name(what: &str, text: &str, bytes_max: usize) -> Result<String, Error> {
    if text.is_empty() || text.len() > bytes_max || text.chars().any(char::is_control) {
        return Err(invalid_request(format!(
            "{what} must have 1 to {bytes_max} bytes and no control character"
        )));
    }
    Ok(text.into())
}

fn holder(text: &str) -> Result<String, Error> {
    short_name("holder", text, TEXT_BYTES_MAX)
}

pub(crate) fn path(text: &str) -> Result<DfsPath, Error> {
    Ok(DfsPath::parse(text)?)
}

fn paths(texts: &[String]) -> Result<Vec<DfsPath>, Error> {
    within_limit("paths", texts.len())?;
    texts.iter().map(|text| path(text)).collect()
}

fn within_limit(what: &str, count: usize) -> Result<(), Error> {
    at_most(LIST_ENTRIES_MAX, what, count)
}

fn at_most(max: usize, what: &str, count: usize) -> Result<(), Error> {
    if count > max {
        return Err(invalid_request(format!("{count} {what} in one request: the limit is {max}")));
    }
    Ok(())
}

fn excluded_nodes(names: Vec<String>) -> Result<Vec<String>, Error> {
    at_most(EXCLUDED_NODES_MAX, "excluded nodes", names.len())?;
    Ok(names)
}

fn concat_sources(texts: &[String]) -> Result<Vec<DfsPath>, Error> {
    let bytes = texts.iter().map(String::len).sum();
    at_most(SOURCES_BYTES_MAX, "bytes of source paths", bytes)?;
    paths(texts)
}

fn mode(mode: u32) -> Result<u32, Error> {
    if mode > 0o7777 {
        return Err(invalid_request(format!("mode {mode:o} is not valid: the maximum is 7777")));
    }
    Ok(mode)
}

fn block_lengths(commits: Vec<pb::BlockLength>) -> Result<Vec<BlockLength>, Error> {
    within_limit("blocks", commits.len())?;
    Ok(commits
        .into_iter()
        .map(|one| BlockLength { block: BlockId(one.block_id), length: one.length })
        .collect())
}

/// Returns `None` for the default value, which stands for a missing field in a message.
fn non_default<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

pub(crate) fn quota(quota: Option<pb::Quota>) -> Quota {
    quota.map_or_else(Quota::default, |quota| Quota { files: quota.files, space: quota.space })
}

pub(crate) fn node_uuid(text: &str) -> Result<NodeUuid, Error> {
    text.parse().map(NodeUuid).map_err(|_| invalid_request(format!("node uuid {text:?} is not a uuid")))
}

macro_rules! mutations {
    ($($message:ty: |$m:ident| $op:expr;)*) => {$(
        impl Mutation for $message {
            fn request_id(&self) -> &[u8] {
                &self.request_id
            }
            fn op(self) -> Result<Op, Error> {
                let $m = self;
                Ok($op)
            }
        }
    )*};
}

mutations! {
    pb::CreateRequest: |m| Op::Create {
        path: path(&m.path)?,
        holder: holder(&m.holder)?,
        on_abandon: match m.on_abandon() {
            pb::OnAbandon::Unspecified => {
                return Err(invalid_request("on_abandon is missing or unknown: it must be close or delete"));
            }
            pb::OnAbandon::Close => OnAbandon::Close,
            pb::OnAbandon::Delete => OnAbandon::Delete,
        },
        replication: non_default(m.replication),
        block_size: non_default(m.block_size),
        overwrite: m.overwrite,
        make_parents: m.make_parents,
        mode: non_default(mode(m.mode)?),
    };
    pb::AppendRequest: |m| Op::Append { path: path(&m.path)?, holder: holder(&m.holder)? };
    pb::AddBlockRequest: |m| Op::AddBlock {
        file: FileId(m.file_id),
        holder: holder(&m.holder)?,
        commits: block_lengths(m.commits)?,
        exclude_nodes: excluded_nodes(m.exclude_nodes)?,
        writer_host: m.writer_host,
        expected: m.expected,
        nonce: Nonce::random(),
    };
    pb::AbandonBlockRequest: |m| Op::AbandonBlock {
        file: FileId(m.file_id),
        holder: holder(&m.holder)?,
        block: BlockId(m.block_id),
    };
    pb::CloseRequest: |m| Op::Close {
        file: FileId(m.file_id),
        holder: holder(&m.holder)?,
        commits: block_lengths(m.commits)?,
        rename_to: non_default(m.rename_to).as_deref().map(path).transpose()?,
        overwrite: m.overwrite,
    };
    pb::MkdirRequest: |m| Op::Mkdir { path: path(&m.path)?, parents: m.parents, mode: non_default(mode(m.mode)?) };
    pb::RenameRequest: |m| Op::Rename { from: path(&m.from)?, to: path(&m.to)?, overwrite: m.overwrite };
    pb::DeleteRequest: |m| Op::Delete { path: path(&m.path)?, recursive: m.recursive };
    pb::SetAttributesRequest: |m| Op::SetAttributes {
        path: path(&m.path)?,
        replication: m.replication,
        mode: m.mode.map(mode).transpose()?,
        owner: m.owner.map(|name| short_name("owner", &name, USER_BYTES_MAX)).transpose()?,
        group: m.group.map(|name| short_name("group", &name, USER_BYTES_MAX)).transpose()?,
        modified_ms: m.modified_ms,
    };
    pb::SetQuotaRequest: |m| Op::SetQuota { path: path(&m.path)?, quota: quota(m.quota) };
    pb::ConcatRequest: |m| Op::Concat { target: path(&m.target)?, sources: concat_sources(&m.sources)? };
    pb::FenceRequest: |m| Op::Fence {
        scope: short_name("scope", &m.scope, TEXT_BYTES_MAX)?,
        start: start(m.epoch, m.start_id),
        earlier: m.earlier.iter().map(|one| start(one.epoch, one.start_id)).collect(),
    };
    pb::CommitRequest: |m| Op::Commit {
        scope: short_name("scope", &m.scope, TEXT_BYTES_MAX)?,
        start: start(m.epoch, m.start_id),
        commit_id: short_name("commit_id", &m.commit_id, TEXT_BYTES_MAX)?,
        moves: moves(&m.moves)?,
        deletes: paths(&m.deletes)?,
    };
    pb::DrainRequest: |m| Op::Drain { node: short_name("node", &m.node, TEXT_BYTES_MAX)?, cancel: m.cancel };
}

pub(crate) fn start(epoch: u64, start_id: u64) -> Start {
    Start { epoch, id: StartId(start_id) }
}

fn moves(moves: &[pb::CommitMove]) -> Result<Vec<CommitMove>, Error> {
    within_limit("moves", moves.len())?;
    moves.iter().map(|one| Ok(CommitMove { pieces: paths(&one.pieces)?, to: path(&one.to)? })).collect()
}

pub(crate) fn registration(message: pb::RegisterRequest) -> Result<Registration, Error> {
    let address = message.address.ok_or_else(|| invalid_request("registration without an address"))?;
    if address.data_addr.is_empty() {
        return Err(invalid_request("registration without a data_addr"));
    }
    Ok(Registration {
        uuid: node_uuid(&address.uuid)?,
        incarnation: NodeIncarnation(message.incarnation),
        node: short_name("node name", &address.node, TEXT_BYTES_MAX)?,
        host: address.host,
        rack: short_name("rack", &address.rack, TEXT_BYTES_MAX)?,
        data_addr: address.data_addr,
        local_socket: address.local_socket,
        version: message.version,
        cluster_id: message.cluster_id,
        declared_new: message.declared_new,
        seen_epoch: message.seen_epoch,
        seen_start: StartId(message.seen_start),
        usage: usage(message.usage)?,
    })
}

fn usage(message: Option<pb::Usage>) -> Result<Usage, Error> {
    let message =
        message.ok_or_else(|| invalid_request("usage is missing: run the same build on all nodes"))?;
    within_limit("disks", message.disks.len())?;
    Ok(Usage {
        capacity: message.capacity,
        used: message.used,
        free: message.free,
        disks: message.disks.into_iter().map(|disk| (disk.device, disk.free)).collect(),
        volumes: message.volumes,
        failed_volumes: message.failed_volumes,
    })
}

pub(crate) fn replicas(replicas: Vec<pb::Replica>) -> Result<Vec<Replica>, Error> {
    within_limit("replicas", replicas.len())?;
    Ok(replicas
        .into_iter()
        .map(|one| Replica { block: BlockId(one.block_id), nonce: Nonce(one.nonce), length: one.length })
        .collect())
}

pub(crate) fn heartbeat(
    message: pb::HeartbeatRequest,
) -> Result<(NodeUuid, NodeIncarnation, Heartbeat), Error> {
    let heartbeat = Heartbeat {
        seq: message.seq,
        epoch: message.epoch,
        usage: usage(message.usage)?,
        received: replicas(message.received)?,
        deleted: message.deleted.into_iter().map(BlockId).collect(),
        bad: message.bad.into_iter().map(|one| (BlockId(one.block_id), one.reason)).collect(),
        lost: message.lost.into_iter().map(BlockId).collect(),
        checked: message.checked.into_iter().map(BlockId).collect(),
        leaving: message.leaving,
    };
    Ok((node_uuid(&message.uuid)?, NodeIncarnation(message.incarnation), heartbeat))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<M: Mutation>(message: M) -> Option<String> {
        message.op().err().map(|error| format!("{:?}: {}", error.kind, error.message))
    }

    #[test]
    fn add_block_with_too_many_excluded_nodes_is_refused() {
        let add = |nodes| pb::AddBlockRequest {
            holder: "h".into(),
            exclude_nodes: vec![String::new(); nodes],
            ..pb::AddBlockRequest::default()
        };
        assert_eq!(refusal(add(10_000)), None);
        let expected = "Invalid: 10001 excluded nodes in one request: the limit is 10000";
        assert_eq!(refusal(add(10_001)).as_deref(), Some(expected));
    }

    #[test]
    fn concat_with_too_long_source_paths_is_refused() {
        let concat = |sources| pb::ConcatRequest {
            target: "/t".into(),
            sources: vec!["/x".repeat(2048); sources],
            ..pb::ConcatRequest::default()
        };
        assert_eq!(refusal(concat(256)), None);
        let expected = "Invalid: 1052672 bytes of source paths in one request: the limit is 1048576";
        assert_eq!(refusal(concat(257)).as_deref(), Some(expected));
    }

    #[test]
    fn heartbeat_without_usage_is_refused() {
        let uuid = "00000000-0000-0000-0000-000000000001".into();
        let without = pb::HeartbeatRequest { uuid, ..pb::HeartbeatRequest::default() };
        let with = pb::HeartbeatRequest { usage: Some(pb::Usage::default()), ..without.clone() };
        heartbeat(with).unwrap();
        let error = heartbeat(without).unwrap_err();
        assert!(error.kind == Kind::Invalid && error.message.contains("usage"), "{error}");
    }
}
