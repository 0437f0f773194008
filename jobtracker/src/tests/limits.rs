//! Tests the sizes of messages and of submissions, and the owner of the staging area.

use super::cluster::*;
use crate::sweep::secure_staging_area;
use dfs_client::Attributes;
use proto::{Message as _, mr as pb};

/// Returns the path of a folder with almost 3,800 bytes.
fn long_path(root: &str) -> String {
    format!("{root}/{}", vec!["x".repeat(250); 15].join("/"))
}

fn failed(attempt: &str, error: String) -> pb::AttemptReport {
    pb::AttemptReport { attempt: attempt.into(), status: Some(pb::attempt_report::Status::Failed(error)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_tasks_have_a_limited_size_and_short_errors() {
    let cluster = Cluster::start().await;
    cluster.put(&long_path("/in"), &vec![b'a'; 64 * 500]).await;
    let mut tracker = cluster.tracker("node1").await;
    let mut client = cluster.client().await;
    let mut request = submission("/in", "", 1);
    request.conf.insert("split.size".into(), "64".into());
    client.submit(request).await.unwrap();
    let launch = tracker.next_launch().await;
    let error = format!("the cause\n{}the exception", "trace\n".repeat(500));
    tracker.heartbeat(vec![failed(&launch.attempt, error.clone())]).await;
    let task = launch.attempt.rsplit_once('.').unwrap().0;
    let (mut found, mut after, mut pages) = (0, String::new(), 0);
    loop {
        let page = pb::TasksRequest { job: "job_1".into(), after, only: String::new() };
        let page = client.tasks(page).await.unwrap().into_inner();
        assert!(page.encoded_len() < (1 << 20) + (16 << 10), "{} bytes", page.encoded_len());
        (found, pages) = (found + page.tasks.len(), pages + 1);
        let failed = page.tasks.iter().find(|one| one.task == task).map(|one| &one.attempts[0].error);
        if let Some(short) = failed {
            let (start, end) = (short.starts_with("the cause"), short.ends_with("the exception"));
            assert!(short.len() <= 512 && start && end, "{short}");
        }
        after = page.tasks.last().unwrap().task.clone();
        if !page.more {
            break;
        }
    }
    assert!(found == 501 && pages > 1, "{found} tasks in {pages} pages");
    let only = pb::TasksRequest { job: "job_1".into(), after: String::new(), only: task.into() };
    let one = client.tasks(only).await.unwrap().into_inner();
    assert_eq!(one.tasks[0].attempts[0].error, error);
}

#[tokio::test(flavor = "multi_thread")]
async fn list_of_jobs_has_only_the_first_inputs_of_a_job() {
    let cluster = Cluster::start().await;
    let mut request = submission("", "", 1);
    request.inputs = (0..5).map(|number| format!("/in/{number}")).collect();
    for input in &request.inputs {
        cluster.put(input, b"a\n").await;
    }
    cluster.put(&long_path("/long"), b"a\n").await;
    let mut client = cluster.client().await;
    client.submit(request).await.unwrap();
    client.submit(submission(&long_path("/long"), "", 1)).await.unwrap();
    let jobs = client.jobs(pb::JobsRequest { all: true }).await.unwrap().into_inner().jobs;
    let inputs = |job: &pb::JobStatus| (job.inputs.len(), job.more_inputs);
    assert_eq!(jobs.iter().map(inputs).collect::<Vec<_>>(), [(3, 2), (0, 1)]);
    assert_eq!(inputs(&cluster.status("job_1").await), (5, 0));
    assert_eq!(inputs(&cluster.status("job_2").await), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn launches_with_many_side_files_are_divided_into_messages() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", &[b'a'; 64 * 40]).await;
    let folder = long_path("/side");
    let files: Vec<String> = (0..16).map(|number| format!("{folder}/{number}")).collect();
    for file in &files {
        cluster.put(file, b"").await;
    }
    let mut tracker = cluster.attach(pb::RegisterTracker { map_slots: 40, ..registration("node1") }).await;
    let mut request = submission("/in", "", 1);
    request.program.as_mut().unwrap().files = files;
    request.conf.insert("split.size".into(), "64".into());
    cluster.client().await.submit(request).await.unwrap();
    let (mut launches, mut longest) = (0, 0);
    while launches < 40 {
        let message = tracker.next().await;
        let Some(pb::to_tracker::Kind::Orders(orders)) = message else { panic!("no orders: {message:?}") };
        longest = longest.max(orders.encoded_len());
        launches += orders.orders.len();
    }
    assert!((1 << 19..(1 << 20) + (1 << 18)).contains(&longest), "the longest message has {longest} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn job_with_more_input_files_than_maps_is_refused_even_if_they_are_empty() {
    let cluster = Cluster::start_with(|config| config.jobtracker.maps_max = 3).await;
    for number in 0..4 {
        cluster.put(&format!("/in/{number}"), b"").await;
    }
    let (code, message) = refusal(cluster.client().await.submit(submission("/in", "", 1)).await);
    assert_eq!(code, tonic::Code::FailedPrecondition);
    assert!(message.starts_with("the input has more than 3 files"), "{message}");
    cluster.client().await.submit(submission("/in/[0-2]", "", 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tracker_with_very_many_map_outputs_can_register() {
    let cluster = Cluster::start().await;
    let outputs: Vec<String> = (100_000..600_000).map(|map| format!("job_10.m{map}.0")).collect();
    let register = pb::RegisterTracker { outputs, ..registration("node1") };
    assert!(register.encoded_len() > 8 << 20, "{} bytes", register.encoded_len());
    cluster.attach(register).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobtracker_owns_the_staging_area_and_its_parent() {
    let cluster = Cluster::start().await;
    let folders = ["/tmp/fermata", "/tmp/fermata/staging"].map(dfs_path);
    let attributes = async || {
        let mut found = Vec::new();
        for folder in &folders {
            let status = cluster.dfs.stat(folder).await.unwrap();
            found.push((status.owner, status.mode));
        }
        found
    };
    let secured = [("jobtracker".to_owned(), 0o755), ("jobtracker".to_owned(), 0o1777)];
    secure_staging_area(&cluster.dfs, "jobtracker").await.unwrap();
    assert_eq!(attributes().await, secured);
    // Another account has created both folders.
    let others = Attributes { owner: Some("mallory".into()), mode: Some(0o777), ..Attributes::default() };
    for folder in &folders {
        cluster.dfs.set_attributes(folder, others.clone()).await.unwrap();
    }
    secure_staging_area(&cluster.dfs, "jobtracker").await.unwrap();
    assert_eq!(attributes().await, secured);
    // Without /tmp, all users must be able to write to the new one. An existing one is not changed.
    let tmp = dfs_path("/tmp");
    cluster.dfs.delete(&tmp, true).await.unwrap();
    for mode in [0o1777, 0o700] {
        secure_staging_area(&cluster.dfs, "jobtracker").await.unwrap();
        assert_eq!(attributes().await, secured);
        let attributes = Attributes { mode: Some(0o700), ..Attributes::default() };
        assert_eq!(cluster.dfs.stat(&tmp).await.unwrap().mode, mode);
        cluster.dfs.set_attributes(&tmp, attributes).await.unwrap();
    }
    cluster.dfs.delete(&folders[0], true).await.unwrap();
    cluster.put("/tmp/fermata", b"").await;
    let error = secure_staging_area(&cluster.dfs, "jobtracker").await.unwrap_err().to_string();
    assert!(error.starts_with("/tmp/fermata is a file of"), "{error}");
}
