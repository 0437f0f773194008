//! `mrctl up --masters 3`: groups of NameNodes and of `JobTrackers` lose members, their leaders, and their
//! majority.

use fermata_tests::{Cluster, TIMEOUT, Up, eventually, load::while_clients_work};
use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
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
    let refused = cluster.refused(2, &["up", "--detach", "--masters", "2"]);
    assert!(refused.contains("must be 1, 3 or 5") && refused.trim_end().lines().count() == 1, "{refused}");
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
    assert!(summary.contains("): nothing is lost; start one of them; if their folders are lost"), "{shown}");
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

fn folder(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.path(&format!(".fermata/data/{name}"))
}

fn id_of(all: &Value, name: &str) -> u64 {
    let list = all["masters"].as_array().expect("a list");
    let one = list.iter().find(|one| one["name"] == name).expect("it is in the list");
    one["id"].as_u64().expect("its ID is known")
}

/// Flips a bit in the middle of the newest segment of a journal.
fn damage_newest_segment(journal: &Path) {
    let names = fs::read_dir(journal).unwrap().map(|entry| entry.unwrap().path());
    let segments = names.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let with_records = segments.filter(|path| fs::metadata(path).unwrap().len() > 200);
    let newest = with_records.max().expect("there is a segment with records");
    let mut bytes = fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(newest, bytes).unwrap();
}

#[test]
fn namenode_with_a_lost_folder_or_a_damaged_log_gets_everything_from_the_others() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, masters: 3, ..Up::default() });
    fs::write(cluster.path("file"), "some bytes").unwrap();
    cluster.mrctl(&["fs", "put", "file", "/file"]);
    await_all(&cluster);
    let lost = "namenode starts empty, and gets everything from the others";
    // While the others serve, and it may lead.
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    fs::remove_dir_all(folder(&cluster, "namenode")).unwrap();
    let restarted = cluster.try_mrctl(&["chaos", "restart", "namenode"]);
    assert!(restarted.code == 0 && restarted.stderr.contains(lost), "{}", restarted.stderr);
    let all = await_all(&cluster);
    assert!(id_of(&all, "namenode") > u64::from(u32::MAX), "it votes with a new ID: {all}");
    // It has everything: it and one other are enough.
    cluster.mrctl(&["chaos", "kill", "namenode2"]);
    eventually("two NameNodes serve", || {
        (cluster.try_mrctl(&["fs", "cat", "/file"]).stdout == "some bytes").then_some(())
    });
    cluster.mrctl(&["fs", "mkdir", "/while-two"]);
    cluster.mrctl(&["up"]);
    await_all(&cluster);

    // At a start, with a damaged log, and another time.
    cluster.mrctl(&["down"]);
    damage_newest_segment(&folder(&cluster, "namenode").join("edits"));
    cluster.mrctl(&["up", "--detach"]);
    let again = await_all(&cluster);
    assert_ne!(id_of(&again, "namenode"), id_of(&all, "namenode"), "{again}");
    let names = fs::read_dir(folder(&cluster, "namenode").join("edits")).unwrap();
    let names: Vec<String> = names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name == "RAFT.damaged-1"), "{names:?}");
    cluster.mrctl(&["down"]);
    fs::remove_dir_all(folder(&cluster, "namenode3")).unwrap();
    let up = cluster.try_mrctl(&["up", "--detach"]);
    assert!(up.code == 0 && up.stderr.contains("namenode3 starts empty"), "{}{}", up.stdout, up.stderr);
    await_all(&cluster);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/file"]), "some bytes");
    cluster.mrctl(&["fs", "ls", "/while-two"]);

    // Without a majority of the folders nothing is started.
    cluster.mrctl(&["down"]);
    for name in ["namenode", "namenode2"] {
        fs::remove_dir_all(folder(&cluster, name)).unwrap();
    }
    let refused = cluster.refused(1, &["up", "--detach"]);
    assert!(refused.contains("is missing or empty (1 more of 3 NameNodes)"), "{refused}");
    assert!(refused.contains("`mrctl up --recover NAME`"), "{refused}");
}

/// Runs a job without input. Returns its ID.
fn run_job(cluster: &Cluster, output: &str) -> String {
    let out = cluster.mrctl(&["submit", "teragen", "--output", output, "--conf", "rows=10", "--json"]);
    let status: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(status["state"], "succeeded", "{status}");
    status["job"].as_str().unwrap().to_owned()
}

/// Waits until the JobTracker that leads answers, and checks that it knows these jobs.
fn check_jobs(cluster: &Cluster, jobs: &[String]) {
    let known = eventually("the jobs are listed", || {
        let out = cluster.try_mrctl(&["jobs", "--json"]);
        (out.code == 0).then_some(out.stdout)
    });
    let known: Value = serde_json::from_str(&known).unwrap();
    for job in jobs {
        let found = known.as_array().unwrap().iter().find(|one| one["job"] == job.as_str());
        assert!(found.is_some_and(|found| found["state"] == "succeeded"), "{job}: {known}");
        assert!(cluster.mrctl(&["history", job]).contains("job-ended"), "{job}");
    }
}

#[test]
fn jobtracker_with_a_lost_folder_or_a_damaged_log_gets_all_jobs_from_the_others() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, masters: 3, ..Up::default() });
    let mut jobs = vec![run_job(&cluster, "/first")];
    await_all_of(&cluster, "jobtracker");
    // While the others serve.
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    fs::remove_dir_all(folder(&cluster, "jobtracker")).unwrap();
    jobs.push(run_job(&cluster, "/while-two"));
    let up = cluster.try_mrctl(&["up"]);
    let lost = "jobtracker starts empty, and gets everything from the others";
    assert!(up.code == 0 && up.stderr.contains(lost), "{}{}", up.stdout, up.stderr);
    let all = await_all_of(&cluster, "jobtracker");
    assert!(id_of(&all, "jobtracker") > u64::from(u32::MAX), "it has a new ID: {all}");
    // It has everything: it and one other are enough.
    cluster.mrctl(&["chaos", "kill", "jobtracker2"]);
    check_jobs(&cluster, &jobs);
    jobs.push(run_job(&cluster, "/other-two"));
    cluster.mrctl(&["up"]);
    await_all_of(&cluster, "jobtracker");

    // At a start, with a damaged log.
    cluster.mrctl(&["down"]);
    damage_newest_segment(&folder(&cluster, "jobtracker3").join("journal"));
    cluster.mrctl(&["up", "--detach"]);
    let all = await_all_of(&cluster, "jobtracker");
    assert!(id_of(&all, "jobtracker3") > u64::from(u32::MAX), "it has a new ID: {all}");
    check_jobs(&cluster, &jobs);
    cluster.mrctl(&["down"]);

    // A majority has lost its folders.
    for name in ["jobtracker", "jobtracker2"] {
        fs::remove_dir_all(folder(&cluster, name)).unwrap();
    }
    let refused = cluster.refused(1, &["up", "--detach"]);
    assert!(refused.contains("is missing or empty (1 more of 3 JobTrackers)"), "{refused}");
    assert!(refused.contains("`mrctl up --recover NAME`"), "{refused}");
    let left = folder(&cluster, "jobtracker3");
    let compared = cluster.json(&["masters", "--offline", left.to_str().unwrap()]);
    assert_eq!(compared["best"], left.to_str().unwrap(), "{compared}");
    let up = cluster.try_mrctl(&["up", "--detach", "--recover", "jobtracker3"]);
    assert_eq!(up.code, 0, "{}{}", up.stdout, up.stderr);
    await_all_of(&cluster, "jobtracker");
    check_jobs(&cluster, &jobs);
    jobs.push(run_job(&cluster, "/recovered"));
    cluster.mrctl(&["chaos", "kill", &leader_of(&cluster, "jobtracker")]);
    check_jobs(&cluster, &jobs);
    jobs.push(run_job(&cluster, "/end"));
    check_jobs(&cluster, &jobs);
    assert!(left.join("journal.replaced-1").is_dir(), "the journal of the old group is kept");
    cluster.mrctl(&["down"]);
}

/// Puts small files, one after the other, until it is stopped. Returns those that were acknowledged.
fn put_until(cluster: &Cluster, stop: &AtomicBool, acknowledged: &Mutex<Vec<String>>) {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let local = cluster.path(&format!("load-{number}"));
        fs::write(&local, format!("file {number}\n").repeat(100)).unwrap();
        let at = format!("/load/{number}");
        if cluster.try_mrctl(&["fs", "put", local.to_str().unwrap(), &at]).code == 0 {
            acknowledged.lock().unwrap().push(at);
        }
    }
}

fn check_load(cluster: &Cluster, acknowledged: &[String]) {
    for at in acknowledged {
        let number = at.rsplit('/').next().unwrap();
        assert_eq!(cluster.mrctl(&["fs", "cat", at]), format!("file {number}\n").repeat(100), "{at}");
    }
}

#[test]
fn group_continues_with_the_best_folder_when_a_majority_is_lost() {
    let cluster = Cluster::up(Up { nodes: 2, masters: 3, settings: SETTINGS, ..Up::default() });
    let before = await_all(&cluster);
    cluster.mrctl(&["fs", "mkdir", "/load"]);
    let (stop, acknowledged) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        scope.spawn(|| put_until(&cluster, &stop, &acknowledged));
        eventually("some files", || (acknowledged.lock().unwrap().len() > 15).then_some(()));
        // One of them has less than the others.
        let [first, second] = others(&leader(&cluster));
        cluster.mrctl(&["chaos", "kill", first]);
        let count = acknowledged.lock().unwrap().len();
        eventually("more files", || (acknowledged.lock().unwrap().len() > count + 5).then_some(()));
        cluster.mrctl(&["chaos", "kill", &leader(&cluster)]);
        cluster.mrctl(&["chaos", "kill", second]);
        stop.store(true, Ordering::Relaxed);
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    cluster.mrctl(&["down"]);

    let names = ["namenode", "namenode2", "namenode3"];
    let folders = names.map(|name| folder(&cluster, name).to_str().unwrap().to_owned());
    let offline: Vec<&str> =
        ["masters", "--offline"].into_iter().chain(folders.iter().map(String::as_str)).collect();
    let compared = cluster.json(&offline);
    let best = compared["best"].as_str().unwrap();
    assert!(compared["folders"].as_array().unwrap().iter().all(|one| one["problem"].is_null()), "{compared}");
    assert_eq!(compared["folders"][0]["voters"].as_array().unwrap().len(), 3, "{compared}");
    assert!(cluster.mrctl(&offline).contains(&format!("{best} has most")));
    let best = names[folders.iter().position(|folder| folder == best).unwrap()];
    for lost in names.iter().filter(|name| **name != best) {
        fs::remove_dir_all(folder(&cluster, lost)).unwrap();
    }
    let refused = cluster.refused(1, &["up", "--detach"]);
    assert!(refused.contains("`mrctl up --recover NAME`"), "{refused}");
    let refused = cluster.refused(2, &["up", "--detach", "--recover", "namenode4"]);
    assert!(refused.contains("there is no such master"), "{refused}");

    let up = cluster.try_mrctl(&["up", "--detach", "--recover", best]);
    assert_eq!(up.code, 0, "{}{}", up.stdout, up.stderr);
    let after = await_all(&cluster);
    let epoch = |all: &Value| list(all)[0]["epoch"].as_u64();
    assert!(epoch(&after) > epoch(&before).map(|epoch| epoch + 1000), "the epoch is from the clock: {after}");
    println!("{} files were acknowledged; {best} was recovered", acknowledged.len());
    check_load(&cluster, &acknowledged);
    // It is a group of three again, also at the next start.
    cluster.mrctl(&["chaos", "kill", &leader(&cluster)]);
    cluster.mrctl(&["fs", "mkdir", "/after"]);
    cluster.mrctl(&["down"]);
    cluster.mrctl(&["up", "--detach"]);
    await_all(&cluster);
    check_load(&cluster, &acknowledged[..3]);
    cluster.mrctl(&["fs", "ls", "/after"]);
    let kept = cluster.path(&format!(".fermata/data/{best}/edits.replaced-1"));
    assert!(kept.is_dir(), "the journal of the old group is kept");
}

#[test]
fn one_master_of_each_kind_becomes_three_and_one_again() {
    let cluster = Cluster::up(Up { nodes: 2, ..Up::default() });
    write_files(&cluster.path("in"), 20);
    let get = |from: &str| {
        let _absent = fs::remove_dir_all(cluster.path("out"));
        cluster.mrctl(&["fs", "get", "-r", from, "out"]);
        assert_equal_folders(&cluster.path("in"), &cluster.path("out"));
    };
    let put = |to: &str| drop(cluster.mrctl(&["fs", "put", "-r", "in", to]));
    put("/one");
    let mut jobs = vec![run_job(&cluster, "/job1")];
    cluster.mrctl(&["down"]);
    cluster.mrctl(&["up", "--detach", "--masters", "3"]);
    await_all(&cluster);
    await_all_of(&cluster, "jobtracker");
    get("/one");
    put("/three");
    jobs.push(run_job(&cluster, "/job3"));
    cluster.mrctl(&["chaos", "kill", &leader(&cluster)]);
    cluster.mrctl(&["chaos", "kill", &leader_of(&cluster, "jobtracker")]);
    get("/three");
    check_jobs(&cluster, &jobs);
    jobs.push(run_job(&cluster, "/job-of-two"));
    cluster.mrctl(&["up"]);
    await_all(&cluster);
    await_all_of(&cluster, "jobtracker");
    // Any of them may lead, and another one stays.
    cluster.mrctl(&["masters", "transfer", list(&masters(&cluster))[2]["address"].as_str().unwrap()]);
    put("/again");
    cluster.mrctl(&["down"]);

    cluster.mrctl(&["up", "--detach", "--masters", "1"]);
    let one = masters(&cluster);
    for (daemon, title) in [("namenode", "NameNode"), ("jobtracker", "JobTracker")] {
        let summary = group(&one, daemon)["summary"].as_str().unwrap();
        assert!(summary.starts_with(&format!("one {title}, at")), "{one}");
    }
    check_jobs(&cluster, &jobs);
    jobs.push(run_job(&cluster, "/job-alone"));
    for at in ["/one", "/three", "/again"] {
        get(at);
    }
    put("/alone");
    for name in ["namenode3", "jobtracker3"] {
        let kept = folder(&cluster, &format!("{name}.replaced-1"));
        assert!(kept.is_dir() && !folder(&cluster, name).exists(), "{name}");
    }
    cluster.mrctl(&["down"]);
    // A stop in between changes nothing.
    cluster.mrctl(&["up", "--detach"]);
    cluster.mrctl(&["down"]);

    cluster.mrctl(&["up", "--detach", "--masters", "3"]);
    await_all(&cluster);
    let three = await_all_of(&cluster, "jobtracker");
    for name in ["namenode", "jobtracker"] {
        assert!(id_of(&three, name) > u64::from(u32::MAX), "it is the first of another group: {three}");
    }
    check_jobs(&cluster, &jobs);
    for at in ["/one", "/three", "/again", "/alone"] {
        get(at);
    }
    cluster.mrctl(&["chaos", "kill", &leader(&cluster)]);
    cluster.mrctl(&["chaos", "kill", &leader_of(&cluster, "jobtracker")]);
    put("/end");
    jobs.push(run_job(&cluster, "/job-end"));
    check_jobs(&cluster, &jobs);
    cluster.mrctl(&["down"]);
}

#[test]
fn backup_of_a_group_is_restored_to_a_group() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, masters: 3, ..Up::default() });
    fs::write(cluster.path("file"), "some bytes").unwrap();
    cluster.mrctl(&["fs", "put", "file", "/file"]);
    let jobs = [run_job(&cluster, "/job")];
    await_all(&cluster);
    cluster.mrctl(&["backup", "monday"]);
    cluster.mrctl(&["fs", "put", "file", "/after"]);
    run_job(&cluster, "/job-after");
    cluster.mrctl(&["down"]);
    let refused = cluster.refused(1, &["restore", "monday"]);
    assert!(refused.contains("is not empty: with --replace"), "{refused}");
    cluster.mrctl(&["restore", "monday", "--replace"]);
    for name in ["namenode", "namenode2", "namenode3", "jobtracker", "jobtracker2", "jobtracker3"] {
        assert!(folder(&cluster, &format!("{name}.replaced-1")).is_dir(), "{name}");
    }
    assert!(!folder(&cluster, "namenode2").exists() && !folder(&cluster, "jobtracker2").exists());
    cluster.mrctl(&["up", "--detach"]);
    await_all(&cluster);
    await_all_of(&cluster, "jobtracker");
    check_jobs(&cluster, &jobs);
    run_job(&cluster, "/job-restored");
    assert_eq!(cluster.mrctl(&["fs", "cat", "/file"]), "some bytes");
    assert!(cluster.refused(1, &["fs", "cat", "/after"]).contains("/after"));
    cluster.mrctl(&["chaos", "kill", &leader(&cluster)]);
    cluster.mrctl(&["fs", "put", "file", "/new"]);
    cluster.mrctl(&["up"]);
    await_all(&cluster);
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

#[test]
fn masters_are_restarted_one_after_the_other_without_a_failed_request() {
    let cluster = Cluster::up(Up { nodes: 2, masters: 3, ..Up::default() });
    await_all(&cluster);
    let before = await_all_of(&cluster, "jobtracker");
    let leaders = [leader(&cluster), leader_of(&cluster, "jobtracker")];
    fs::write(cluster.path("file"), "some bytes").unwrap();
    cluster.mrctl(&["fs", "mkdir", "/load"]);
    let mut restarted = String::new();
    let work = while_clients_work(
        |args| cluster.try_mrctl(args),
        &cluster.path("file"),
        "/load",
        || restarted = cluster.mrctl(&["masters", "restart"]),
    );
    println!("created, read, submitted during a restart of six masters: {work:?}");
    let names: Vec<&str> = restarted.lines().filter_map(|line| line.strip_prefix("restarted ")).collect();
    assert_eq!(names.len(), 6, "{restarted}");
    let after = await_all_of(&cluster, "jobtracker");
    for (daemon, leader) in ["namenode", "jobtracker"].into_iter().zip(&leaders) {
        let epoch = |all: &Value| of_kind(all, daemon)[0]["epoch"].as_u64().unwrap();
        assert!(epoch(&after) > epoch(&before), "{daemon}: {after}");
        // On a busy machine there may be elections besides.
        if epoch(&after) == epoch(&before) + 1 {
            let last = names.iter().rfind(|name| name.starts_with(daemon)).unwrap();
            assert_eq!(last, leader, "the one that leads is the last: {restarted}");
        }
    }
    eventually("all jobs succeed", || {
        let jobs = cluster.json(&["jobs"]);
        let jobs = jobs.as_array()?;
        assert_eq!(jobs.len(), work[2].count);
        jobs.iter().all(|job| job["state"] == "succeeded").then_some(())
    });
    let listed = cluster.mrctl(&["fs", "ls", "/load/created-*"]);
    assert_eq!(listed.matches("/load/created-").count(), work[0].count, "{listed}");

    // With a master that is down, nothing is restarted.
    cluster.mrctl(&["chaos", "kill", "namenode2"]);
    let refused = cluster.refused(1, &["masters", "restart"]);
    assert!(refused.contains("refused the connection"), "{refused}");
    cluster.mrctl(&["up"]);
    cluster.mrctl(&["down"]);
}
