//! Tests that dropped calls release all resources, and that a full pool does not affect callers
//! with few calls.

use super::*;
use crate::{connection_limiter::ConnectionLimiter, identity::Role};
use proptest::prelude::*;
use std::{
    os::unix::net::UnixStream,
    pin::pin,
    task::{Context, Waker},
};

pub(crate) fn connection(connection_limiter: &Arc<ConnectionLimiter>) -> Arc<Connection> {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    Arc::new(Connection::new(None, connection_limiter.enter(ours)))
}

pub(crate) fn identity(role: Option<Role>, name: &str) -> Identity {
    Identity { role, name: name.into(), groups: Arc::new([]), superuser: false }
}

/// Begins a call of a user. Returns the kind of the refusal if it is refused.
fn begin_client_call(limits: &Arc<Limits>, name: &str, on: &Arc<Connection>) -> Result<Call, Kind> {
    let started = limits.begin_call(Class::Client, "/m", identity(Some(Role::User), name), Some(on.clone()));
    started.map_err(|(kind, status)| {
        assert!(status.message().contains("try again"), "{status}");
        kind
    })
}

impl Limits {
    /// Returns whether no call uses any resource.
    pub(crate) fn is_unused(&self) -> bool {
        let unused =
            |bytes: &Bytes| bytes.waiting.load(Relaxed) == 0 && bytes.free.available_permits() == bytes.max;
        let of_pool = |pool: &Pool| pool.calls.load(Relaxed) == 0 && unused(&pool.bytes);
        let of_share = |share: Arc<Share>| share.calls.load(Relaxed) == 0 && unused(&share.bytes);
        let shares = self.shares.lock();
        let mut shares = shares.all.values().filter_map(Weak::upgrade);
        of_pool(&self.daemons) && of_pool(&self.clients) && shares.all(of_share)
    }
}

#[test]
fn one_identity_cannot_use_the_whole_pool() {
    let (limits, connection_limiter) = (Arc::new(Limits::default()), ConnectionLimiter::new(1));
    let (one, other) = (connection(&connection_limiter), connection(&connection_limiter));
    let calls: Vec<_> =
        (0..IDENTITY_CALLS_MAX).map(|_| begin_client_call(&limits, "ann", &one).unwrap()).collect();
    assert_eq!(begin_client_call(&limits, "ann", &one).unwrap_err(), Kind::Identity);
    // The limit applies to all connections of an identity. Another name has its own share.
    assert_eq!(begin_client_call(&limits, "ann", &other).unwrap_err(), Kind::Identity);
    begin_client_call(&limits, "bob", &other).unwrap();
    drop(calls);
    begin_client_call(&limits, "ann", &one).unwrap();
    assert!(limits.is_unused(), "{limits:?}");
}

#[test]
fn full_pool_does_not_affect_daemons_and_guaranteed_calls() {
    let (limits, connection_limiter) = (Arc::new(Limits::default()), ConnectionLimiter::new(1));
    let busy = connection(&connection_limiter);
    let mut calls = Vec::new();
    for name in ["ann", "bob"] {
        calls.extend((0..IDENTITY_CALLS_MAX).map(|_| begin_client_call(&limits, name, &busy).unwrap()));
    }
    assert_eq!(calls.len(), CLIENT_CALLS_MAX);
    assert_eq!(begin_client_call(&limits, "eve", &busy).unwrap_err(), Kind::Calls);
    let fresh = connection(&connection_limiter);
    let first: Vec<_> =
        (0..GUARANTEED_CALLS).map(|_| begin_client_call(&limits, "eve", &fresh).unwrap()).collect();
    assert_eq!(begin_client_call(&limits, "eve", &fresh).unwrap_err(), Kind::Calls);
    let daemon = identity(Some(Role::DataNode), "datanode");
    limits.begin_call(Class::Daemon, "/m", daemon, Some(busy)).unwrap();
    drop((calls, first));
    assert!(limits.is_unused(), "{limits:?}");
}

#[test]
fn open_cluster_counts_by_address_except_guaranteed_calls() {
    let (limits, connection_limiter) = (Arc::new(Limits::default()), ConnectionLimiter::new(1));
    let (busy, fresh) = (connection(&connection_limiter), connection(&connection_limiter));
    let begin = |name, on: &Arc<Connection>| {
        limits
            .begin_call(Class::Client, "/m", identity(None, name), Some(on.clone()))
            .map_err(|(kind, _)| kind)
    };
    let calls: Vec<_> = (0..IDENTITY_CALLS_MAX).map(|_| begin("ann", &busy).unwrap()).collect();
    // Names are not proven in an open cluster, so another name uses the same share.
    assert_eq!(begin("bob", &busy).unwrap_err(), Kind::Identity);
    let _first = begin("bob", &fresh).unwrap();
    drop(calls);
}

#[derive(Debug, Clone)]
enum Step {
    Begin { daemon: bool, connection: usize, name: usize },
    Reserve { call: usize, bytes: usize },
    Wait { call: usize, bytes: usize },
    Poll { waiting: usize },
    Abandon { waiting: usize },
    End { call: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = 1..MESSAGE_BYTES_MAX;
    let step = prop_oneof![
        (any::<bool>(), 0..3_usize, 0..3_usize).prop_map(|(daemon, connection, name)| Step::Begin {
            daemon,
            connection,
            name
        }),
        (0..8_usize, bytes.clone()).prop_map(|(call, bytes)| Step::Reserve { call, bytes }),
        (0..8_usize, bytes).prop_map(|(call, bytes)| Step::Wait { call, bytes }),
        (0..8_usize).prop_map(|waiting| Step::Poll { waiting }),
        (0..8_usize).prop_map(|waiting| Step::Abandon { waiting }),
        (0..8_usize).prop_map(|call| Step::End { call }),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn dropped_calls_release_all_resources(steps in steps()) {
        let (limits, connection_limiter) = (Arc::new(Limits::default()), ConnectionLimiter::new(1));
        let connections: Vec<_> = (0..3).map(|_| connection(&connection_limiter)).collect();
        let mut calls: Vec<Arc<Call>> = Vec::new();
        let mut waiting: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        for step in steps {
            match step {
                Step::Begin { daemon, connection, name } => {
                    let class = if daemon { Class::Daemon } else { Class::Client };
                    let who = identity(Some(Role::User), ["ann", "bob", "eve"][name]);
                    let call = limits.begin_call(class, "/m", who, Some(connections[connection].clone()));
                    calls.push(Arc::new(call.unwrap()));
                }
                Step::Reserve { call, bytes } => {
                    if let Some(call) = calls.get(call) {
                        call.reserve(bytes);
                    }
                }
                Step::Wait { call, bytes } => {
                    if let Some(call) = calls.get(call) {
                        waiting.push(Box::pin(call.clone().wait_and_reserve(bytes)));
                    }
                }
                Step::Poll { waiting: at } => {
                    if waiting.get_mut(at).is_some_and(|one| pin!(one).poll(&mut context).is_ready()) {
                        drop(waiting.remove(at));
                    }
                }
                Step::Abandon { waiting: at } if at < waiting.len() => drop(waiting.remove(at)),
                Step::End { call } if call < calls.len() => drop(calls.remove(call)),
                Step::Abandon { .. } | Step::End { .. } => {}
            }
        }
        drop((calls, waiting));
        assert!(limits.is_unused(), "{limits:?}");
        for connection in connections {
            prop_assert_eq!(connection.calls.load(Relaxed), 0);
        }
    }
}
