//! Point 3: pipelined proposals with `with_leader` when the lease expires and when the leader changes.

use openraft::{errors::ClientWriteError, impls::ProgressResponder};
use raft_trial::cluster::{C, Cluster, nodes, plan_config, proposal};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

type Outcome = Result<openraft::raft::ClientWriteResponse<C>, ClientWriteError<C>>;

/// Sends proposals `1..` in order, one every `every`, without waiting for answers. Returns what
/// became of each.
async fn pipeline(
    cluster: &Cluster,
    leader: u64,
    count: u64,
    every: Duration,
    mut at: impl FnMut(u64, &Cluster),
) -> Vec<(u64, tokio::task::JoinHandle<(Duration, Option<Outcome>)>)> {
    let raft = cluster.raft(leader).clone();
    let expected = raft.as_leader().expect("the leader").to_committed_leader_id();
    let mut waiting = Vec::new();
    for number in 1..=count {
        at(number, cluster);
        let (responder, answer) = ProgressResponder::<C, Outcome>::complete_only();
        let sent = raft.write(proposal(number, 200)).with_leader(expected).responder(responder).await;
        if let Err(fatal) = sent {
            println!("  write({number}) returned {fatal:?}");
            break;
        }
        let begin = Instant::now();
        waiting.push((
            number,
            tokio::spawn(async move {
                let answer = tokio::time::timeout(Duration::from_secs(20), answer).await;
                (begin.elapsed(), answer.ok().and_then(Result::ok))
            }),
        ));
        tokio::time::sleep(every).await;
    }
    waiting
}

async fn report(outcomes: Vec<(u64, tokio::task::JoinHandle<(Duration, Option<Outcome>)>)>) {
    let mut kinds: Vec<(String, u64, u64, Duration)> = Vec::new();
    for (number, outcome) in outcomes {
        let (after, outcome) = outcome.await.unwrap();
        let kind = match outcome {
            None => "no answer in 20 s (or the sender is gone)".to_string(),
            Some(Ok(_)) => "committed".to_string(),
            Some(Err(ClientWriteError::ForwardToLeader(forward))) => {
                format!("refused {:?} to {:?}", forward.reason, forward.leader_id)
            }
            Some(Err(ClientWriteError::LogEntryDiscarded(_))) => "LogEntryDiscarded".to_string(),
            Some(Err(other)) => format!("{other}"),
        };
        match kinds.last_mut() {
            Some(last) if last.0 == kind => {
                last.2 = number;
                last.3 = last.3.max(after);
            }
            _ => kinds.push((kind, number, number, after)),
        }
    }
    for (kind, first, last, slowest) in kinds {
        println!("  {first:5}..={last:<5} {kind} (slowest {slowest:?})");
    }
}

fn applied(cluster: &Cluster, id: u64) -> String {
    let state = cluster.members[&id].machine.state();
    let mut by_term: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (term, number) in state.numbers {
        by_term.entry(term).or_default().push(number);
    }
    let spans: Vec<_> = by_term
        .iter()
        .map(|(term, numbers)| {
            let gaps = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
            format!("term {term}: {}..={}, {gaps} gaps", numbers[0], numbers[numbers.len() - 1])
        })
        .collect();
    format!("applied {} skipped {}; {}", state.applied, state.skipped, spans.join("; "))
}

async fn fresh(name: &str) -> (Cluster, u64) {
    let mut cluster = Cluster::new(name, plan_config());
    cluster.start_new(3).await;
    for member in cluster.members.values() {
        member.machine.state.lock().unwrap().trace = true;
    }
    let leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    (cluster, leader)
}

/// One proposal in flight: sends the next one only after the answer to the last one, and the same one
/// again after a refusal for a lost lease. Ends when the term is over.
async fn one_in_flight(raft: raft_trial::types::Raft, until: Instant) -> (u64, u64, String) {
    let Ok(leader) = raft.as_leader() else { return (0, 0, "not the leader".into()) };
    let expected = leader.to_committed_leader_id();
    let (mut number, mut repeated) = (1, 0);
    while Instant::now() < until {
        let (responder, answer) = ProgressResponder::<C, Outcome>::complete_only();
        if let Err(fatal) = raft.write(proposal(number, 200)).with_leader(expected).responder(responder).await
        {
            return (number - 1, repeated, fatal.to_string());
        }
        match answer.await {
            Ok(Ok(_)) => number += 1,
            Ok(Err(ClientWriteError::ForwardToLeader(forward)))
                if forward.reason == openraft::errors::ForwardReason::LeaseExpired =>
            {
                repeated += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(Err(error)) => return (number - 1, repeated, error.to_string()),
            Err(closed) => return (number - 1, repeated, closed.to_string()),
        }
    }
    (number - 1, repeated, "time is up".into())
}

pub async fn run() {
    println!("-- one proposal in flight: lease lost twice, then a transfer, then the leader isolated");
    let (cluster, mut leader) = fresh("one-in-flight").await;
    let until = Instant::now() + Duration::from_secs(14);
    let senders: Vec<_> = (1..=3)
        .map(|id| {
            let raft = cluster.raft(id).clone();
            tokio::spawn(async move {
                let mut log = Vec::new();
                while Instant::now() < until {
                    if raft.is_leader() {
                        log.push(one_in_flight(raft.clone(), until).await);
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                log
            })
        })
        .collect();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (1..=3).filter(|id| *id != leader).for_each(|other| cluster.net.cut(other, leader));
        tokio::time::sleep(Duration::from_millis(1100)).await;
        cluster.net.heal();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    cluster.raft(leader).trigger().transfer_leader(leader % 3 + 1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    leader = cluster.leader(Duration::from_secs(5)).await.unwrap();
    cluster.net.isolate(leader, &[1, 2, 3]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.net.heal();
    for (id, sender) in senders.into_iter().enumerate() {
        println!("  m{}: (acknowledged, repeated, end) {:?}", id + 1, sender.await.unwrap());
    }
    println!("  {:?}", cluster.converge(Duration::from_secs(10)).await);
    println!("  {}", applied(&cluster, 1));

    println!("-- lease lost: answers to the leader are cut for 1.0 s, then healed before anybody is elected");
    for cut_ms in [900, 1100, 1500] {
        let (mut cluster, leader) = fresh("gaps-lease").await;
        cluster.members.values().for_each(|member| member.raft.runtime_config().elect(false));
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
        let mut begin = Instant::now();
        let outcomes = pipeline(&cluster, leader, 600, Duration::from_millis(5), |number, cluster| {
            if number == 50 {
                begin = Instant::now();
                others.iter().for_each(|other| cluster.net.cut(*other, leader));
            }
            if number > 50 && begin.elapsed() > Duration::from_millis(cut_ms) {
                cluster.net.heal();
            }
        })
        .await;
        println!("cut {cut_ms} ms:");
        report(outcomes).await;
        println!("  {:?}", cluster.converge(Duration::from_secs(10)).await);
        println!("  leader: {}", applied(&cluster, leader));
        println!("  other:  {}", applied(&cluster, others[0]));
        cluster.stop(1).await;
    }

    println!("-- leader isolated, a new one is elected; the old one has uncommitted proposals");
    let (cluster, leader) = fresh("gaps-change").await;
    let begin = Instant::now();
    let outcomes = pipeline(&cluster, leader, 400, Duration::from_millis(5), |number, cluster| {
        if number == 50 {
            cluster.net.isolate(leader, &[1, 2, 3]);
        }
    })
    .await;
    let new = cluster.leader_except(Duration::from_secs(10), Some(leader)).await;
    println!("new leader {new:?}, {:?} after the start", begin.elapsed());
    let new = new.unwrap();
    for _ in 0..10 {
        cluster.raft(new).client_write(proposal(0, 200)).await.expect("write");
    }
    println!("healing {:?} after the start", begin.elapsed());
    cluster.net.heal();
    report(outcomes).await;
    println!("  {:?}", cluster.converge(Duration::from_secs(10)).await);
    let truncations =
        cluster.members[&leader].store.shared().stats.truncations.load(std::sync::atomic::Ordering::Relaxed);
    println!("  truncations at the old leader: {truncations}");
    println!("  old: {}", applied(&cluster, leader));
    println!("  new: {}", applied(&cluster, new));

    println!("-- leader changes by transfer under load, proposals carry the old term");
    let (cluster, leader) = fresh("gaps-transfer").await;
    let to = leader % 3 + 1;
    let raft = cluster.raft(leader).clone();
    let outcomes = pipeline(&cluster, leader, 400, Duration::from_millis(1), |number, _| {
        if number == 100 {
            let raft = raft.clone();
            tokio::spawn(async move { raft.trigger().transfer_leader(to).await });
        }
    })
    .await;
    report(outcomes).await;
    println!("  {:?}", cluster.converge(Duration::from_secs(10)).await);
    println!("  new: {}", applied(&cluster, to));

    println!("-- membership change under load");
    let (mut cluster, leader) = fresh("gaps-members").await;
    cluster.start(4).await.unwrap();
    let raft = cluster.raft(leader).clone();
    let outcomes = pipeline(&cluster, leader, 400, Duration::from_millis(1), |number, _| {
        if number == 100 {
            let raft = raft.clone();
            tokio::spawn(async move {
                let done = raft.add_learner(4, nodes([4])[&4].clone(), true).await;
                println!("  add_learner: {:?}", done.map(|r| r.log_id.index));
            });
        }
    })
    .await;
    let first = outcomes.len();
    let mut indexes = Vec::new();
    for (number, outcome) in outcomes {
        if let (_, Some(Ok(response))) = outcome.await.unwrap() {
            indexes.push(response.log_id.index - number);
        }
    }
    indexes.dedup();
    println!("  {first} proposals; index - number takes the values {indexes:?}");
}
