//! Tests a tracker with several `JobTrackers`: it follows the leader, and its attempts continue.

use super::*;
use daemon::MasterAddrs;

/// Starts a tracker with this list of `JobTrackers` and waits until one has accepted it.
async fn start(world: &mut World, addrs: impl Into<MasterAddrs>) {
    world.config.cluster.jobtracker = addrs.into();
    world.start_tracker().await;
}

/// Returns how many trackers have registered.
fn registrations(jobtracker: &JobTracker) -> usize {
    jobtracker.with(|received| received.registrations.len())
}

/// Waits for another registration than the first `before`. Returns its attempts.
async fn next_registration(jobtracker: &JobTracker, before: usize) -> Vec<String> {
    let new = |received: &mut jobtracker::Received| received.registrations.get(before).cloned();
    let registration = jobtracker.until("a registration", new).await;
    registration.attempts.into_iter().map(|report| report.attempt).collect()
}

/// Makes `to` the leader in this epoch. `from` still claims to lead if it is not to follow.
fn elect(to: &JobTracker, epoch: u64, from: &JobTracker, from_follows: bool) {
    from.with(|received| received.follows = from_follows);
    to.with(|received| (received.follows, received.epoch) = (false, epoch));
}

#[tokio::test(flavor = "multi_thread")]
async fn tracker_follows_the_leader_and_its_attempts_continue() {
    let mut world = World::without_tracker(|_| {}).await;
    let first = world.jobtracker.clone();
    let (second, second_addr) = JobTracker::start().await;
    second.with(|received| received.follows = true);
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addrs = format!("{refusing},{second_addr},{}", world.config.cluster.jobtracker);
    start(&mut world, addrs).await;
    assert_eq!((registrations(&first), registrations(&second)), (1, 0));
    world.launch("job_1.m0.0", "hang");
    first.progress_of("job_1.m0.0").await;

    // The first one answers no heartbeat and still claims to lead.
    first.with(|received| received.mute = true);
    elect(&second, 2, &first, false);
    assert_eq!(next_registration(&second, 0).await, ["job_1.m0.0"]);
    // It comes back with its old claim, and the stream of the second one breaks.
    first.with(|received| received.mute = false);
    second.with(jobtracker::Received::disconnect);
    assert_eq!(next_registration(&second, 1).await, ["job_1.m0.0"]);
    assert_eq!(registrations(&first), 1);

    // The second one follows again and closes its streams.
    elect(&first, 3, &second, true);
    second.with(jobtracker::Received::disconnect);
    assert_eq!(next_registration(&first, 1).await, ["job_1.m0.0"]);
    assert_eq!(first.with(|received| received.ended.len()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn deposed_leader_that_answers_heartbeats_is_left_before_the_tracker_counts_as_lost() {
    let mut world = World::without_tracker(|_| {}).await;
    let first = world.jobtracker.clone();
    let (second, second_addr) = JobTracker::start().await;
    second.with(|received| received.follows = true);
    first.with(|received| received.lost_after_ms = 1500);
    let addrs = format!("{},{second_addr}", world.config.cluster.jobtracker);
    start(&mut world, addrs).await;
    let elected = std::time::Instant::now();
    elect(&second, 2, &first, false);
    next_registration(&second, 0).await;
    assert!(elected.elapsed() < Duration::from_millis(1500), "{:?}", elected.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_jobtracker_is_kept_however_long_it_is_silent() {
    let world = World::start().await;
    world.jobtracker.with(|received| (received.mute, received.follows) = (true, false));
    let seen = world.jobtracker.with(|received| received.heartbeats.len());
    // The tracker repeats its heartbeat meanwhile, over the same stream.
    let repeats = |received: &mut jobtracker::Received| (received.heartbeats.len() > seen + 40).then_some(());
    world.jobtracker.until("repeated heartbeats", repeats).await;
    assert_eq!(registrations(&world.jobtracker), 1);
}
