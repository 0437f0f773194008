//! Tests invalid submissions. Each is refused with a one-line message that names the error.

use super::cluster::*;
use dfs_client::Quota;
use proto::mr as pb;
use tonic::Code;

/// Submits a job, which must be refused. Returns the code and the message.
async fn submit_refused(cluster: &Cluster, request: pb::SubmitRequest) -> (Code, String) {
    refusal(cluster.client().await.submit(request).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_inputs_and_outputs_are_refused() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    cluster.put("/in/below/b", b"b\n").await;
    cluster.put("/there/x", b"x\n").await;
    cluster.put("/full/y", b"y\n").await;
    cluster.dfs.set_quota(&dfs_path("/full"), Quota { files: None, space: Some(2) }).await.unwrap();
    let cases = [
        ("/nowhere", "/out", Code::NotFound, "input /nowhere does not exist"),
        ("/in/a/b", "/out", Code::NotFound, "input /in/a/b does not exist"),
        ("/in/z*", "/out", Code::NotFound, "input pattern /in/z* matches no file"),
        ("/in/[", "/out", Code::InvalidArgument, "/in/["),
        ("relative", "/out", Code::InvalidArgument, "input \"relative\""),
        ("/in", "/there", Code::AlreadyExists, "output /there already exists"),
        ("/in", "/", Code::AlreadyExists, "output / already exists"),
        ("/in", "/in", Code::InvalidArgument, "output /in is also an input"),
        ("/in", "/in/out", Code::InvalidArgument, "output /in/out is inside the input /in"),
        ("/in", "/there/x/out", Code::FailedPrecondition, "/there/x is a file, not a folder"),
        ("/in", "out", Code::InvalidArgument, "output \"out\""),
        ("/in", "/full/out", Code::FailedPrecondition, "/full: quota of 2 B over all replicas is used up"),
    ];
    for (input, output, code, text) in cases {
        let (found, message) = submit_refused(&cluster, submission(input, output, 1)).await;
        assert!(found == code && message.contains(text), "{input} {output}: {found:?} {message}");
    }
    let mut without_input = submission("/in", "/out", 1);
    without_input.inputs.clear();
    assert!(submit_refused(&cluster, without_input).await.1.contains("job has no input"));
    // The refused submissions were assigned no job ID, so the first valid submission is job_1.
    cluster.client().await.submit(submission("/in", "/out", 1)).await.unwrap();
    let (code, message) = submit_refused(&cluster, submission("/in", "/out/below", 1)).await;
    assert!(code == Code::AlreadyExists && message.contains("job_1 is writing to /out"), "{message}");
    // The output folder of the job exists now, but cannot be an input before the job ends.
    cluster.put("/out/_temporary/job_1/half", b"half").await;
    let (code, message) = submit_refused(&cluster, submission("/out", "/other", 1)).await;
    assert!(
        code == Code::FailedPrecondition && message.contains("job_1 is still writing to /out"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_output_are_refused_in_safemode() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", b"a\n").await;
    // In safemode, the NameNode accepts no start of a JobTracker.
    cluster.await_accepted().await;
    cluster.dfs.set_safemode(true).await.unwrap();
    let (code, message) = submit_refused(&cluster, submission("/in", "/out", 1)).await;
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert_eq!(
        message,
        "job cannot be submitted: output /out cannot be written while the NameNode is in safemode: turned on by an \
         operator: `mrctl fs safemode off` ends it"
    );
    // A job without output writes nothing, so it is accepted in safemode.
    cluster.client().await.submit(submission("/in", "", 1)).await.unwrap();
    cluster.dfs.set_safemode(false).await.unwrap();
    cluster.client().await.submit(submission("/in", "/out", 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused() {
    let cluster = Cluster::start_with(|config| config.jobtracker.maps_max = 10).await;
    cluster.put("/in/a", &[b'a'; 1000]).await;
    let good = submission("/in", "/out", 1);
    let executable = |path: &str| {
        let kind = Some(pb::program::Kind::Executable(path.into()));
        Some(pb::Program { kind, files: Vec::new(), settings: Vec::new() })
    };
    let with = |key: &str, value: &str| pb::SubmitRequest {
        conf: [(key.to_owned(), value.to_owned())].into(),
        ..good.clone()
    };
    let side = pb::Program { files: vec!["/side".into()], ..good.program.clone().unwrap() };
    let cases = [
        (pb::SubmitRequest { request_id: vec![1], ..good.clone() }, "request_id has 1 bytes"),
        (pb::SubmitRequest { program: None, ..good.clone() }, "no program"),
        (
            pb::SubmitRequest { program: executable("/bin/x"), ..good.clone() },
            "program /bin/x does not exist",
        ),
        (pb::SubmitRequest { program: executable("/in"), ..good.clone() }, "program /in is a folder"),
        (pb::SubmitRequest { program: Some(side), ..good.clone() }, "side file /side does not exist"),
        (pb::SubmitRequest { priority: "urgent".into(), ..good.clone() }, "priority \"urgent\""),
        (pb::SubmitRequest { queue: "a\nb".into(), ..good.clone() }, "queue must"),
        (pb::SubmitRequest { reduces: 20_000, ..good.clone() }, "the limit is 10000"),
        (pb::SubmitRequest { reduces: 0, ..good.clone() }, "needs at least one reduce"),
        (with("total.order.splits", "/no"), "setting total.order.splits: file /no does not exist"),
        (with("slow.start", "2"), "setting slow.start"),
        (with("output.replication", "99"), "a whole number from 1 to 64"),
        (with("output.replication", "64"), "setting output.replication = 64 is too high for "),
        (with("split.size", "64B"), "more than 10 maps"),
        (with("split.size", "3"), "at least 64"),
        (with("fermata.token", "0"), "setting fermata.token"),
        (with("pace.mpa", "1"), "did you mean pace.map?"),
        (with("mapreduce.job.reduces", "2"), "use --reduces 2"),
        (with("grep.pattern", "x"), "setting grep.pattern is unknown"),
    ];
    for (request, text) in cases {
        let (code, message) = submit_refused(&cluster, request).await;
        assert!(
            matches!(code, Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition)
                && message.contains(text),
            "{message}"
        );
    }
    let mut client = cluster.client().await;
    for job in ["", "7", "job_", "job_99999999999"] {
        let (code, _) = refusal(client.job(pb::JobRequest { job: job.into() }).await);
        assert_eq!(code, Code::InvalidArgument, "{job}");
    }
    let missing = pb::JobRequest { job: "job_7".into() };
    assert_eq!(refusal(client.job(missing.clone()).await).0, Code::NotFound);
    let history = pb::HistoryRequest { job: "job_7".into(), offset: 0 };
    assert_eq!(refusal(client.history(history).await).0, Code::NotFound);
    assert_eq!(refusal(client.watch(missing).await).0, Code::NotFound);
    let tasks = pb::TasksRequest { job: "job_7".into(), after: String::new(), only: String::new() };
    assert_eq!(refusal(client.tasks(tasks).await).0, Code::NotFound);
    let tasks = pb::TasksRequest { job: "job_7".into(), after: "no task".into(), only: String::new() };
    assert_eq!(refusal(client.tasks(tasks).await).0, Code::InvalidArgument);
    // A preemption without a kind, or with a kind that only newer clients know, must be refused and
    // must not become a kill.
    for kind in [0, 77] {
        let preempt = pb::PreemptRequest { request_id: vec![1; 16], attempt: "job_7.m0.0".into(), kind };
        assert_eq!(refusal(client.preempt(preempt).await).0, Code::InvalidArgument, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_files_are_found_and_split_according_to_the_settings() {
    let cluster = Cluster::start().await;
    cluster.put("/in/a", &vec![b'a'; 70 << 10]).await;
    let gzip = [&b"\x1f\x8b\x08\0"[..], &vec![b'b'; (200 << 10) - 4]].concat();
    cluster.put("/in/b.gz", &gzip).await;
    cluster.put("/in/below/c", b"c\n").await;
    cluster.put("/in/.hidden/d", b"d\n").await;
    let mut client = cluster.client().await;
    let mut splits = async |inputs: &[&str], conf: &[(&str, &str)]| {
        let mut request = submission("", "", 1);
        request.inputs = inputs.iter().map(|input| (*input).to_owned()).collect();
        request.conf = conf.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let job = client.submit(request).await.unwrap().into_inner().job;
        let (mut tasks, mut after) = (Vec::new(), Some(String::new()));
        while let Some(from) = after.take() {
            let page = pb::TasksRequest { job: job.clone(), after: from, only: String::new() };
            let page = client.tasks(page).await.unwrap().into_inner();
            tasks.extend(page.tasks);
            after = tasks.last().filter(|_| page.more).map(|last| last.task.clone());
        }
        let maps = tasks.into_iter().filter(|task| !task.source.is_empty());
        maps.map(|task| format!("{} {} {}", task.source, task.start, task.end)).collect::<Vec<_>>()
    };
    // The file of 70 KiB is one split, although its blocks have 64 KiB: the last split may be a
    // tenth longer.
    let not_recursive = splits(&["/in"], &[("input.recursive", "false")]).await;
    assert_eq!(not_recursive, ["/in/a 0 71680", "/in/b.gz 0 204800"]);
    let recursive = splits(&["/in"], &[]).await;
    assert_eq!(recursive, ["/in/a 0 71680", "/in/b.gz 0 204800", "/in/below/c 0 2"]);
    assert_eq!(splits(&["/in/bel*"], &[]).await, ["/in/below/c 0 2"]);
    let plain = splits(&["/in/b.gz"], &[("input.codec", "none"), ("split.size", "150KiB")]).await;
    assert_eq!(plain, ["/in/b.gz 0 153600", "/in/b.gz 153600 204800"]);
    assert_eq!(splits(&["/in/*.gz", "/in/.hidden/d"], &[]).await, ["/in/b.gz 0 204800", "/in/.hidden/d 0 2"]);
    let small = splits(&["/in/a"], &[("split.size", "32KiB")]).await;
    assert_eq!(small, ["/in/a 0 32768", "/in/a 32768 65536", "/in/a 65536 71680"]);
    // This job has more tasks than one page of the reply contains.
    let paged = splits(&["/in/a"], &[("split.size", "64")]).await;
    assert_eq!((paged.len(), paged[1119].as_str()), (1120, "/in/a 71616 71680"));
    let whole = splits(&["/in/a"], &[("split.size", "32KiB"), ("input.format", "whole")]).await;
    assert_eq!(whole, ["/in/a 0 71680"]);
}
