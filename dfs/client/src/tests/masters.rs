//! Tests of calls to several NameNodes, each behind a proxy that refuses, hangs or breaks
//! connections. The members have one namespace: it shows which requests were carried out.

use super::*;
use crate::error::{Error, Kind, Leader};
use crate::group::MemberRole;
use proto::{
    dfs::name_node_server::NameNodeServer,
    master::{
        ChangeGroupReply, ChangeGroupRequest, GroupReply, GroupRequest, LeadershipReply, LeadershipRequest,
        group_reply,
        master_server::{Master, MasterServer},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tonic::{Request, Response, Status};

/// How long the clients of these tests wait for the leader before they ask the others.
const SILENCE: Duration = Duration::from_millis(100);

/// What the proxy of a member does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// It passes everything on.
    Up,
    /// It accepts connections and passes nothing on.
    Frozen,
    /// It closes every connection.
    Down,
    /// It passes requests on, and closes the connection before the reply.
    LosesReplies,
}

/// What a member answers.
#[derive(Debug, Clone, Default)]
struct MemberState {
    /// The epoch in which it claims to lead.
    leads: Option<u64>,
    /// The leader that it names, if it does not lead.
    hint: Option<Leader>,
    /// Whether it refuses calls although it claims to lead, because it has no majority.
    cut_off: bool,
    /// How often it was asked whether it leads.
    asked: usize,
}

struct Member {
    addr: String,
    state: Arc<Mutex<MemberState>>,
    mode: watch::Sender<Mode>,
}

struct MasterService(Arc<Mutex<MemberState>>);

#[tonic::async_trait]
impl Master for MasterService {
    async fn leadership(
        &self,
        _: Request<LeadershipRequest>,
    ) -> std::result::Result<Response<LeadershipReply>, Status> {
        let mut state = self.0.lock();
        state.asked += 1;
        let (leads, epoch) = (state.leads.is_some(), state.leads.unwrap_or(0));
        Ok(Response::new(LeadershipReply { leads, epoch }))
    }

    async fn group(&self, _: Request<GroupRequest>) -> std::result::Result<Response<GroupReply>, Status> {
        let leads = self.0.lock().leads;
        let role = if leads.is_some() { group_reply::Role::Leader } else { group_reply::Role::Follower };
        let epoch = leads.unwrap_or(0);
        Ok(Response::new(GroupReply { id: 1, role: role.into(), epoch, ..GroupReply::default() }))
    }

    async fn change_group(
        &self,
        _: Request<ChangeGroupRequest>,
    ) -> std::result::Result<Response<ChangeGroupReply>, Status> {
        match self.0.lock().leads {
            Some(_) => Ok(Response::new(ChangeGroupReply { done: true, ..ChangeGroupReply::default() })),
            None => Err(Error::not_leader(Role::NameNode, None).into()),
        }
    }
}

impl Member {
    async fn start(cluster: &Cluster) -> Self {
        let state = Arc::<Mutex<MemberState>>::default();
        let (backend, front) = (listener().await, listener().await);
        let (to, addr) = (backend.local_addr().unwrap(), front.local_addr().unwrap().to_string());
        let of_calls = state.clone();
        // `result_large_err`: the type is given by tonic.
        #[allow(clippy::result_large_err)]
        let check = move |request: Request<()>| match &*of_calls.lock() {
            MemberState { leads: None, hint, .. } => {
                Err(Error::not_leader(Role::NameNode, hint.clone()).into())
            }
            MemberState { cut_off: true, .. } => Err(Error::new(Kind::Unavailable, "no majority").into()),
            MemberState { .. } => Ok(request),
        };
        let server = tonic::transport::Server::builder()
            .add_service(NameNodeServer::with_interceptor(cluster.service.clone(), check))
            .add_service(MasterServer::new(MasterService(state.clone())));
        tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(backend)));
        let mode = watch::Sender::new(Mode::Up);
        tokio::spawn(proxy(front, to, mode.clone()));
        Self { addr, state, mode }
    }

    fn set(&self, leads: Option<u64>) {
        self.state.lock().leads = leads;
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

async fn proxy(front: TcpListener, to: std::net::SocketAddr, mode: watch::Sender<Mode>) {
    let mut connections = JoinSet::new();
    let mut modes = mode.subscribe();
    loop {
        tokio::select! {
            accepted = front.accept() => {
                if *modes.borrow() != Mode::Down {
                    connections.spawn(forward(accepted.unwrap().0, to, mode.subscribe()));
                }
            }
            _ = modes.changed() => {
                if *modes.borrow_and_update() == Mode::Down {
                    connections.abort_all();
                }
            }
        }
    }
}

async fn forward(client: TcpStream, to: std::net::SocketAddr, mode: watch::Receiver<Mode>) {
    let Ok(server) = TcpStream::connect(to).await else { return };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let (mut of_requests, mut of_replies) = (mode.clone(), mode);
    let requests = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            if of_requests.wait_for(|mode| *mode != Mode::Frozen).await.is_err()
                || to_server.write_all(&buffer[..read]).await.is_err()
            {
                return;
            }
        }
    };
    let replies = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            let mode = of_replies.wait_for(|mode| *mode != Mode::Frozen).await.map(|mode| *mode);
            if mode.is_ok_and(|mode| mode == Mode::LosesReplies)
                || to_client.write_all(&buffer[..read]).await.is_err()
            {
                return;
            }
        }
    };
    tokio::select! { () = requests => {}, () = replies => {} }
}

/// A group of three members. The first leads in epoch 5.
struct Group {
    cluster: Cluster,
    members: Vec<Member>,
}

impl Group {
    async fn start() -> Self {
        let cluster = Cluster::start(0).await;
        let mut members = Vec::new();
        for _ in 0..3 {
            members.push(Member::start(&cluster).await);
        }
        members[0].set(Some(5));
        Self { cluster, members }
    }

    fn options(&self) -> ClientOptions {
        let addrs: Vec<&str> = self.members.iter().map(|member| member.addr.as_str()).collect();
        let mut options = ClientOptions::new(addrs.join(","), self.cluster.config.clone());
        options.config.deadline = daemon::Period::secs(20);
        options.silence = SILENCE;
        options
    }

    async fn client(&self) -> Client {
        Client::connect(self.options()).await.unwrap()
    }

    /// Returns a client for a test without silent members. It does not ask because the machine is
    /// slow.
    async fn patient_client(&self) -> Client {
        Client::connect(ClientOptions { silence: Duration::from_secs(10), ..self.options() }).await.unwrap()
    }

    fn leader(&self, at: usize, epoch: u64) -> Leader {
        Leader { addr: self.members[at].addr.clone(), epoch }
    }

    fn mode(&self, at: usize, mode: Mode) {
        self.members[at].mode.send_replace(mode);
    }

    fn asked(&self) -> usize {
        self.members.iter().map(|member| member.state.lock().asked).sum()
    }

    /// Returns the number of requests that were carried out, and the number of different ones.
    fn executed(&self) -> (usize, usize) {
        let namespace = self.cluster.namespace.lock();
        let ids: BTreeSet<&Vec<u8>> = namespace.mutations.iter().map(|(_, id)| id).collect();
        (namespace.mutations.len(), ids.len())
    }
}

async fn mkdir(client: &Client, folder: &str) -> Result<()> {
    client.mkdir(&path(folder), false).await
}

#[tokio::test]
async fn one_namenode_is_never_asked_whether_it_leads() {
    let group = Group::start().await;
    let options = ClientOptions::new(&group.members[0].addr, group.cluster.config.clone());
    let client = Client::connect(ClientOptions { silence: SILENCE, ..options }).await.unwrap();
    group.mode(0, Mode::Frozen);
    let thawing = async {
        tokio::time::sleep(3 * SILENCE).await;
        group.mode(0, Mode::Up);
    };
    let (made, ()) = tokio::join!(mkdir(&client, "/a"), thawing);
    made.unwrap();
    assert_eq!((group.asked(), group.executed()), (0, (1, 1)));
}

#[tokio::test]
async fn client_with_one_address_of_a_group_fails_at_once_if_another_leads() {
    let group = Group::start().await;
    let options = ClientOptions::new(&group.members[0].addr, group.cluster.config.clone());
    let client = Client::connect(options).await.unwrap();
    group.members[0].set(None);
    group.members[0].state.lock().hint = Some(group.leader(1, 7));
    let began = Instant::now();
    let refused = mkdir(&client, "/a").await.unwrap_err();
    assert!(began.elapsed() < group.cluster.config.deadline.0 / 2, "{:?}", began.elapsed());
    let (leader, text) = (&group.members[1].addr, refused.to_string());
    assert!(text.contains(leader) && text.contains("addresses of all in cluster.namenode"), "{text}");
    // Without a leader one may be elected.
    group.members[0].state.lock().hint = None;
    let electing = async {
        tokio::time::sleep(SILENCE).await;
        group.members[0].set(Some(8));
    };
    let (made, ()) = tokio::join!(mkdir(&client, "/a"), electing);
    made.unwrap();
}

#[tokio::test]
async fn leader_is_found_among_members_that_refuse_hang_and_follow() {
    let group = Group::start().await;
    let refusing = listener().await.local_addr().unwrap().to_string();
    let mut options = group.options();
    options.namenode = format!("{refusing},{}", options.namenode).into();
    for leader in 0..3 {
        for at in 0..3 {
            group.members[at].set((at == leader).then_some(5));
            group.mode(at, if at == (leader + 1) % 3 { Mode::Frozen } else { Mode::Up });
        }
        let began = Instant::now();
        let client = Client::connect(options.clone()).await.unwrap();
        client.stat(&path("/")).await.unwrap();
        // An attempt to connect takes 5 s, and one to call a frozen member, too.
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn error_names_every_member_and_what_is_wrong_with_it() {
    let group = Group::start().await;
    let refusing = listener().await.local_addr().unwrap().to_string();
    group.members[0].set(None);
    group.mode(1, Mode::Frozen);
    let addrs = [&refusing, &group.members[0].addr, &group.members[1].addr].map(String::as_str).join(",");
    let mut options = ClientOptions { namenode: addrs.into(), ..group.options() };
    options.silence = Duration::from_millis(700);
    options.config.connect_timeout = daemon::Period(options.silence);
    let error = Client::connect(options).await.map(drop).unwrap_err();
    assert!(error.is_unavailable());
    assert_eq!(
        error.to_string(),
        format!(
            "no NameNode answers: {refusing} refused the connection; {} does not lead; {} silent for 1 s",
            group.members[0].addr, group.members[1].addr
        )
    );
}

#[tokio::test]
async fn every_member_is_asked_what_it_does_and_silence_has_a_reason() {
    let group = Group::start().await;
    let refusing = listener().await.local_addr().unwrap().to_string();
    group.mode(2, Mode::Frozen);
    let addrs = [&group.members[0].addr, &group.members[1].addr, &group.members[2].addr, &refusing];
    let addrs = addrs.map(String::as_str).join(",");
    let options = ClientOptions { namenode: addrs.into(), ..group.options() };
    let answers = crate::group::ask(&options, Duration::from_secs(2)).await.unwrap();
    let [(_, leader), (_, follower), (_, frozen), (last, refused)] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    let leader = leader.as_ref().unwrap();
    assert_eq!((leader.status.role, leader.epoch), (MemberRole::Leader, 5));
    assert_eq!(follower.as_ref().unwrap().status.role, MemberRole::Follower);
    assert_eq!(frozen.as_ref().unwrap_err(), "silent for 2s");
    assert_eq!((last, refused.as_ref().unwrap_err().as_str()), (&refusing, "refused the connection"));
}

#[tokio::test]
async fn operation_without_a_leader_fails_at_its_deadline_with_every_member() {
    let group = Group::start().await;
    let mut options = ClientOptions { silence: Duration::from_secs(10), ..group.options() };
    options.config.deadline = daemon::Period::secs(1);
    let client = Client::connect(options).await.unwrap();
    group.members[0].set(None);
    let error = mkdir(&client, "/a").await.unwrap_err().to_string();
    let each = |member: &Member| format!("{} does not lead", member.addr);
    let tried = group.members.iter().map(each).collect::<Vec<_>>().join("; ");
    assert!(error.starts_with("mkdir /a did not succeed within "), "{error}");
    assert!(error.ends_with(&format!(" s: no NameNode answers: {tried}")), "{error}");
    assert_eq!(group.executed(), (0, 0));
}

#[tokio::test]
async fn hint_is_followed_at_once_and_only_to_a_configured_member() {
    let group = Group::start().await;
    let client = group.patient_client().await;
    let asked = group.asked();
    group.members[0].state.lock().hint = Some(group.leader(2, 6));
    group.members[0].set(None);
    group.members[2].set(Some(6));
    mkdir(&client, "/a").await.unwrap();
    assert_eq!((group.asked(), group.executed()), (asked, (1, 1)), "nobody was asked");

    // A master that is in no list and would accept the call.
    let unlisted = Member::start(&group.cluster).await;
    unlisted.set(Some(9));
    group.members[2].state.lock().hint = Some(Leader { addr: unlisted.addr.clone(), epoch: 9 });
    group.members[2].set(None);
    let wrong = mkdir(&client, "/b");
    let elected = async {
        tokio::time::sleep(2 * SILENCE).await;
        let so_far = group.executed();
        group.members[1].set(Some(10));
        so_far
    };
    let (made, so_far) = tokio::join!(wrong, elected);
    made.unwrap();
    assert_eq!((so_far, group.executed()), ((1, 1), (2, 2)));
    assert_eq!(unlisted.state.lock().asked, 0);
}

#[tokio::test]
async fn call_to_a_frozen_leader_moves_only_to_one_in_a_higher_epoch() {
    let group = Group::start().await;
    let client = group.client().await;
    group.mode(0, Mode::Frozen);
    group.members[1].set(Some(4));
    let making = mkdir(&client, "/a");
    let elected = async {
        tokio::time::sleep(6 * SILENCE).await;
        let before = (group.executed(), group.members[1].state.lock().asked);
        group.members[2].set(Some(6));
        (before, Instant::now())
    };
    let (made, ((executed, asked), elected_at)) = tokio::join!(making, elected);
    made.unwrap();
    // An attempt ends after 5 s.
    assert!(elected_at.elapsed() < Duration::from_secs(3), "{:?}", elected_at.elapsed());
    assert!(executed == (0, 0) && asked > 1, "the older leader was used, or not asked: {executed:?} {asked}");
    assert_eq!(group.executed(), (1, 1));
}

#[tokio::test]
async fn slow_leader_is_not_left() {
    let group = Group::start().await;
    let client = group.client().await;
    group.mode(0, Mode::Frozen);
    let thawing = async {
        tokio::time::sleep(6 * SILENCE).await;
        group.mode(0, Mode::Up);
    };
    let (made, ()) = tokio::join!(mkdir(&client, "/a"), thawing);
    made.unwrap();
    assert_eq!(group.executed(), (1, 1), "one attempt");
}

#[tokio::test]
async fn call_whose_reply_is_lost_is_repeated_with_its_id_at_the_next_leader() {
    let group = Group::start().await;
    let client = group.client().await;
    group.mode(0, Mode::LosesReplies);
    let making = mkdir(&client, "/a");
    let elected = async {
        wait_until("the first leader has carried it out", || group.executed().0 > 0).await;
        group.mode(0, Mode::Down);
        group.members[1].set(Some(6));
    };
    let (made, ()) = tokio::join!(making, elected);
    made.unwrap();
    let (attempts, different) = group.executed();
    assert!(attempts >= 2 && different == 1, "{attempts} attempts, {different} requests");
}

#[tokio::test]
async fn leader_without_a_majority_is_left_for_a_newer_one() {
    let group = Group::start().await;
    let client = group.client().await;
    group.members[0].state.lock().cut_off = true;
    group.members[1].set(Some(6));
    let began = Instant::now();
    mkdir(&client, "/a").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(group.executed(), (1, 1));
}

#[tokio::test]
async fn many_calls_that_fail_together_ask_together() {
    let group = Group::start().await;
    let client = group.patient_client().await;
    let (asked, changed) = (group.asked(), client.leader_changed());
    group.mode(0, Mode::Down);
    group.members[1].set(Some(6));
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let client = client.clone();
        calls.spawn(async move { client.mkdir(&path(&format!("/{number}")), false).await });
    }
    while let Some(made) = calls.join_next().await {
        made.unwrap().unwrap();
    }
    assert_eq!(group.executed(), (100, 100));
    // Each round asks three members.
    assert!(group.asked() - asked <= 15, "{} questions", group.asked() - asked);
    changed.await;
}

/// Changes the leader and breaks members at random.
async fn break_members(group: &Group, random: &mut StdRng, rounds: u64) {
    for epoch in 6..6 + rounds {
        let leader = random.random_range(0..3);
        for (at, member) in group.members.iter().enumerate() {
            let hint = match random.random_range(0..4) {
                0 => None,
                1 => Some(group.leader(random.random_range(0..3), epoch - 1)),
                2 => Some(Leader { addr: "127.0.0.1:1".into(), epoch: epoch + 9 }),
                _ => Some(group.leader(leader, epoch)),
            };
            let claims_too_long = random.random_bool(0.3);
            let mut state = member.state.lock();
            state.hint = hint;
            (state.leads, state.cut_off) = match state.leads {
                _ if at == leader => (Some(epoch), false),
                Some(old) if claims_too_long => (Some(old), true),
                _ => (None, false),
            };
            drop(state);
            let modes = [Mode::Up, Mode::Frozen, Mode::Down, Mode::LosesReplies];
            member.mode.send_replace(if at == leader { Mode::Up } else { modes[random.random_range(0..4)] });
        }
        // In this time each client can find the leader.
        tokio::time::sleep(Duration::from_millis(random.random_range(50..500))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_find_every_leader_in_time_and_each_operation_has_one_id() {
    let seed = std::env::var("FERMATA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::random_range(0..u64::MAX));
    eprintln!("FERMATA_SEED={seed}");
    let group = Group::start().await;
    let end = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut workers = JoinSet::new();
    for worker in 0..4 {
        let (client, end) = (group.client().await, end.clone());
        workers.spawn(async move {
            let (mut operations, mut longest) = (0, Duration::ZERO);
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                let began = Instant::now();
                client.mkdir(&path(&format!("/{worker}-{operations}")), false).await.unwrap();
                (operations, longest) = (operations + 1, longest.max(began.elapsed()));
            }
            (operations, longest)
        });
    }
    break_members(&group, &mut StdRng::seed_from_u64(seed), 20).await;
    end.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut total = 0;
    while let Some(ended) = workers.join_next().await {
        let (operations, longest) = ended.unwrap();
        total += operations;
        // Several leaders may follow each other before a client reaches one.
        assert!(longest < Duration::from_secs(10), "an operation took {longest:?}");
    }
    assert_eq!(group.executed().1, total, "every operation has one ID");
    assert_eq!(group.cluster.paths().len(), total + 1, "the root and one folder for each operation");
}
