//! Tests that trackers and clients find the same state after a restart of the JobTracker.

use super::cluster::*;
use crate::run::run_until;
use dfs_client::ids::{Start, StartId};
use journal::Recovery;
use proto::mr as pb;
use std::path::{Path, PathBuf};

/// Returns a start of another JobTracker.
fn start(epoch: u64) -> Start {
    Start { epoch, id: StartId(7) }
}

/// Copies the folder of the JobTracker. Returns the path of the copy.
fn copy_folder(folder: &Path) -> PathBuf {
    let copy = folder.with_file_name("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(folder).arg(&copy).status().unwrap();
    assert!(copied.success());
    copy
}

#[tokio::test(flavor = "multi_thread")]
async fn job_continues_after_a_restart_of_the_jobtracker() {
    let mut cluster = Cluster::start().await;
    cluster.put("/in/a", &vec![b'x'; 150 << 10]).await;
    let mut tracker = cluster.tracker("node1").await;
    let request = submission("/in", "/out", 1);
    cluster.client().await.submit(request.clone()).await.unwrap();
    let (first, second) = (tracker.next_launch().await, tracker.next_launch().await);
    let third = tracker.next_launch().await;
    tracker.succeed(&cluster, &first, b"").await;
    tracker.heartbeat(vec![running(&second.attempt, 0.3)]).await;
    cluster.kill_jobtracker();
    cluster.start_jobtracker();
    assert_eq!(cluster.client().await.submit(request).await.unwrap().into_inner().job, "job_1");
    // The tracker registers again without the third attempt, which it has lost, and continues the
    // second.
    let register = pb::RegisterTracker {
        attempts: vec![running(&second.attempt, 0.6)],
        outputs: vec![first.attempt.clone()],
        ..registration("node1")
    };
    let mut tracker = cluster.attach(register).await;
    tracker.heartbeat(Vec::new()).await;
    let next_map = async |tracker: &mut Tracker| loop {
        let task = tracker.next_launch().await;
        if task.attempt.contains(".m") {
            return task;
        }
    };
    let third_again = next_map(&mut tracker).await;
    assert_eq!(third_again.shuffle_token, third.shuffle_token, "the token differs after the restart");
    assert_eq!(third_again.attempt, third.attempt.trim_end_matches('0').to_owned() + "1");
    tracker.heartbeat(vec![succeeded(&second.attempt, pb::TaskResult::default())]).await;
    tracker.heartbeat(vec![succeeded(&third_again.attempt, pb::TaskResult::default())]).await;
    let status = cluster.status("job_1").await;
    assert_eq!(status.maps.as_ref().unwrap().done, 3);
    assert_eq!(status.maps.unwrap().killed_attempts, 1);
    let reduce = pb::TaskSpec {
        attempt: "job_1.r0.0".into(),
        work_output: "/out/_temporary/job_1/job_1.r0.0".into(),
        ..Default::default()
    };
    // The reduce may have been launched before or after the restart, so look up the ID of its last
    // attempt.
    let tasks = cluster
        .client()
        .await
        .tasks(pb::TasksRequest { job: "job_1".into(), after: String::new(), only: String::new() })
        .await
        .unwrap();
    let attempts = tasks.into_inner().tasks.pop().unwrap().attempts;
    let attempt = attempts.last().unwrap().attempt.clone();
    let reduce =
        pb::TaskSpec { work_output: reduce.work_output.replace("job_1.r0.0", &attempt), attempt, ..reduce };
    tracker.succeed(&cluster, &reduce, b"done\n").await;
    until("the end", || async { cluster.status("job_1").await.state == "succeeded" }).await;
    assert_eq!(cluster.length("/out/part-r-00000").await, 5);
    let history = cluster.history("job_1").await;
    let launches = history.iter().filter(|line| !line["fact"]["attempt-launched"].is_null());
    let ends = ["attempt-succeeded", "attempt-killed", "attempt-failed"];
    let ended = history.iter().filter(|line| ends.iter().any(|end| !line["fact"][*end].is_null()));
    assert_eq!(launches.count(), ended.count(), "{history:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_histories_are_answered_as_before_after_a_restart() {
    let mut cluster = Cluster::start_with(|config| config.jobtracker.jobs_kept = 1).await;
    cluster.put("/in/a", b"a\n").await;
    let request_id = |number: u8| vec![number; 16];
    let kill = |number, job: &str| pb::KillRequest { request_id: request_id(number), job: job.into() };
    let drain = |number, within_ms, cancel| pb::DrainTrackerRequest {
        request_id: request_id(number),
        node: "node1".into(),
        within_ms,
        cancel,
        status_only: false,
    };
    let mut client = cluster.client().await;
    for (number, output) in [(2, "/one"), (3, "/two")] {
        let job = client.submit(submission("/in", output, 0)).await.unwrap().into_inner().job;
        client.kill(kill(number, &job)).await.unwrap();
    }
    client.submit(submission("/in", "/three", 0)).await.unwrap();
    let (code, _) = refusal(client.kill(kill(5, "job_1")).await);
    assert_eq!(code, tonic::Code::NotFound, "the JobTracker has not forgotten the job");
    let _trackers = (cluster.tracker("node1").await, cluster.tracker("node2").await);
    client.drain(drain(1, 60_000, false)).await.unwrap();
    client.drain(drain(4, 0, true)).await.unwrap();
    let history = cluster.history_from("job_1", 0).await;
    cluster.kill_jobtracker();
    cluster.start_jobtracker();
    let mut client = cluster.client().await;
    client.kill(kill(2, "job_1")).await.unwrap();
    let status = client.drain(drain(1, 60_000, false)).await.unwrap().into_inner();
    assert_eq!(status.by, "", "the repeated request has started a second drain");
    for (at, _) in history.match_indices('\n') {
        assert_eq!(cluster.history_from("job_1", at as u64 + 1).await, history[at + 1..]);
    }
    let (job, offset) = ("job_1".into(), history.len() as u64 + 1);
    let (code, _) = refusal(client.history(pb::HistoryRequest { job, offset }).await);
    assert_eq!(code, tonic::Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_that_was_interrupted_is_completed_after_a_restart() {
    let mut cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    cluster.client().await.submit(submission("/in", "/out", 0)).await.unwrap();
    let map = tracker.next_launch().await;
    // In safemode the NameNode refuses changes, so the commit has to wait.
    cluster.put(&format!("{}/piece-0", map.work_output), b"piece").await;
    cluster.dfs.set_safemode(true).await.unwrap();
    let pieces = vec![format!("{}/piece-0", map.work_output)];
    let result = pb::TaskResult { pieces, ..Default::default() };
    tracker.heartbeat(vec![succeeded(&map.attempt, result)]).await;
    assert_eq!(cluster.status("job_1").await.state, "committing");
    cluster.kill_jobtracker();
    cluster.start_jobtracker();
    assert_eq!(cluster.status("job_1").await.state, "committing");
    cluster.dfs.set_safemode(false).await.unwrap();
    until("the commit", || async { cluster.status("job_1").await.state == "succeeded" }).await;
    assert_eq!(cluster.length("/out/part-m-00000").await, 5);
    assert!(!cluster.exists("/out/_temporary").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobtracker_fenced_by_a_newer_one_fails_and_commits_nothing() {
    let cluster = Cluster::start().await;
    let scope = format!("jobtracker-{}", cluster.cluster_id());
    let fenced = || async { cluster.dfs.fence(&scope, start(0), &[]).await.is_err() };
    until("the fence", fenced).await;
    cluster.dfs.fence(&scope, start(2), &[]).await.unwrap();
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    cluster.client().await.submit(submission("/in", "/out", 0)).await.unwrap();
    let map = tracker.next_launch().await;
    tracker.heartbeat(vec![succeeded(&map.attempt, pb::TaskResult::default())]).await;
    let why = with_timeout("its end", cluster.failed()).await;
    assert!(why.contains("a newer process has taken over"), "{why}");
    assert!(!cluster.exists("/out/_SUCCESS").await);
}

/// Copies the folder of a JobTracker that runs, runs a job, restores the copy, and submits another
/// job, which gets the same ID: the NameNode has not seen a start after the copy, and so does not
/// recognise it. Checks that this job commits its own output.
#[tokio::test(flavor = "multi_thread")]
async fn job_whose_id_was_assigned_before_commits_its_own_output() {
    let mut cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let journal = cluster.config.jobtracker.dir.clone();
    cluster.await_accepted().await;
    let (copy, newest) = (copy_folder(&journal), journal.with_file_name("newest"));
    for output in ["/first", "/second"] {
        let mut tracker = cluster.tracker("node1").await;
        let submitted = cluster.client().await.submit(submission("/in", output, 0)).await.unwrap();
        assert_eq!(submitted.into_inner().job, "job_1");
        let map = tracker.next_launch().await;
        tracker.succeed(&cluster, &map, b"whole").await;
        until("the end", || async { cluster.status("job_1").await.state == "succeeded" }).await;
        assert_eq!(cluster.length(&format!("{output}/part-m-00000")).await, 5);
        assert!(cluster.exists(&format!("{output}/_SUCCESS")).await);
        if copy.exists() {
            cluster.kill_jobtracker();
            std::fs::rename(&journal, &newest).unwrap();
            std::fs::rename(&copy, &journal).unwrap();
            cluster.start_jobtracker();
        }
    }
}

/// Restores a copy that was made before the last start. Checks that no start with the copy accepts
/// a job, that the newest folder still works, and that `--recover` accepts the copy and skips the
/// IDs of the jobs that it does not contain.
#[tokio::test(flavor = "multi_thread")]
async fn jobtracker_with_an_older_copy_of_its_folder_is_refused_until_recovery() {
    let mut cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    cluster.client().await.submit(submission("/in", "/first", 0)).await.unwrap();
    cluster.kill_jobtracker();
    let folder = cluster.config.jobtracker.dir.clone();
    let (copy, newest) = (copy_folder(&folder), folder.with_file_name("newest"));
    cluster.start_jobtracker();
    let submitted = cluster.client().await.submit(submission("/in", "/second", 0)).await.unwrap();
    assert_eq!(submitted.into_inner().job, "job_2");
    cluster.kill_jobtracker();
    std::fs::rename(&folder, &newest).unwrap();
    std::fs::rename(&copy, &folder).unwrap();
    // Each start increases the epoch, so the second one has a higher epoch than the NameNode knows.
    for _ in 0..2 {
        cluster.start_jobtracker();
        let refused = cluster.client().await.submit(submission("/in", "/lost", 0)).await;
        assert!(refused.is_err(), "a JobTracker with an older copy accepted a job");
        let why = with_timeout("its end", cluster.failed()).await;
        let words = ["another start of the JobTracker used the same epoch", "older copy", "--recover"];
        assert!(words.iter().all(|words| why.contains(words)) && !why.contains('\n'), "{why}");
        cluster.kill_jobtracker();
    }
    std::fs::rename(&folder, &copy).unwrap();
    std::fs::rename(&newest, &folder).unwrap();
    cluster.start_jobtracker();
    let submitted = cluster.client().await.submit(submission("/in", "/third", 0)).await.unwrap();
    assert_eq!(submitted.into_inner().job, "job_3");
    cluster.kill_jobtracker();
    std::fs::rename(&folder, &newest).unwrap();
    std::fs::rename(&copy, &folder).unwrap();
    cluster.start_jobtracker_with(Recovery::DropDamaged);
    let submitted = cluster.client().await.submit(submission("/in", "/fourth", 0)).await.unwrap();
    let job = submitted.into_inner().job;
    let number: u64 = job.strip_prefix("job_").unwrap().parse().unwrap();
    assert!(number > 1_000_000_000, "{job} may have been assigned before");
    cluster.kill_jobtracker();
    cluster.start_jobtracker();
    assert_eq!(cluster.status(&job).await.job, job);
    let submitted = cluster.client().await.submit(submission("/in", "/fifth", 0)).await.unwrap();
    assert_eq!(submitted.into_inner().job, format!("job_{}", number + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn start_that_is_not_accepted_deletes_nothing_and_accepts_no_job() {
    let mut cluster = Cluster::start().await;
    let staging = "/tmp/fermata/staging/one";
    cluster.put("/in/a", b"a\n").await;
    cluster.put(&format!("{staging}/program"), b"program").await;
    cluster.client().await.submit(submission_with_staging("/out", staging)).await.unwrap();
    cluster.kill_jobtracker();
    // A folder with the name of the file makes every write of the list of starts fail.
    let starts = cluster.config.jobtracker.dir.join("STARTS");
    std::fs::remove_file(&starts).unwrap();
    std::fs::create_dir(&starts).unwrap();
    cluster.start_jobtracker();
    let mut client = cluster.client().await;
    client.kill(pb::KillRequest { request_id: vec![9; 16], job: "job_1".into() }).await.unwrap();
    assert_eq!(cluster.status("job_1").await.state, "killed");
    let refused = client.submit(submission("/in", "/second", 0)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    let expected = ["has not accepted this start", "cannot record this start", "STARTS"];
    assert!(expected.iter().all(|text| refused.message().contains(text)), "{refused}");
    assert!(cluster.exists(staging).await, "the leftovers were deleted before the start was accepted");
    std::fs::remove_dir(&starts).unwrap();
    until("the leftovers are deleted", || async { !cluster.exists(staging).await }).await;
    client.submit(submission("/in", "/second", 0)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_a_job_names_the_safemode_in_which_the_start_is_not_accepted() {
    let mut cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    cluster.await_accepted().await;
    cluster.kill_jobtracker();
    cluster.dfs.set_safemode(true).await.unwrap();
    cluster.start_jobtracker();
    // A job without output is otherwise accepted in safemode.
    let refused = cluster.client().await.submit(submission("/in", "", 1)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
    let expected = ["has not accepted this start", "safemode"];
    assert!(expected.iter().all(|text| refused.message().contains(text)), "{refused}");
    cluster.dfs.set_safemode(false).await.unwrap();
    cluster.client().await.submit(submission("/in", "", 1)).await.unwrap();
}

#[tokio::test]
async fn jobtracker_that_waits_for_the_namenode_at_its_start_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = daemon::config::Config::default();
    config.jobtracker.listen = "127.0.0.1:0".into();
    config.jobtracker.dir = folder.path().join("jobtracker");
    config.cluster.namenode = "127.0.0.1:1".into();
    let ready = folder.path().join("ready");
    let args = args(&ready);
    with_timeout("its end", run_until(&config, &args, Recovery::Refuse, async {})).await.unwrap();
    assert!(!ready.exists(), "it has waited for the NameNode before it stopped");
}

/// Damages the journal so that `--recover` drops the record that a job ended. The job then runs
/// again and commits a second time. Checks that the output of the first run stays.
#[tokio::test(flavor = "multi_thread")]
async fn job_that_runs_again_after_recovery_keeps_its_first_output() {
    let mut cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    cluster.client().await.submit(submission("/in", "/out", 0)).await.unwrap();
    let first = tracker.next_launch().await;
    let mut files = std::fs::read_dir(cluster.config.jobtracker.dir.join("journal")).unwrap().flatten();
    let segment = files.find(|file| file.path().extension().is_some_and(|end| end == "log")).unwrap().path();
    let launched = std::fs::metadata(&segment).unwrap().len() as usize;
    tracker.succeed(&cluster, &first, b"whole").await;
    until("the end", || async { cluster.status("job_1").await.state == "succeeded" }).await;
    cluster.kill_jobtracker();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[launched..].iter_mut().for_each(|byte| *byte = !*byte);
    std::fs::write(&segment, bytes).unwrap();
    cluster.start_jobtracker_with(Recovery::DropDamaged);
    assert_eq!(cluster.status("job_1").await.state, "running");
    let mut tracker =
        cluster.attach(pb::RegisterTracker { incarnation: u64::MAX, ..registration("node1") }).await;
    let second = tracker.next_launch().await;
    assert_ne!(first.attempt, second.attempt);
    tracker.succeed(&cluster, &second, b"the same again").await;
    until("the second end", || async { cluster.status("job_1").await.state == "succeeded" }).await;
    assert_eq!(cluster.length("/out/part-m-00000").await, 5, "the output of the first run was replaced");
    until("what the second run wrote is gone", || async { !cluster.exists("/out/_temporary").await }).await;
}

fn submission_with_staging(output: &str, staging: &str) -> pb::SubmitRequest {
    pb::SubmitRequest { staging: staging.into(), ..submission("/in", output, 0) }
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_ended_jobs_are_deleted_after_a_restart() {
    let mut cluster = Cluster::start_with(|config| config.client.deadline = daemon::Period::secs(2)).await;
    cluster.put("/in/a", b"a\n").await;
    let folders = ["/tmp/fermata/staging/one", "/tmp/fermata/staging/two", "/tmp/fermata/staging/three"];
    for folder in folders {
        cluster.put(&format!("{folder}/program"), b"program").await;
    }
    let mut tracker = cluster.tracker("node1").await;
    let mut client = cluster.client().await;
    client.submit(submission_with_staging("/out", folders[0])).await.unwrap();
    let map = tracker.next_launch().await;
    tracker.succeed(&cluster, &map, b"whole").await;
    until("a clean staging folder", || async { !cluster.exists(folders[0]).await }).await;
    // In safemode the leftovers of a killed job cannot be deleted. Kill the JobTracker before the
    // safemode ends.
    client.submit(submission_with_staging("/killed", folders[1])).await.unwrap();
    let map = tracker.next_launch().await;
    cluster.put(&format!("{}/piece-0", map.work_output), b"half").await;
    let (forgotten, long_ago) = ("/tmp/fermata/staging/forgotten", 1_000_000_000_000);
    cluster.put(&format!("{forgotten}/program"), b"its client died").await;
    let attributes = dfs_client::Attributes { modified_ms: Some(long_ago), ..Default::default() };
    cluster.dfs.set_attributes(&dfs_path(forgotten), attributes).await.unwrap();
    cluster.dfs.set_safemode(true).await.unwrap();
    client.kill(pb::KillRequest { request_id: vec![9; 16], job: "job_2".into() }).await.unwrap();
    assert_eq!(cluster.status("job_2").await.state, "killed");
    cluster.kill_jobtracker();
    assert!(cluster.exists("/killed/_temporary").await && cluster.exists(folders[1]).await);
    cluster.start_jobtracker();
    cluster.dfs.set_safemode(false).await.unwrap();
    until("the leftovers are deleted", || async {
        !cluster.exists("/killed").await
            && !cluster.exists(folders[1]).await
            && !cluster.exists(forgotten).await
    })
    .await;
    assert!(cluster.exists(folders[2]).await, "the job that uses this folder may still be submitted");
    assert_eq!(cluster.length("/out/part-m-00000").await, 5);
    // Run a third job and restart the JobTracker. Before the restart, a user creates a folder with
    // the name of the killed job's output, which must not be deleted.
    let mut tracker = cluster.tracker("node1").await;
    cluster.client().await.submit(submission_with_staging("/again", folders[2])).await.unwrap();
    let map = tracker.next_launch().await;
    tracker.succeed(&cluster, &map, b"whole").await;
    until("a clean staging folder", || async { !cluster.exists(folders[2]).await }).await;
    cluster.kill_jobtracker();
    cluster.dfs.mkdir(&dfs_path("/killed"), false).await.unwrap();
    cluster
        .put(&format!("{}/program", folders[2]), b"as if the JobTracker had crashed before the deletion")
        .await;
    cluster.start_jobtracker();
    until("the leftovers of the last job are deleted", || async { !cluster.exists(folders[2]).await }).await;
    assert!(cluster.exists("/killed").await, "the new folder was deleted as a leftover");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_written_after_the_job_ended_is_deleted_when_its_attempt_ends() {
    let mut cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    let mut tracker = cluster.tracker("node1").await;
    cluster.client().await.submit(submission("/in", "/out", 0)).await.unwrap();
    let first = tracker.next_launch().await;
    // A new process of the tracker registers without attempts. The task that the old process
    // started still writes.
    let mut tracker =
        cluster.attach(pb::RegisterTracker { incarnation: u64::MAX, ..registration("node1") }).await;
    let second = tracker.next_launch().await;
    assert_ne!(first.attempt, second.attempt);
    tracker.succeed(&cluster, &second, b"whole").await;
    until("its end", || async { cluster.status("job_1").await.state == "succeeded" }).await;
    cluster.put(&format!("{}/piece-0", first.work_output), b"late").await;
    assert!(cluster.exists("/out/_temporary").await);
    tracker.heartbeat(vec![killed(&first.attempt)]).await;
    until("the late work is gone", || async { !cluster.exists("/out/_temporary").await }).await;
    assert_eq!(cluster.length("/out/part-m-00000").await, 5);
    cluster.kill_jobtracker();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobtracker_that_lost_its_journal_assigns_new_job_ids() {
    let mut cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    cluster.client().await.submit(submission("/in", "/never", 0)).await.unwrap();
    cluster.kill_jobtracker();
    cluster.start_jobtracker();
    let scope = format!("jobtracker-{}", cluster.cluster_id());
    let fenced = || async {
        let refused = cluster.dfs.fence(&scope, start(1), &[]).await;
        refused.is_err_and(|error| error.to_string().contains("fenced by epoch 2"))
    };
    until("the fence of the second start", fenced).await;
    let mut seen = std::collections::BTreeSet::from(["job_1".to_owned()]);
    for round in 0..2 {
        cluster.kill_jobtracker();
        // After recovery, job IDs start at the current Unix time in seconds. Wait for the next
        // second, so that they differ.
        let second = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let before = second();
        until("the next second", || async { second() > before }).await;
        std::fs::remove_dir_all(cluster.config.jobtracker.dir.join("journal")).unwrap();
        cluster.start_jobtracker_with(Recovery::DropDamaged);
        let mut tracker = cluster.tracker("node1").await;
        let output = format!("/out{round}");
        let submitted = cluster.client().await.submit(submission("/in", &output, 0)).await.unwrap();
        let job = submitted.into_inner().job;
        assert!(seen.insert(job.clone()), "{job} was assigned before");
        let map = tracker.next_launch().await;
        tracker.succeed(&cluster, &map, b"whole").await;
        until("the end", || async { cluster.status(&job).await.state == "succeeded" }).await;
        assert_eq!(cluster.length(&format!("{output}/part-m-00000")).await, 5);
        // The skip of job IDs is durable and the recovery is complete, so a normal start is
        // possible.
        assert!(!cluster.config.jobtracker.dir.join("RECOVERING").exists());
        cluster.kill_jobtracker();
        cluster.start_jobtracker();
        let submitted = cluster.client().await.submit(submission("/in", &output, 0)).await;
        assert!(submitted.is_err(), "the output exists, so the submission must be refused");
        assert_eq!(cluster.status(&job).await.state, "succeeded");
    }
}
