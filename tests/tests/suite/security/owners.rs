//! Ownership of files and jobs: owner, group, mode and superuser, as shown by `mrctl`. Uses TLS.

use super::{Lab, Validity};
use dfs_client::{Client, ClientOptions, path::DfsPath};
use fermata_tests::{Cluster, QUICK, Ran, Up, eventually};
use security::Role;

#[test]
fn files_and_jobs_belong_to_their_owners() {
    let lab = Lab::up(true, "[security.groups]\nlab = [\"ann\", \"cid\"]\n[jobtracker]\nuser_jobs_max = 1\n");
    let admin = |args: &[&str]| lab.cluster.mrctl(args);
    let text = lab.cluster.path("text");
    std::fs::write(&text, "one two two\n").unwrap();
    let text = text.to_str().unwrap();
    // Creates a home folder for each user.
    for (user, mode) in [("ann", "750"), ("bob", "700")] {
        let home = format!("/home/{user}");
        admin(&["fs", "mkdir", "-p", &home]);
        admin(&["fs", "chmod", mode, &home]);
        admin(&["fs", "chown", &format!("{user}:lab"), &home]);
    }
    lab.done("ann", &["fs", "put", text, "/home/ann/a"]);
    lab.denied("ann", &["fs", "put", text, "/home/bob/a"]);
    lab.denied("ann", &["fs", "put", text, "/a"]);
    // Cid is in the group of ann, bob is not.
    assert_eq!(lab.done("cid", &["fs", "cat", "/home/ann/a"]), "one two two\n");
    lab.denied("bob", &["fs", "cat", "/home/ann/a"]);
    lab.denied("bob", &["fs", "ls", "/home/ann"]);
    lab.denied("cid", &["fs", "rm", "/home/ann/a"]);
    lab.denied("cid", &["fs", "chmod", "777", "/home/ann"]);
    lab.denied("ann", &["fs", "chown", "bob", "/home/ann/a"]);
    lab.done("ann", &["fs", "chmod", "600", "/home/ann/a"]);
    lab.denied("cid", &["fs", "cat", "/home/ann/a"]);
    // An admin may access everything.
    assert_eq!(lab.done("root-of-all", &["fs", "cat", "/home/ann/a"]), "one two two\n");
    // A job has the rights of the user who submitted it.
    let submit = |user: &str, input: &str, output: &str| {
        lab.run(user, &["submit", "wordcount", "--input", input, "--output", output])
    };
    let ran = submit("ann", "/home/ann/a", "/home/ann/out");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(lab.done("ann", &["fs", "cat", "/home/ann/out/part-*"]), "one\t1\ntwo\t2\n");
    let listed = lab.done("ann", &["fs", "ls", "/home/ann/out", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    for entry in listed.as_array().unwrap() {
        assert_eq!(entry["owner"], "ann", "{entry}");
    }
    for (user, input, output) in
        [("bob", "/home/ann/a", "/home/bob/out"), ("ann", "/home/ann/a", "/home/bob/out2")]
    {
        let ran = submit(user, input, output);
        assert!(
            ran.code != 0 && ran.stderr.contains("may not"),
            "{user} {output}: {}{}",
            ran.stdout,
            ran.stderr
        );
    }
    let jobs = lab.done("root-of-all", &["jobs", "--json"]);
    let jobs: serde_json::Value = serde_json::from_str(&jobs).unwrap();
    assert_eq!(jobs.as_array().unwrap().len(), 1, "refused at submission, not during the run: {jobs}");
    // Other users may not access the job.
    for args in [&["why", "job_1"][..], &["history", "job_1"], &["kill", "job_1"], &["tasks", "job_1"]] {
        lab.denied("bob", args);
    }
    lab.done("ann", &["history", "job_1"]);
    lab.done("root-of-all", &["tasks", "job_1"]);
    lab.done("ann", &["logs", "job_1.m0"]);
    check_other_users_see_little(&lab);
    check_jobs_are_limited(&lab, text);
    check_admin_methods_are_refused_for_users(&lab);
}

fn check_admin_methods_are_refused_for_users(lab: &Lab) {
    // Draining is a method for admins.
    let ran = lab.run("ann", &["drain", "node1"]);
    assert!(ran.code != 0 && ran.stderr.contains("not for the role user"), "{}", ran.stderr);
    // A user cannot act as another.
    let ran =
        lab.run("ann", &["submit", "wordcount", "--input", "/home/ann/a", "--output", "/o", "--user", "bob"]);
    assert!(ran.code != 0 && ran.stderr.contains("ann cannot act for bob"), "{}", ran.stderr);
}

fn check_other_users_see_little(lab: &Lab) {
    // Other users see that a job exists and its progress, but not its inputs and error messages.
    let seen = |user: &str| lab.done(user, &["jobs", "--json"]);
    assert!(seen("ann").contains("/home/ann/out"));
    assert!(seen("bob").contains("job_1") && !seen("bob").contains("/home/ann"), "{}", seen("bob"));
    let job = lab.done("bob", &["job", "job_1"]);
    assert!(job.contains("visible only to ann") && !job.contains("/home/ann"), "{job}");
    let ran = lab.run("bob", &["counters", "job_1"]);
    assert!(ran.code == 1 && ran.stderr.contains("are visible only to ann and admins"), "{}", ran.stderr);
    let mapper = ["--mapper", "sh -c 'echo my-secret-words >&2; exit 3'"];
    let place = ["--input", "/home/ann/a", "--output", "/home/ann/out3"];
    assert_eq!(lab.run("ann", &[&["submit", "streaming"][..], &mapper, &place].concat()).code, 1);
    assert!(seen("ann").contains("my-secret-words"), "{}", seen("ann"));
    assert!(!seen("bob").contains("my-secret-words"), "{}", seen("bob"));
}

fn check_jobs_are_limited(lab: &Lab, text: &str) {
    // A user may have one active job. The next job is refused, and that of another user is
    // accepted.
    let place = ["--input", "/home/ann/a", "--output", "/home/ann/slow", "--detach"];
    lab.done("ann", &[&["submit", "streaming", "--mapper", "sleep 300"][..], &place].concat());
    let submit = |user: &str, input: &str, output: &str| {
        lab.run(user, &["submit", "wordcount", "--input", input, "--output", output])
    };
    let ran = submit("ann", "/home/ann/a", "/home/ann/out4");
    assert!(ran.code != 0 && ran.stderr.contains("try again later"), "{}", ran.stderr);
    lab.done("bob", &["fs", "put", text, "/home/bob/b"]);
    assert_eq!(submit("bob", "/home/bob/b", "/home/bob/out").code, 0);
}

/// Checks that permissions can be enforced in an open cluster too.
#[test]
fn open_cluster_with_permissions_protects_logs() {
    let settings = format!("{QUICK}\n[security]\npermissions = \"on\"\n");
    let cluster =
        Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, open: true, ..Up::default() });
    let run = |user: &str, args: &[&str]| -> Ran {
        cluster.command(args).env("FERMATA_USER", user).output().unwrap().into()
    };
    std::fs::write(cluster.path("text"), "one two two\n").unwrap();
    cluster.mrctl(&["fs", "mkdir", "-p", "/home/ann"]);
    cluster.mrctl(&["fs", "chown", "ann", "/home/ann"]);
    for args in [
        &["fs", "put", "text", "/home/ann/text"][..],
        &["submit", "wordcount", "--input", "/home/ann/text", "--output", "/home/ann/out"],
        &["logs", "job_1.m0"],
    ] {
        let ran = run("ann", args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.stdout, ran.stderr);
    }
    assert_ne!(run("bob", &["logs", "job_1.m0"]).code, 0);
    cluster.mrctl(&["logs", "job_1.m0"]);
}

/// Checks that a new closed cluster can be used without creating folders first.
#[test]
fn first_call_makes_the_home_folder_and_the_first_job_runs() {
    let settings = format!("{QUICK}default_quota_files = 60\n");
    let lab = Lab::up_with(false, &settings, "");
    let text = lab.cluster.path("text");
    std::fs::write(&text, "one two two\n").unwrap();
    let text = text.to_str().unwrap();
    lab.done("ann", &["fs", "put", text, "/user/ann/in"]);
    let home: serde_json::Value =
        serde_json::from_str(&lab.done("ann", &["fs", "stat", "/user/ann", "--json"])).unwrap();
    assert_eq!((&home[0]["owner"], &home[0]["mode"]), (&"ann".into(), &serde_json::json!(0o700)), "{home}");
    lab.denied("bob", &["fs", "ls", "/user/ann"]);
    lab.done("bob", &["fs", "put", text, "/tmp/from-bob"]);
    lab.denied("ann", &["fs", "rm", "/tmp/from-bob"]);
    let ran =
        lab.run("ann", &["submit", "wordcount", "--input", "/user/ann/in", "--output", "/user/ann/out"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // The default quota protects the memory of the NameNode, and is shown.
    assert!(lab.done("ann", &["fs", "quota", "/user/ann"]).contains("60"));
    let full = (0..80)
        .map(|n| lab.run("ann", &["fs", "mkdir", &format!("/user/ann/d{n}")]))
        .find(|ran| ran.code != 0);
    assert!(full.is_some_and(|ran| ran.stderr.contains("quota of 60 files")), "the quota is enforced");
}

/// Each report of a bad replica makes a DataNode read a whole block. Checks that only users who may
/// read the file can report, that the number per minute is limited, and that the reason is
/// truncated in the log.
#[test]
fn reports_of_bad_replicas_are_for_readers_limited_and_short_in_the_log() {
    let lab = Lab::up(true, "");
    let text = lab.cluster.path("text");
    std::fs::write(&text, "one two two\n").unwrap();
    lab.cluster.mrctl(&["fs", "put", text.to_str().unwrap(), "/text"]);
    lab.cluster.mrctl(&["fs", "chmod", "600", "/text"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = |role, name| {
        let options = ClientOptions::new(lab.masters().0, daemon::config::ClientConfig::default());
        let options = options.with(lab.credentials(role, name, Validity::Valid));
        runtime.block_on(Client::connect(options)).unwrap()
    };
    let (admin, bob) = (client(Role::Admin, "boss"), client(Role::User, "bob"));
    let path = DfsPath::parse("/text").unwrap();
    let (_, blocks) = runtime.block_on(admin.locate(&path, 0, 1)).unwrap();
    let (block, node) = (blocks[0].block, blocks[0].nodes[0].uuid.clone());
    let reason = ["a long reason ", &"x".repeat(100_000)].concat();
    let report = |client: &Client| runtime.block_on(client.check_replica(block, &node, &reason));
    let refused = report(&bob).unwrap_err().to_string();
    assert!(refused.contains("may not read /text"), "{refused}");
    lab.cluster.mrctl(&["fs", "chmod", "644", "/text"]);
    report(&bob).unwrap();
    let refused = (0..200).find_map(|_| report(&bob).err()).expect("a limit").to_string();
    assert!(refused.contains("user bob has reported 100 bad replicas within a minute"), "{refused}");
    report(&admin).unwrap();
    let log = std::fs::read_to_string(lab.cluster.path(".fermata/logs/namenode.log")).unwrap();
    let longest = log.lines().map(str::len).max().unwrap();
    assert!(longest < 2000, "a line of {longest} bytes");
}

/// The owner of the staging area could replace the programs of other users. Checks that the
/// JobTracker takes the area over from a user who has created it, and creates it if it is missing.
#[test]
fn jobtracker_takes_over_a_staging_area_that_a_user_has_created() {
    let lab = Lab::up(true, "");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = ClientOptions::new(lab.masters().0, daemon::config::ClientConfig::default());
    let options = options.with(lab.credentials(Role::Admin, "boss", Validity::Valid));
    let admin = runtime.block_on(Client::connect(options)).unwrap();
    let is_secured = |folder: &str, mode: u32| {
        let status = runtime.block_on(admin.stat(&DfsPath::parse(folder).unwrap()));
        status.is_ok_and(|status| status.owner == "jobtracker" && status.mode == mode)
    };
    let await_secured = || {
        eventually("the JobTracker owns the staging area", || {
            (is_secured("/tmp/fermata", 0o755) && is_secured("/tmp/fermata/staging", 0o1777)).then_some(())
        });
    };
    await_secured();
    // The JobTracker checks the area at any time. It may have created the parent again, in which the
    // user may not create the area.
    eventually("a user creates the staging area", || {
        lab.cluster.mrctl(&["fs", "rm", "-rf", "/tmp/fermata"]);
        let ran = lab.run("mallory", &["fs", "mkdir", "-p", "/tmp/fermata/staging"]);
        (ran.code == 0).then_some(())
    });
    await_secured();
    lab.denied("mallory", &["fs", "rm", "-r", "/tmp/fermata"]);
    // A client waits until the JobTracker has created the area.
    let (text, script) = (lab.cluster.path("text"), lab.cluster.path("copy.sh"));
    std::fs::write(&text, "one\n").unwrap();
    std::fs::write(&script, "cat\n").unwrap();
    lab.done("ann", &["fs", "put", text.to_str().unwrap(), "/user/ann/in"]);
    lab.cluster.mrctl(&["fs", "rm", "-r", "/tmp/fermata"]);
    let job = ["submit", "streaming", "--mapper", "sh copy.sh", "--file", script.to_str().unwrap()];
    let place = ["--input", "/user/ann/in", "--output", "/user/ann/out"];
    lab.done("ann", &[&job[..], &place].concat());
    assert!(is_secured("/tmp/fermata/staging", 0o1777));
}
