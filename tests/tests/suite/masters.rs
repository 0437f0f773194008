//! `mrctl up --masters 3`: groups of NameNodes and of `JobTrackers` lose members, their leaders, and their
//! majority.

use fermata_tests::{Cluster, TIMEOUT, Up, eventually};
use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A command must fail or succeed within this time if the NameNodes do not answer. The clients of
/// these tests give up after 4 s; the rest is for a busy machine.
const FAILS_WITHIN: Duration = Duration::from_mins(1);
const SETTINGS: &str =
    "[namenode]\nheartbeat = \"200ms\"\n[client]\ndeadline = \"4s\"\nconnect_timeout = \"2s\"\n";

fn masters(cluster: &Cluster) -> Value {
    let out = cluster.try_mrctl(&["masters", "--json"]).stdout;
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// Returns what the masters of a kind do together.
fn group<'a>(all: &'a Value, daemon: &str) -> &'a Value {
    all["groups"].as_array().unwrap().iter().find(|group| group["daemon"] == daemon).expect("a group")
}

/// Returns the masters of a kind.
fn of_kind<'a>(all: &'a Value, daemon: &str) -> Vec<&'a Value> {
    all["masters"].as_array().expect("a list").iter().filter(|one| one["daemon"] == daemon).collect()
}

/// Returns the NameNodes.
fn list(all: &Value) -> Vec<&Value> {
    of_kind(all, "namenode")
}

/// Returns the name of the master of a kind that leads.
fn leader_of(cluster: &Cluster, daemon: &str) -> String {
    eventually("a master leads", || {
        let all = masters(cluster);
        let address = &group(&all, daemon)["leader"];
        let leader = of_kind(&all, daemon).into_iter().find(|one| one["address"] == *address)?;
        Some(leader["name"].as_str().expect("a local cluster has names").to_owned())
    })
}

/// Returns the name of the NameNode that leads.
pub(crate) fn leader(cluster: &Cluster) -> String {
    leader_of(cluster, "namenode")
}

/// Waits until all three masters of a kind vote and have everything.
fn await_all_of(cluster: &Cluster, daemon: &str) -> Value {
    eventually("three masters have everything", || {
        let all = masters(cluster);
        let list = of_kind(&all, daemon);
        let is_complete =
            |one: &&Value| one["votes"] == true && one["lag"] == 0 && one["epoch"] == list[0]["epoch"];
        let is_whole =
            group(&all, daemon)["serves"] == true && list.len() == 3 && list.iter().all(is_complete);
        is_whole.then_some(all)
    })
}

/// Waits until all three NameNodes vote and have everything.
fn await_all(cluster: &Cluster) -> Value {
    await_all_of(cluster, "namenode")
}

fn others(leader: &str) -> [&'static str; 2] {
    match leader {
        "namenode" => ["namenode2", "namenode3"],
        "namenode2" => ["namenode", "namenode3"],
        _ => ["namenode", "namenode2"],
    }
}

/// Writes small files into folders, so that a put of them takes a while.
fn write_files(folder: &Path, count: usize) {
    for number in 0..count {
        let folder = folder.join(format!("d{}", number % 10));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("f{number}")), format!("file {number}\n").repeat(1 + number % 40))
            .unwrap();
    }
}

fn assert_equal_folders(one: &Path, other: &Path) {
    let out = Command::new("diff").arg("-r").args([one, other]).output().expect("diff runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn three_namenodes_keep_files_ports_and_number_across_a_restart() {
    let cluster = Cluster::up(Up { nodes: 2, masters: 3, ..Up::default() });
    let all = await_all(&cluster);
    let names: Vec<&str> = list(&all).iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["namenode", "namenode2", "namenode3"]);
    assert_eq!(list(&all).iter().filter(|one| one["role"] == "leader").count(), 1, "{all}");
    assert_eq!(list(&all).iter().filter(|one| one["role"] == "follower").count(), 2, "{all}");
    for (daemon, title) in [("namenode", "NameNodes"), ("jobtracker", "JobTrackers")] {
        let summary = group(&all, daemon)["summary"].as_str().unwrap();
        assert!(summary.ends_with(&format!(" leads; 3 of 3 {title} are up")), "{summary}");
    }
    let names: Vec<&str> =
        of_kind(&all, "jobtracker").iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["jobtracker", "jobtracker2", "jobtracker3"]);

    let status = cluster.mrctl(&["status"]);
    assert!(status.lines().nth(1).is_some_and(|line| line.contains(" leads; 3 of 3 ")), "{status}");
    for (groups, daemon) in [("namenodes", "namenode"), ("jobtrackers", "jobtracker")] {
        assert_eq!(cluster.json(&["status"])[groups]["serves"], true);
        assert_eq!(cluster.json(&["health", daemon])["serves"], true);
    }
    let layout = || {
        let text = fs::read_to_string(cluster.path(".fermata/layout.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let before = layout();
    assert_eq!(
        (&before["masters"], before["other_namenode_ports"].as_array().unwrap().len()),
        (&3.into(), 2)
    );
    assert_eq!(before["other_jobtracker_ports"].as_array().unwrap().len(), 2);

    write_files(&cluster.path("in"), 20);
    cluster.mrctl(&["fs", "put", "-r", "in", "/in"]);
    cluster.mrctl(&["down"]);
    for (flag, why) in [
        ("1", "this number cannot be changed yet"),
        ("5", "this number cannot be changed yet"),
        ("2", "must be 1, 3 or 5"),
    ] {
        let refused = cluster.refused(2, &["up", "--detach", "--masters", flag]);
        assert!(refused.contains(why) && refused.trim_end().lines().count() == 1, "{refused}");
    }
    let refused = cluster.refused(2, &["up", "--detach", "--namenode-port", "9"]);
    assert!(refused.contains("keeps its port"), "{refused}");

    let up = cluster.mrctl(&["up", "--detach"]);
    assert!(up.starts_with("ready: jobtrackers at ") && up.contains("namenodes at "), "{up}");
    assert_eq!(layout(), before);
    let again = await_all(&cluster);
    assert!(list(&again)[0]["epoch"].as_u64() > list(&all)[0]["epoch"].as_u64(), "{again}");
    cluster.mrctl(&["fs", "get", "-r", "/in", "out"]);
    assert_equal_folders(&cluster.path("in"), &cluster.path("out"));
    cluster.mrctl(&["down"]);
}

#[test]
fn leader_killed_during_a_put_loses_nothing_and_catches_up_again() {
    let cluster = Cluster::up(Up { nodes: 3, masters: 3, ..Up::default() });
    write_files(&cluster.path("in"), 400);
    let before = await_all(&cluster);
    let leader = leader(&cluster);
    let put = ["fs", "put", "-r", "--quiet", "in", "/in"];
    let mut put = cluster.command(&put).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    eventually("the put has written some files", || {
        let listed = cluster.try_mrctl(&["fs", "ls", "-R", "/in"]).stdout;
        (listed.lines().count() > 20).then_some(())
    });
    cluster.mrctl(&["chaos", "kill", &leader]);
    assert!(put.try_wait().unwrap().is_none(), "the put has ended before the leader was killed");
    let killed = Instant::now();
    cluster.mrctl(&["fs", "mkdir", "/after"]);
    let took = killed.elapsed();
    println!("a folder was created {:.1} s after kill -9 of {leader}, which led", took.as_secs_f64());
    assert!(took < WRITES_WITHIN, "{took:?}");
    let put = put.wait_with_output().unwrap();
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    cluster.mrctl(&["fs", "get", "-r", "/in", "out"]);
    assert_equal_folders(&cluster.path("in"), &cluster.path("out"));

    let now = masters(&cluster);
    let dead = list(&now).into_iter().find(|one| one["name"] == leader.as_str()).unwrap();
    assert_eq!((&dead["role"], &dead["error"]), (&"down".into(), &"refused the connection".into()), "{now}");
    assert!(
        group(&now, "namenode")["summary"].as_str().unwrap().contains("2 of 3 NameNodes are up"),
        "{now}"
    );
    let status = cluster.try_mrctl(&["status"]);
    assert_eq!(status.code, 1);
    assert!(
        status.stdout.contains("restart the daemons that have died with `mrctl up`"),
        "{}",
        status.stdout
    );

    let started = cluster.mrctl(&["up"]);
    assert!(started.starts_with(&format!("started {leader} again")), "{started}");
    let after = await_all(&cluster);
    assert!(list(&after)[0]["epoch"].as_u64() > list(&before)[0]["epoch"].as_u64(), "{after}");
    // The member that came back has all files: it and one other are enough.
    let other = others(&leader).into_iter().find(|name| *name == self::leader(&cluster)).unwrap();
    cluster.mrctl(&["chaos", "kill", other]);
    fs::remove_dir_all(cluster.path("out")).unwrap();
    cluster.mrctl(&["fs", "get", "-r", "/in", "out"]);
    assert_equal_folders(&cluster.path("in"), &cluster.path("out"));
    cluster.mrctl(&["fs", "rm", "-r", "/in"]);
}

#[test]
fn without_a_majority_commands_fail_in_time_and_work_when_one_is_back() {
    let cluster =
        Cluster::up(Up { nodes: 1, replication: 1, masters: 3, settings: SETTINGS, ..Up::default() });
    fs::write(cluster.path("file"), "some bytes").unwrap();
    cluster.mrctl(&["fs", "put", "file", "/file"]);
    await_all(&cluster);
    let leader = leader(&cluster);
    let [other, left] = others(&leader);
    cluster.mrctl(&["chaos", "kill", &leader]);
    cluster.mrctl(&["chaos", "kill", other]);
    for command in [&["fs", "cat", "/file"][..], &["fs", "mkdir", "/new"], &["fs", "put", "file", "/second"]]
    {
        let since = Instant::now();
        let refused = cluster.refused(1, command);
        assert!(since.elapsed() < FAILS_WITHIN, "{command:?}: {:?}", since.elapsed());
        assert!(refused.matches("refused the connection").count() == 2, "{command:?}: {refused}");
        let advice = "have died: start them again with `mrctl up`";
        assert!(refused.contains(advice), "{command:?}: {refused}");
    }
    let shown = eventually("the member that is left leads no more", || {
        let shown = cluster.try_mrctl(&["masters"]);
        assert_eq!(shown.code, 1, "{}", shown.stdout);
        shown.stdout.contains("no quorum: 1 of 3 NameNodes is up (").then_some(shown.stdout)
    });
    let summary = shown.lines().find(|line| line.starts_with("no quorum: ")).unwrap();
    assert!(summary.ends_with("): nothing is lost; start one of them"), "{shown}");
    let health = cluster.refused(1, &["health", "namenode"]);
    assert!(health.contains("no quorum: 1 of 3"), "{health}");
    let status = cluster.try_mrctl(&["status"]);
    assert!(status.code == 1 && status.stdout.contains("no quorum: 1 of 3"), "{}", status.stdout);

    let since = Instant::now();
    cluster.mrctl(&["chaos", "restart", other]);
    eventually("a majority serves again", || {
        (cluster.try_mrctl(&["fs", "mkdir", "/new"]).code == 0).then_some(())
    });
    println!("{left} and {other} serve {:.1} s after the start of {other}", since.elapsed().as_secs_f64());
    eventually("the file can be read again", || {
        let read = cluster.try_mrctl(&["fs", "cat", "/file"]);
        (read.code == 0 && read.stdout == "some bytes").then_some(())
    });
    cluster.mrctl(&["fs", "put", "file", "/second"]);
    assert!(Instant::now() < since + TIMEOUT);
}

/// Part 6 of the plan of replicated masters: how long the loss of a NameNode may stop writes.
/// Includes the start of a process, in a debug build, on a busy machine.
const WRITES_WITHIN: Duration = Duration::from_secs(6);

#[test]
fn leader_changes_by_command_and_a_member_is_removed() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, masters: 3, ..Up::default() });
    let all = await_all(&cluster);
    let address = |at: usize| list(&all)[at]["address"].as_str().unwrap().to_owned();
    let before = leader(&cluster);
    let transferred = cluster.mrctl(&["masters", "transfer"]);
    assert!(transferred.ends_with(" leads\n"), "{transferred}");
    assert_ne!(leader(&cluster), before);
    for at in [0, 1] {
        assert_eq!(cluster.mrctl(&["masters", "transfer", &address(at)]), format!("{} leads\n", address(at)));
        assert_eq!(group(&masters(&cluster), "namenode")["leader"], address(at));
    }
    let refused = cluster.refused(1, &["masters", "transfer", "127.0.0.1:1"]);
    assert!(refused.contains("127.0.0.1:1 is no member of the group ("), "{refused}");
    let refused = cluster.refused(1, &["masters", "add", "127.0.0.1:1", "--within", "1s"]);
    assert!(refused.contains("the NameNode at 127.0.0.1:1 to ask"), "{refused}");
    // The one that leads is removed: another one leads then.
    let removed = cluster.mrctl(&["masters", "remove", &address(1)]);
    assert!(removed.starts_with(&format!("{} was removed", address(1))), "{removed}");
    eventually("two NameNodes vote", || (group(&masters(&cluster), "namenode")["voters"] == 2).then_some(()));
    cluster.mrctl(&["fs", "mkdir", "/after"]);
    // The JobTrackers are another group.
    let before = leader_of(&cluster, "jobtracker");
    let transferred = cluster.mrctl(&["masters", "transfer", "--daemon", "jobtracker"]);
    assert!(transferred.ends_with(" leads\n"), "{transferred}");
    assert_ne!(leader_of(&cluster, "jobtracker"), before);
    let all = masters(&cluster);
    let follower = of_kind(&all, "jobtracker").into_iter().find(|one| one["role"] == "follower").unwrap();
    let address = follower["address"].as_str().unwrap();
    let removed = cluster.mrctl(&["masters", "remove", address, "--daemon", "jobtracker"]);
    assert!(removed.starts_with(&format!("{address} was removed")), "{removed}");
    assert_eq!(group(&masters(&cluster), "jobtracker")["voters"], 2);
}

/// The first NameNode does not get ready: it waits for its file VERSION, which is a pipe.
#[test]
fn other_namenodes_are_started_while_the_first_is_not_ready() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, masters: 3, ..Up::default() });
    await_all(&cluster);
    cluster.mrctl(&["down"]);
    let version = cluster.path(".fermata/data/namenode/VERSION");
    let text = fs::read(&version).unwrap();
    fs::remove_file(&version).unwrap();
    assert!(Command::new("mkfifo").arg(&version).status().expect("mkfifo runs").success());
    let up = ["up", "--detach"];
    let mut up = cluster.command(&up).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually("the others serve", || {
        assert!(up.try_wait().unwrap().is_none(), "`mrctl up` waits for the first one");
        // `mrctl up` may not have written yet which cluster this is.
        let all: Value = serde_json::from_str(&cluster.try_mrctl(&["masters", "--json"]).stdout).ok()?;
        let serves = group(&all, "namenode")["serves"] == true;
        (serves && list(&all)[0]["error"] != Value::Null).then_some(())
    });
    // It reads the file again later.
    let mut pipe = fs::File::options().write(true).open(&version).unwrap();
    fs::write(version.with_extension("whole"), &text).unwrap();
    fs::rename(version.with_extension("whole"), &version).unwrap();
    pipe.write_all(&text).unwrap();
    drop(pipe);
    assert!(up.wait().unwrap().success());
    cluster.mrctl(&["down"]);
}

#[test]
fn namenode_without_its_folder_does_not_start_and_the_others_serve() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, masters: 3, ..Up::default() });
    fs::write(cluster.path("file"), "some bytes").unwrap();
    cluster.mrctl(&["fs", "put", "file", "/file"]);
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    fs::remove_dir_all(cluster.path(".fermata/data/namenode")).unwrap();
    let why = "namenode is not started, because a NameNode that has lost its folder must not vote";
    let refused = cluster.refused(1, &["chaos", "restart", "namenode"]);
    assert!(refused.contains(why), "{refused}");
    let up = cluster.try_mrctl(&["up"]);
    assert!(up.code == 1 && up.stderr.contains(why), "{}{}", up.stdout, up.stderr);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/file"]), "some bytes");

    cluster.mrctl(&["down"]);
    let up = cluster.try_mrctl(&["up", "--detach"]);
    assert!(up.code == 0 && up.stderr.contains(why), "{}{}", up.stdout, up.stderr);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/file"]), "some bytes");
    let all = masters(&cluster);
    let namenodes = group(&all, "namenode");
    assert_eq!((&namenodes["serves"], &namenodes["voters_up"]), (&true.into(), &2.into()), "{all}");

    // Without a majority of the folders nothing is started.
    cluster.mrctl(&["down"]);
    fs::remove_dir_all(cluster.path(".fermata/data/namenode2")).unwrap();
    let refused = cluster.refused(1, &["up", "--detach"]);
    assert!(refused.contains("is missing or empty (1 more of 3 NameNodes)"), "{refused}");
}

/// Returns the checksums of the parts of an output, by path.
fn sums(cluster: &Cluster, output: &str) -> Vec<String> {
    let parts = cluster.json(&["fs", "ls", &format!("{output}/part-*")]);
    let sum = |part: &Value| {
        let local = cluster.path("part");
        cluster.mrctl(&["fs", "get", "--force", part["path"].as_str().unwrap(), local.to_str().unwrap()]);
        fermata_tests::sha256_of(&local)
    };
    parts.as_array().unwrap().iter().map(sum).collect()
}

/// Returns the attempts of a job that have run. One whose order was not sent before the leader died
/// was killed without having run.
fn attempts_that_ran(cluster: &Cluster, job: &str) -> Vec<String> {
    let tasks = cluster.json(&["tasks", job]);
    let attempts = tasks.as_array().unwrap().iter().flat_map(|task| task["attempts"].as_array().unwrap());
    let ran = attempts.filter(|attempt| {
        attempt["state"] != "killed" || attempt["error"] != "its tracker no longer runs it"
    });
    let name = |attempt: &Value| {
        let id = attempt["attempt"].as_str().unwrap();
        id.split_once('.').unwrap().1.rsplit_once('.').unwrap().0.to_owned()
    };
    let mut names: Vec<String> = ran.map(name).collect();
    names.sort();
    names
}

/// Waits until so many maps of the running job are done.
fn await_maps(cluster: &Cluster, done: u64) {
    eventually("some maps are done", || {
        let jobs = cluster.json(&["jobs", "--running"]);
        (jobs.as_array()?.first()?["maps"]["done"].as_u64()? >= done).then_some(())
    });
}

#[test]
fn both_leaders_killed_during_a_sort_change_nothing_and_run_no_task_again() {
    let cluster = Cluster::up(Up { nodes: 3, masters: 3, block_size: "1MiB", ..Up::default() });
    cluster.mrctl(&["submit", "teragen", "--output", "/gen", "--conf", "rows=200000", "--conf", "maps=4"]);
    let sort = ["submit", "terasort", "--input", "/gen", "--reduces", "4", "--conf", "speculation=false"];
    let calm = [&sort[..], &["--output", "/calm", "--json"]].concat();
    let calm: Value = serde_json::from_str(&cluster.mrctl(&calm)).unwrap();
    let calm_sums = sums(&cluster, "/calm");
    assert_eq!(calm_sums.len(), 4);
    await_all(&cluster);
    let before = await_all_of(&cluster, "jobtracker");

    let slow = [&sort[..], &["--output", "/disturbed", "--conf", "pace.map=500KiB", "--json"]].concat();
    let slow = cluster.command(&slow).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    await_maps(&cluster, 3);
    let leaders = [leader(&cluster), leader_of(&cluster, "jobtracker")];
    for name in &leaders {
        cluster.mrctl(&["chaos", "kill", name]);
    }
    // A job that is submitted now waits for both leaders, and is accepted once.
    let killed = Instant::now();
    let meanwhile = ["submit", "teragen", "--output", "/meanwhile", "--conf", "rows=10", "--detach"];
    cluster.mrctl(&meanwhile);
    println!("a job was accepted {:.1} s after kill -9 of both leaders", killed.elapsed().as_secs_f64());

    let ended = slow.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(sums(&cluster, "/disturbed"), calm_sums, "the output differs from an undisturbed run");
    let disturbed: Value = serde_json::from_str(&text).unwrap();
    let job = |status: &Value| status["job"].as_str().unwrap().to_owned();
    assert_eq!(attempts_that_ran(&cluster, &job(&disturbed)), attempts_that_ran(&cluster, &job(&calm)));
    eventually("the other job ends", || {
        let jobs = cluster.json(&["jobs"]);
        let of_output = |one: &&Value| one["output"] == "/meanwhile";
        let found: Vec<&Value> = jobs.as_array()?.iter().filter(of_output).collect();
        assert_eq!(found.len(), 1, "the job was accepted more than once: {jobs}");
        (found[0]["state"] == "succeeded").then_some(())
    });
    // The new leader has the histories of all jobs, also of those before.
    for status in [&calm, &disturbed] {
        let history = cluster.mrctl(&["history", &job(status)]);
        assert!(history.contains("job-ended"), "{history}");
    }
    let started = cluster.mrctl(&["up"]);
    for name in &leaders {
        assert!(started.contains(&format!("started {name} again")), "{started}");
    }
    let after = await_all_of(&cluster, "jobtracker");
    assert!(
        of_kind(&after, "jobtracker")[0]["epoch"].as_u64()
            > of_kind(&before, "jobtracker")[0]["epoch"].as_u64()
    );
    cluster.mrctl(&["backup", "copy"]);
    cluster.mrctl(&["down"]);
}

/// How long a submission may take after both leaders were killed. Includes elections and starts of
/// processes, in a debug build, on a busy machine.
const SUBMITS_WITHIN: Duration = Duration::from_mins(1);

#[test]
fn submissions_are_accepted_soon_after_the_loss_of_both_leaders() {
    let trials: usize = std::env::var("FERMATA_TRIALS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, masters: 3, ..Up::default() });
    let mut took = Vec::new();
    for trial in 0..trials {
        await_all(&cluster);
        await_all_of(&cluster, "jobtracker");
        for daemon in ["namenode", "jobtracker"] {
            cluster.mrctl(&["chaos", "kill", &leader_of(&cluster, daemon)]);
        }
        let killed = Instant::now();
        let output = format!("/trial{trial}");
        cluster.mrctl(&["submit", "teragen", "--output", &output, "--conf", "rows=10", "--detach"]);
        took.push(killed.elapsed());
        cluster.mrctl(&["up"]);
    }
    took.sort();
    println!("accepted after {took:?}: median {:?}, worst {:?}", took[took.len() / 2], took[took.len() - 1]);
    assert!(*took.last().unwrap() < SUBMITS_WITHIN, "{took:?}");
}
