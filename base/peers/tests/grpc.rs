//! Groups of three members over gRPC with TLS, on real disks and loopback sockets.

use daemon::config::Config;
use fermata_peers::{
    GroupName, join::NewMember, membership::Membership, service::PeerService, transport::GrpcTransport,
};
use journal::{
    Content, Log, Recovery,
    disk::{Disk, RealDisk},
};
use proto::{
    Message as _,
    raft::{Frame, Request, peers_client::PeersClient},
};
use replication::{
    error::StateError,
    machine::ReplicatedState,
    member::{Member, Role as MemberRole, Timing},
    network::{Message, SnapshotPart, Transport},
    replay::{Item, Replay},
    store::Store,
    types::{LogId, Proposal, SnapshotMeta, Vote},
};
use security::{Authority, Credentials, Guard, Keyring, Role, write_private};
use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::sleep};
use tonic::Code;

/// A master whose state is the number and the length of its records.
struct Counter {
    member: Member,
    state: Mutex<(u64, u64)>,
}

fn count(state: &mut (u64, u64), proposal: &Proposal) -> Result<(), StateError> {
    for record in proposal.records() {
        *state = (state.0 + 1, state.1 + record.ok_or("a record is cut")?.len() as u64);
    }
    Ok(())
}

fn read(mut replay: Replay) -> Result<(u64, u64), StateError> {
    let mut state = (0, 0);
    while let Some(item) = replay.next()? {
        match item {
            // The rest of the record makes the snapshot larger than one part.
            Item::Snapshot(record) => {
                let number = |at| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
                state = (number(0), number(8));
            }
            Item::Record { bytes, .. } => state = (state.0 + 1, state.1 + bytes.len() as u64),
        }
    }
    Ok(state)
}

impl ReplicatedState for Counter {
    fn apply(&self, _: LogId, proposal: &Proposal) -> Result<(), StateError> {
        count(&mut self.state.lock().unwrap(), proposal)
    }

    fn restore(&self, replay: Replay) -> Result<(), StateError> {
        *self.state.lock().unwrap() = read(replay)?;
        Ok(())
    }

    fn lead(&self, _: u64) {}

    fn follow(&self) {}
}

impl Counter {
    /// Appends one record of this length, and waits until it is committed.
    async fn append(&self, bytes: usize) {
        let ticket = {
            let mut state = self.state.lock().unwrap();
            *state = (state.0 + 1, state.1 + bytes as u64);
            self.member.append(&[vec![7; bytes]]).unwrap()
        };
        self.member.wait(ticket).await.unwrap();
    }
}

/// A member with its server.
struct Running {
    counter: Arc<Counter>,
    address: String,
    server: JoinHandle<()>,
}

struct Lab {
    folder: TempDir,
    /// The addresses that members which are started later admit.
    masters: Mutex<Vec<String>>,
}

fn group() -> GroupName {
    GroupName { cluster_id: "c1".into(), role: Role::NameNode }
}

impl Lab {
    /// Makes the certificates of a cluster.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("test").unwrap();
        let (own, public) = (folder.path().join("ca"), folder.path().join("security"));
        for path in [&own, &public] {
            fs::DirBuilder::new().mode(0o700).create(path).unwrap();
        }
        authority.save(&own, &public).unwrap();
        let keys = Keyring::from_secret(b"0123456789abcdef");
        for role in [Role::NameNode, Role::JobTracker, Role::DataNode] {
            let pem = authority.daemon(role, 1).unwrap();
            write_private(&public.join(format!("{role}.pem")), pem.as_bytes()).unwrap();
            write_private(&public.join(format!("{role}.keys")), keys.key_file_for(role).as_bytes()).unwrap();
        }
        Self { folder, masters: Mutex::default() }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.security.dir = self.folder.path().join("security");
        config
    }

    fn disk(&self, id: u64) -> Arc<dyn Disk> {
        Arc::new(RealDisk::open(self.folder.path().join(id.to_string())).unwrap())
    }

    async fn start(&self, id: u64) -> Running {
        self.start_at(id, "127.0.0.1:0").await
    }

    async fn start_at(&self, id: u64, address: &str) -> Running {
        let config = self.config();
        let listener = daemon::listen::bind(address, &config).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let guard = Guard::new(&config, Role::NameNode).unwrap();
        let incoming = guard.incoming(listener).unwrap();
        let member = Member::new(Store::open(&self.disk(id), id).unwrap());
        let counter = Arc::new(Counter { member: member.clone(), state: Mutex::default() });
        let admitted = self.masters.lock().unwrap().clone();
        let membership = Membership::new(Role::NameNode, member.clone(), admitted);
        let service = PeerService::server(group(), member.clone(), membership);
        let server = guard.server().unwrap().add_service(service).serve_with_incoming(incoming);
        let server = tokio::spawn(async move { server.await.unwrap() });
        let credentials = Credentials::of_daemon(&config, Role::NameNode).unwrap();
        let transport = Arc::new(GrpcTransport::new(group(), credentials));
        member.start(&Timing::default(), counter.clone(), &address, transport).await.unwrap();
        Running { counter, address, server }
    }
}

async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !condition() {
        assert!(Instant::now() < end, "waited for {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn group_of_three(lab: &Lab) -> Vec<Running> {
    let log = Log::open(lab.disk(1), Content::Records, Recovery::Refuse).unwrap().log;
    log.append(&[7; 10]).unwrap();
    let upto = log.rotate().unwrap();
    let mut writer = log.snapshot_writer(upto).unwrap();
    let mut record = [1_u64.to_le_bytes(), 10_u64.to_le_bytes()].concat();
    record.resize(5 << 20, 7);
    writer.push(&record).unwrap();
    writer.finish().unwrap();
    log.snapshot_done(upto).unwrap();
    drop(log);
    Store::found(&lab.disk(1), 1).unwrap();
    let mut members = vec![lab.start(1).await];
    let first = members[0].counter.clone();
    wait_for("a leader", || first.member.leading().is_some()).await;
    for id in [2, 3] {
        let running = lab.start(id).await;
        first.member.add(id, &running.address).await.unwrap();
        members.push(running);
    }
    members
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_replicate_over_tls_and_another_leads_when_the_leader_stops() {
    let lab = Lab::new();
    let mut members = group_of_three(&lab).await;
    let first = members.remove(0);
    for bytes in [0, 100, 1 << 20, 40 << 20] {
        first.counter.append(bytes).await;
    }
    let expected = *first.counter.state.lock().unwrap();
    assert_eq!(expected.0, 5);
    for other in &members {
        wait_for("the records", || *other.counter.state.lock().unwrap() == expected).await;
    }
    let status = first.counter.member.status();
    assert_eq!(status.role, MemberRole::Leader);
    assert_eq!(status.peers.len(), 3);
    assert!(status.peers.iter().all(|peer| peer.is_voter), "{status:?}");
    first.server.abort();
    first.counter.member.stop().await.unwrap();
    wait_for("another leader", || members.iter().any(|other| other.counter.member.leading().is_some())).await;
    let leader = members.iter().find(|other| other.counter.member.leading().is_some()).unwrap();
    leader.counter.append(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_from_others_and_for_others_are_refused() {
    let lab = Lab::new();
    let running = lab.start(1).await;
    let call = async |role: Role, request: Request| {
        let credentials = Credentials::of_daemon(&lab.config(), role).unwrap();
        let channel = credentials.endpoint(&running.address, Role::NameNode).unwrap().connect_lazy();
        let frames = request
            .encode_to_vec()
            .chunks(3)
            .map(|bytes| Frame { bytes: bytes.to_vec() })
            .collect::<Vec<_>>();
        let mut request = tonic::Request::new(tokio_stream::iter(frames));
        credentials.sign(request.metadata_mut(), &role.name().parse().unwrap());
        PeersClient::new(channel).send(request).await.unwrap_err()
    };
    let request = Request { protocol: 1, cluster_id: "c1".into(), to: 1, message: None };
    assert_eq!(call(Role::DataNode, request.clone()).await.code(), Code::PermissionDenied);
    assert_eq!(call(Role::JobTracker, request.clone()).await.code(), Code::PermissionDenied);
    assert_eq!(call(Role::NameNode, request.clone()).await.code(), Code::InvalidArgument);
    for (changed, why) in [
        (Request { protocol: 2, ..request.clone() }, "version 2"),
        (Request { cluster_id: "c2".into(), ..request.clone() }, "cluster c2"),
        (Request { to: 2, ..request.clone() }, "member 2"),
    ] {
        let refused = call(Role::NameNode, changed).await;
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(why), "{refused}");
    }
    // The transport passes the reason on.
    let credentials = Credentials::of_daemon(&lab.config(), Role::NameNode).unwrap();
    let transport = GrpcTransport::new(group(), credentials);
    let part =
        SnapshotPart { vote: Vote::new(1, 2), meta: SnapshotMeta::default(), offset: 0, bytes: vec![] };
    let limit = Duration::from_secs(10);
    let refused = transport.call(1, &running.address, Message::Part(part), limit).await.unwrap_err();
    assert_eq!(refused, "a snapshot of nothing");
    let begin = Instant::now();
    let vote = Message::Install(Vote::new(1, 2), SnapshotMeta::default());
    let refused = transport.call(2, "127.0.0.1:1", vote, limit).await.unwrap_err();
    assert!(begin.elapsed() < limit, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_joins_by_a_call_to_any_master_and_others_are_refused() {
    let lab = Lab::new();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    *lab.masters.lock().unwrap() = vec![address.clone()];
    let members = group_of_three(&lab).await;
    let (leader, masters) = (&members[0], members.iter().rev().map(|member| member.address.clone()));
    let masters: Vec<String> = ["127.0.0.1:1".into()].into_iter().chain(masters).collect();
    let own = Credentials::of_daemon(&lab.config(), Role::NameNode).unwrap();
    let new = |id: u64, address: &str| NewMember { id, address: address.into(), role: Role::NameNode };
    for (member, why) in [
        (new(2, &members[1].address), "is the address of member 2, which answers"),
        (new(2, "127.0.0.1:2"), "member 2 of the group is at"),
        (new(9, &members[1].address), "is the address of member 2, which answers"),
        (new(5, "127.0.0.1:2"), "127.0.0.1:2 is not in cluster.namenode of the NameNode that leads"),
        (new(0, "127.0.0.1:2"), "the ID or the address of the new member is missing"),
    ] {
        let refused = member.ask(&masters, &own, false).await.unwrap_err();
        assert!(refused.contains(why) && refused.contains("does not lead its group"), "{refused}");
    }
    let fourth = lab.start_at(4, &address).await;
    let asked = new(4, &fourth.address);
    for role in [Role::DataNode, Role::JobTracker] {
        let other = Credentials::of_daemon(&lab.config(), role).unwrap();
        asked.ask(&masters, &other, false).await.unwrap_err();
    }
    assert!(leader.counter.member.status().peers.iter().all(|peer| peer.id != 4));
    assert_eq!(asked.ask(&masters, &own, false).await.unwrap().cluster_id, "c1");
    let votes = |running: &Running| {
        running.counter.member.status().peers.iter().any(|peer| peer.id == 4 && peer.is_voter)
    };
    wait_for("the fourth member", || votes(leader) && votes(&fourth)).await;
    // It asks again because it has not seen that yet.
    assert_eq!(asked.ask(&masters, &own, true).await.unwrap().cluster_id, "c1");
}
