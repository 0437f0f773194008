//! A fake NameNode: a namespace in memory behind the real gRPC service.

use super::nodes::{Node, Nodes, nonce_of};
use super::*;
use crate::error::{Error, Kind};
use proto::dfs as pb;
use proto::dfs::name_node_server::{NameNode, NameNodeServer};
use std::collections::{BTreeMap, VecDeque};
use tonic::{Request, Response, Status};

type Reply<T> = std::result::Result<Response<T>, Status>;

#[derive(Clone, Default)]
pub(super) struct FakeFile {
    pub(super) id: u64,
    pub(super) is_dir: bool,
    pub(super) open: bool,
    block_size: u64,
    replication: usize,
    /// The ID of each block, its length if it is committed, and the names of its nodes.
    pub(super) blocks: Vec<(u64, Option<u64>, Vec<String>)>,
}

impl FakeFile {
    fn length(&self) -> u64 {
        self.blocks.iter().filter_map(|block| block.1).sum()
    }
}

#[derive(Default)]
pub(super) struct FakeNamespace {
    pub(super) files: BTreeMap<String, FakeFile>,
    pub(super) lease_ms: u64,
    pub(super) renewals: usize,
    /// Method and request ID of every mutating call, including calls that return one of `failures`.
    pub(super) mutations: Vec<(&'static str, Vec<u8>)>,
    pub(super) users: Vec<String>,
    /// Errors that the next calls return, one per call.
    pub(super) failures: VecDeque<Status>,
    /// Block and node UUID of each reported bad replica.
    pub(super) bad_replica_reports: Vec<(u64, String)>,
    pub(super) excluded_nodes: Vec<Vec<String>>,
    /// Whether the quota is exceeded. If so, every commit of a block is refused.
    pub(super) quota_exceeded: bool,
    /// Changes the blocks in the replies to `Locate` and `AddBlock`.
    pub(super) mangle: Option<fn(&mut pb::LocatedBlock)>,
    last_id: u64,
}

/// A fake cluster: a NameNode and DataNodes.
pub(in super::super) struct Cluster {
    pub(super) namespace: Arc<Mutex<FakeNamespace>>,
    pub(super) nodes: Nodes,
    pub(super) namenode: String,
    pub(super) config: daemon::config::ClientConfig,
    /// The service, for more servers with the same namespace.
    pub(super) service: FakeNameNode,
}

#[derive(Clone)]
pub(in super::super) struct FakeNameNode {
    namespace: Arc<Mutex<FakeNamespace>>,
    nodes: Nodes,
}

impl Cluster {
    /// Starts a cluster with DataNodes n1, n2, ..., and a short deadline.
    pub(in super::super) async fn start(nodes: usize) -> Self {
        let namespace = Arc::new(Mutex::new(FakeNamespace { lease_ms: 60_000, ..FakeNamespace::default() }));
        let all: Nodes = Arc::default();
        for index in 1..=nodes {
            let node = Node::start(&format!("n{index}"), all.clone());
            all.lock().push(node);
        }
        let root = FakeFile { is_dir: true, ..FakeFile::default() };
        namespace.lock().files.insert("/".into(), root);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let namenode = listener.local_addr().unwrap().to_string();
        let service = FakeNameNode { namespace: namespace.clone(), nodes: all.clone() };
        let for_members = service.clone();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder().add_service(NameNodeServer::new(service));
        tokio::spawn(server.serve_with_incoming(incoming));
        let config = daemon::config::ClientConfig {
            deadline: daemon::Period::secs(2),
            ..daemon::config::ClientConfig::default()
        };
        Self { namespace, nodes: all, namenode, config, service: for_members }
    }

    pub(in super::super) async fn client(&self) -> Client {
        let options = ClientOptions {
            user: "tester".into(),
            host: "here".into(),
            ..ClientOptions::new(self.namenode.clone(), self.config.clone())
        };
        Client::connect(options).await.unwrap()
    }

    pub(super) fn node(&self, number: usize) -> Arc<Node> {
        self.nodes.lock()[number - 1].clone()
    }

    /// Returns the contents of a file, each block from the first node that has it.
    pub(super) fn content(&self, path: &str) -> Vec<u8> {
        let file = self.namespace.lock().files[path].clone();
        let mut content = Vec::new();
        for (block, length, _) in &file.blocks {
            let nodes = self.nodes.lock().clone();
            let found = nodes.iter().find_map(|node| node.state.lock().blocks.get(block).cloned()).unwrap();
            assert_eq!(Some(found.len() as u64), *length, "the block was committed with a wrong length");
            content.extend(found);
        }
        content
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.namespace.lock().files.keys().cloned().collect()
    }
}

impl FakeNameNode {
    /// Records a call. Returns the next of `failures` as an error, if there is one.
    fn record_call<T>(
        &self,
        name: &'static str,
        id: &[u8],
        request: &Request<T>,
    ) -> std::result::Result<(), Status> {
        let mut namespace = self.namespace.lock();
        let user = request.metadata().get(security::USER_KEY).and_then(|user| user.to_str().ok());
        namespace.users.push(user.unwrap_or_default().to_owned());
        if !id.is_empty() {
            assert_eq!(id.len(), 16);
            namespace.mutations.push((name, id.to_vec()));
        }
        namespace.failures.pop_front().map_or(Ok(()), Err)
    }

    fn address(node: &Node) -> pb::DataNodeAddress {
        pb::DataNodeAddress {
            node: node.name.clone(),
            uuid: node.uuid(),
            data_addr: node.addr.clone(),
            host: node.name.clone(),
            ..Default::default()
        }
    }

    fn locate(
        &self,
        namespace: &FakeNamespace,
        block: u64,
        offset: u64,
        length: u64,
        on: &[String],
    ) -> pb::LocatedBlock {
        let all = self.nodes.lock();
        let find = |name: &String| all.iter().find(|node| node.name == *name).map(|node| Self::address(node));
        let nodes = on.iter().filter_map(find).collect();
        let nonce = nonce_of(block);
        let mut located =
            pb::LocatedBlock { block_id: block, offset, length, nodes, nonce, ..Default::default() };
        if let Some(mangle) = namespace.mangle {
            mangle(&mut located);
        }
        located
    }
}

fn status(path: &str, file: &FakeFile) -> pb::FileStatus {
    pb::FileStatus {
        path: path.into(),
        is_dir: file.is_dir,
        file_id: file.id,
        length: file.length(),
        replication: file.replication as u32,
        block_size: file.block_size,
        open: file.open,
        blocks: file.blocks.len() as u32,
        ..Default::default()
    }
}

fn not_found(path: &str) -> Status {
    Error::new(Kind::NotFound, format!("{path}: no such file or folder")).into()
}

fn find_by_id(namespace: &mut FakeNamespace, id: u64) -> std::result::Result<(String, FakeFile), Status> {
    let found = namespace.files.iter().find(|(_, file)| file.id == id && !file.is_dir);
    found.map(|(path, file)| (path.clone(), file.clone())).ok_or_else(|| not_found("that id"))
}

fn commit(
    quota_exceeded: bool,
    file: &mut FakeFile,
    commits: &[pb::BlockLength],
) -> std::result::Result<(), Status> {
    if quota_exceeded && !commits.is_empty() {
        return Err(Error::new(Kind::Quota, "/: quota of 0 bytes").into());
    }
    for done in commits {
        let block = file.blocks.iter_mut().find(|block| block.0 == done.block_id).expect("a known block");
        block.1 = Some(done.length);
    }
    Ok(())
}

fn not_called<T>() -> Reply<T> {
    Err(Status::unimplemented("these tests do not call it"))
}

#[tonic::async_trait]
impl NameNode for FakeNameNode {
    type BackupStream = tonic::codegen::BoxStream<pb::BackupChunk>;

    async fn backup(&self, _: Request<pb::BackupRequest>) -> Reply<Self::BackupStream> {
        not_called()
    }

    async fn create(&self, request: Request<pb::CreateRequest>) -> Reply<pb::CreateReply> {
        self.record_call("create", &request.get_ref().request_id, &request)?;
        let request = request.into_inner();
        let mut namespace = self.namespace.lock();
        if namespace.files.contains_key(&request.path) && !request.overwrite {
            return Err(Error::new(Kind::Exists, format!("{} exists", request.path)).into());
        }
        namespace.last_id += 1;
        let block_size = if request.block_size == 0 { 1 << 20 } else { request.block_size };
        let (id, replication) = (namespace.last_id, request.replication.max(1) as usize);
        let file = FakeFile { id, open: true, block_size, replication, ..FakeFile::default() };
        let reply =
            pb::CreateReply { status: Some(status(&request.path, &file)), lease_ms: namespace.lease_ms };
        namespace.files.insert(request.path, file);
        Ok(Response::new(reply))
    }

    async fn append(&self, request: Request<pb::AppendRequest>) -> Reply<pb::AppendReply> {
        self.record_call("append", &request.get_ref().request_id, &request)?;
        let mut namespace = self.namespace.lock();
        let (path, lease_ms) = (request.into_inner().path, namespace.lease_ms);
        let file = namespace.files.get_mut(&path).ok_or_else(|| not_found(&path))?;
        file.open = true;
        Ok(Response::new(pb::AppendReply { status: Some(status(&path, file)), lease_ms }))
    }

    async fn add_block(&self, request: Request<pb::AddBlockRequest>) -> Reply<pb::AddBlockReply> {
        self.record_call("add_block", &request.get_ref().request_id, &request)?;
        let request = request.into_inner();
        let mut namespace = self.namespace.lock();
        let (path, mut file) = find_by_id(&mut namespace, request.file_id)?;
        let names: Vec<String> = self.nodes.lock().iter().map(|node| node.name.clone()).collect();
        let good = names.into_iter().filter(|name| !request.exclude_nodes.contains(name));
        let on: Vec<String> = good.take(file.replication).collect();
        namespace.excluded_nodes.push(request.exclude_nodes);
        if on.is_empty() {
            return Err(Error::new(Kind::NoNodes, "no DataNode is left for a block").into());
        }
        commit(namespace.quota_exceeded, &mut file, &request.commits)?;
        namespace.last_id += 1;
        let (block, offset) = (namespace.last_id, file.length());
        let located = self.locate(&namespace, block, offset, 0, &on);
        file.blocks.push((block, None, on));
        namespace.files.insert(path, file);
        Ok(Response::new(pb::AddBlockReply { block: Some(located) }))
    }

    async fn abandon_block(&self, request: Request<pb::AbandonBlockRequest>) -> Reply<pb::AbandonBlockReply> {
        self.record_call("abandon_block", &request.get_ref().request_id, &request)?;
        let request = request.into_inner();
        let mut namespace = self.namespace.lock();
        let (path, mut file) = find_by_id(&mut namespace, request.file_id)?;
        let last = file.blocks.pop().unwrap();
        assert_eq!(
            (last.0, last.1),
            (request.block_id, None),
            "the abandoned block is not the newest, or is committed"
        );
        namespace.files.insert(path, file);
        Ok(Response::new(pb::AbandonBlockReply {}))
    }

    async fn close(&self, request: Request<pb::CloseRequest>) -> Reply<pb::CloseReply> {
        self.record_call("close", &request.get_ref().request_id, &request)?;
        let request = request.into_inner();
        let mut namespace = self.namespace.lock();
        let (path, mut file) = find_by_id(&mut namespace, request.file_id)?;
        commit(namespace.quota_exceeded, &mut file, &request.commits)?;
        assert!(
            file.blocks.iter().all(|block| block.1.is_some()),
            "the file is closed with an uncommitted block"
        );
        file.open = false;
        let to = if request.rename_to.is_empty() { path.clone() } else { request.rename_to };
        if to != path && namespace.files.contains_key(&to) && !request.overwrite {
            return Err(Error::new(Kind::Exists, format!("{to} exists")).into());
        }
        namespace.files.remove(&path);
        let reply = pb::CloseReply { status: Some(status(&to, &file)) };
        namespace.files.insert(to, file);
        Ok(Response::new(reply))
    }

    async fn renew_lease(&self, _: Request<pb::RenewLeaseRequest>) -> Reply<pb::RenewLeaseReply> {
        let mut namespace = self.namespace.lock();
        namespace.renewals += 1;
        Ok(Response::new(pb::RenewLeaseReply { lease_ms: namespace.lease_ms }))
    }

    async fn locate(&self, request: Request<pb::LocateRequest>) -> Reply<pb::LocateReply> {
        self.record_call("locate", &[], &request)?;
        let request = request.into_inner();
        let namespace = self.namespace.lock();
        let file = namespace.files.get(&request.path).ok_or_else(|| not_found(&request.path))?;
        let (mut blocks, mut offset) = (Vec::new(), 0);
        for (block, length, on) in &file.blocks {
            let Some(length) = *length else { continue };
            let wanted =
                offset + length > request.offset && offset < request.offset.saturating_add(request.length);
            // Return few blocks per reply, so that every reader needs several calls.
            if wanted && blocks.len() < 3 {
                blocks.push(FakeNameNode::locate(self, &namespace, *block, offset, length, on));
            }
            offset += length;
        }
        Ok(Response::new(pb::LocateReply { status: Some(status(&request.path, file)), blocks }))
    }

    async fn report_bad_replica(
        &self,
        request: Request<pb::ReportBadReplicaRequest>,
    ) -> Reply<pb::ReportBadReplicaReply> {
        let request = request.into_inner();
        self.namespace.lock().bad_replica_reports.push((request.block_id, request.node_uuid));
        Ok(Response::new(pb::ReportBadReplicaReply {}))
    }

    async fn mkdir(&self, request: Request<pb::MkdirRequest>) -> Reply<pb::MkdirReply> {
        self.record_call("mkdir", &request.get_ref().request_id, &request)?;
        let mut namespace = self.namespace.lock();
        namespace.last_id += 1;
        let folder = FakeFile { id: namespace.last_id, is_dir: true, ..FakeFile::default() };
        namespace.files.insert(request.into_inner().path, folder);
        Ok(Response::new(pb::MkdirReply {}))
    }

    async fn stat(&self, request: Request<pb::StatRequest>) -> Reply<pb::StatReply> {
        self.record_call("stat", &[], &request)?;
        let path = request.into_inner().path;
        let namespace = self.namespace.lock();
        let file = namespace.files.get(&path).ok_or_else(|| not_found(&path))?;
        Ok(Response::new(pb::StatReply { status: Some(status(&path, file)) }))
    }

    /// Returns two entries per page, so that every test uses paging.
    async fn list(&self, request: Request<pb::ListRequest>) -> Reply<pb::ListReply> {
        self.record_call("list", &[], &request)?;
        let request = request.into_inner();
        let folder = path(&request.path);
        let namespace = self.namespace.lock();
        let children = namespace.files.iter().filter(|(path_text, _)| {
            let one = path(path_text);
            one.split_last()
                .is_some_and(|(parent, name)| parent == folder && name > request.start_after.as_str())
        });
        let entries: Vec<_> = children.map(|(path, file)| status(path, file)).collect();
        let more = entries.len() > 2;
        Ok(Response::new(pb::ListReply { entries: entries.into_iter().take(2).collect(), more }))
    }

    async fn delete(&self, request: Request<pb::DeleteRequest>) -> Reply<pb::DeleteReply> {
        self.record_call("delete", &request.get_ref().request_id, &request)?;
        let existed = self.namespace.lock().files.remove(&request.into_inner().path).is_some();
        Ok(Response::new(pb::DeleteReply { existed }))
    }

    /// Returns an invalid reply, without safemode, unless only safemode is requested.
    async fn report(&self, request: Request<pb::ReportRequest>) -> Reply<pb::ReportReply> {
        let on = pb::Safemode { on: true, reason: "for a test".into(), ..pb::Safemode::default() };
        let safemode = request.into_inner().safemode_only.then_some(on);
        Ok(Response::new(pb::ReportReply { safemode, ..pb::ReportReply::default() }))
    }

    /// Returns an invalid reply, with an unknown state of the node.
    async fn drain(&self, _: Request<pb::DrainRequest>) -> Reply<pb::DrainReply> {
        Ok(Response::new(pb::DrainReply { state: 77, ..pb::DrainReply::default() }))
    }

    async fn fsck(&self, request: Request<pb::FsckRequest>) -> Reply<pb::FsckReply> {
        let second = !request.into_inner().start_after.is_empty();
        let block = pb::FsckBlock { block_id: 1, length: 5, wanted: 2, live: 1, ..Default::default() };
        let lost = pb::FsckBlock { live: 0, corrupt: u32::MAX, draining: 0, ..block };
        let (at, block) = if second { ("/b", lost) } else { ("/a", block) };
        let problems = vec![pb::FsckFile { path: at.into(), open: false, blocks: vec![block] }];
        let (more, last_path) = (!second, at.to_owned());
        Ok(Response::new(pb::FsckReply { problems, files: 3, blocks: 4, bytes: 5, more, last_path }))
    }

    async fn rename(&self, _: Request<pb::RenameRequest>) -> Reply<pb::RenameReply> {
        not_called()
    }
    async fn set_attributes(&self, _: Request<pb::SetAttributesRequest>) -> Reply<pb::SetAttributesReply> {
        not_called()
    }
    async fn set_quota(&self, _: Request<pb::SetQuotaRequest>) -> Reply<pb::SetQuotaReply> {
        not_called()
    }
    async fn usage(&self, _: Request<pb::UsageRequest>) -> Reply<pb::UsageReply> {
        not_called()
    }
    async fn concat(&self, _: Request<pb::ConcatRequest>) -> Reply<pb::ConcatReply> {
        not_called()
    }
    async fn fence(&self, _: Request<pb::FenceRequest>) -> Reply<pb::FenceReply> {
        not_called()
    }
    async fn report_active_jobs(
        &self,
        _: Request<pb::ReportActiveJobsRequest>,
    ) -> Reply<pb::ReportActiveJobsReply> {
        not_called()
    }

    async fn commit(&self, _: Request<pb::CommitRequest>) -> Reply<pb::CommitReply> {
        not_called()
    }
    async fn set_safemode(&self, _: Request<pb::SetSafemodeRequest>) -> Reply<pb::SetSafemodeReply> {
        not_called()
    }
}
