//! `mrctl backup` and `mrctl restore` on a real cluster.

use fermata_tests::{Cluster, QUICK, Up, eventually, skip};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

fn put(cluster: &Cluster, at: &str, content: &str) {
    let local = cluster.path(&at.replace('/', "_"));
    fs::write(&local, content).unwrap();
    cluster.mrctl(&["fs", "put", local.to_str().unwrap(), at]);
}

fn content(at: &str) -> String {
    format!("the bytes of {at}\n").repeat(1000)
}

fn number_of(job: &str) -> u64 {
    job.strip_prefix("job_").unwrap().parse().unwrap()
}

fn replicas(cluster: &Cluster) -> BTreeSet<PathBuf> {
    ["node1", "node2"].iter().flat_map(|node| cluster.replicas_on(node)).collect()
}

/// Returns the states of all jobs, by ID.
fn jobs(cluster: &Cluster) -> Vec<(String, String)> {
    let text = |job: &Value, key: &str| job[key].as_str().unwrap().to_owned();
    let jobs = cluster.json(&["jobs"]);
    jobs.as_array().unwrap().iter().map(|job| (text(job, "job"), text(job, "state"))).collect()
}

/// Writes files and runs jobs until it is dropped or stopped.
struct Load<'a> {
    cluster: &'a Cluster,
    stop: AtomicBool,
    /// Files that were written and jobs that have succeeded.
    files: Mutex<Vec<String>>,
    jobs: Mutex<Vec<String>>,
}

impl Load<'_> {
    fn write_files(&self) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let at = format!("/load/{number}");
            put(self.cluster, &at, &content(&at));
            self.files.lock().unwrap().push(at);
        }
    }

    fn run_jobs(&self) {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let output = format!("/counts/{number}");
            let job = self.cluster.succeed(&["wordcount", "--input", "/old/0", "--output", &output]);
            self.jobs.lock().unwrap().push(job["job"].as_str().unwrap().to_owned());
        }
    }

    /// Returns the files and jobs that were acknowledged so far.
    fn acknowledged(&self) -> (Vec<String>, Vec<String>) {
        (self.files.lock().unwrap().clone(), self.jobs.lock().unwrap().clone())
    }
}

/// Checks that a file that was written after the backup is gone with its replicas, and that the file
/// that was deleted after it is reported.
fn check_newer_file_is_gone(cluster: &Cluster, replicas: &[PathBuf]) {
    assert!(cluster.refused(1, &["fs", "cat", "/after"]).contains("/after"));
    eventually("the blocks of the newer file are deleted", || {
        replicas.iter().all(|replica| !replica.exists()).then_some(())
    });
    let check = cluster.try_mrctl(&["fs", "fsck", "/"]);
    assert!(check.stdout.contains("/deleted"), "{}{}", check.stdout, check.stderr);
    assert!(!check.stdout.contains("future_blocks"), "{}", check.stdout);
}

/// Starts the restored masters, and waits until the DataNodes have registered.
fn start_masters(cluster: &Cluster) {
    // The block of the deleted file is missing, so safemode may not end by itself.
    let up = cluster.try_mrctl(&["up", "--detach"]);
    println!("up: {} {}{}", up.code, up.stdout, up.stderr);
    eventually("both DataNodes have registered", || {
        let report: Value =
            serde_json::from_str(&cluster.try_mrctl(&["fs", "report", "--json"]).stdout).ok()?;
        let nodes = report["nodes"].as_array()?;
        (nodes.len() == 2 && nodes.iter().all(|node| node["state"] == "live")).then_some(())
    });
    cluster.mrctl(&["fs", "safemode", "off"]);
}

/// Makes a backup while files are written and jobs run, loses both masters, and restores it. Checks
/// that everything that was acknowledged before the backup is there, and that what was written after
/// it is gone, and that the rest is undamaged.
#[test]
fn backup_under_load_has_everything_that_was_acknowledged_before_it() {
    let settings = format!("{QUICK}orphan_grace = \"1s\"\n[client]\ndeadline = \"30s\"\n");
    let cluster = Cluster::up(Up { nodes: 2, settings: &settings, ..Up::default() });
    cluster.mrctl(&["fs", "mkdir", "-p", "/old"]);
    for number in 0..5 {
        let at = format!("/old/{number}");
        put(&cluster, &at, &content(&at));
    }
    put(&cluster, "/deleted", "deleted after the backup\n");
    let first_job = cluster.succeed(&["wordcount", "--input", "/old", "--output", "/out"]);
    let first_job = first_job["job"].as_str().unwrap();
    let (first_output, first_history) = (cluster.output("/out"), cluster.mrctl(&["history", first_job]));

    let backup = cluster.path("backup");
    let backup = backup.to_str().unwrap();
    let load = Load {
        cluster: &cluster,
        stop: AtomicBool::new(false),
        files: Mutex::default(),
        jobs: Mutex::default(),
    };
    let (files_before, jobs_before) = thread::scope(|scope| {
        scope.spawn(|| load.write_files());
        scope.spawn(|| load.run_jobs());
        eventually("files are written and a job has succeeded", || {
            let (files, jobs) = load.acknowledged();
            (files.len() >= 5 && !jobs.is_empty()).then_some(())
        });
        let before = load.acknowledged();
        let since = Instant::now();
        let made = cluster.json(&["backup", backup]);
        println!(
            "backup under load: {} s of {} s, {} bytes",
            made["seconds"],
            since.elapsed().as_secs_f64(),
            made["bytes"]
        );
        assert!(made["files"].as_u64().unwrap() >= 3, "{made}");
        let (files, jobs) = load.acknowledged();
        eventually("files are written and jobs run after the backup", || {
            let (files_now, jobs_now) = load.acknowledged();
            (files_now.len() > files.len() && jobs_now.len() > jobs.len() + 1).then_some(())
        });
        load.stop.store(true, Ordering::Relaxed);
        before
    });
    let highest_job = jobs(&cluster).iter().map(|(job, _)| number_of(job)).max().unwrap();
    let before = replicas(&cluster);
    put(&cluster, "/after", "written after the backup\n");
    let after: Vec<PathBuf> = replicas(&cluster).difference(&before).cloned().collect();
    assert_eq!(after.len(), 2);
    let all = replicas(&cluster).len();
    cluster.mrctl(&["fs", "rm", "/deleted"]);
    eventually("the replicas of the deleted file are deleted", || {
        (replicas(&cluster).len() == all - 2).then_some(())
    });

    let checked = cluster.mrctl(&["restore", "--check", backup]);
    assert!(checked.contains("is complete"), "{checked}");
    let refused = cluster.refused(1, &["restore", backup, "--replace"]);
    assert!(
        refused.contains("is in use by jobtracker, pid ") && refused.contains("stop it first"),
        "{refused}"
    );
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    let refused = cluster.refused(1, &["restore", backup]);
    assert!(refused.contains("jobtracker is not empty: with --replace it is renamed"), "{refused}");
    let restored = cluster.json(&["restore", backup, "--replace", "--delete-newer-blocks"]);
    println!("restore: {} s", restored["seconds"]);
    for master in restored["restored"].as_array().unwrap() {
        assert!(Path::new(master["kept"].as_str().unwrap()).join("VERSION").exists(), "{restored}");
    }
    start_masters(&cluster);

    // All that was acknowledged before the backup is there.
    for at in (0..5).map(|number| format!("/old/{number}")).chain(files_before) {
        assert!(cluster.mrctl(&["fs", "cat", &at]) == content(&at), "{at} has other bytes");
    }
    assert_eq!(cluster.output("/out"), first_output);
    assert_eq!(cluster.mrctl(&["history", first_job]), first_history);
    let jobs_now = jobs(&cluster);
    for job in jobs_before.iter().map(String::as_str).chain([first_job]) {
        let state = jobs_now.iter().find(|(id, _)| id == job).map(|(_, state)| state.as_str());
        assert_eq!(state, Some("succeeded"), "{job}");
        assert!(cluster.mrctl(&["history", job]).contains("succeeded"), "{job}");
    }
    for number in 0..jobs_before.len() {
        assert!(!cluster.output(&format!("/counts/{number}")).is_empty());
    }
    let notice = cluster.mrctl(&["fs", "report"]);
    assert!(notice.contains("restored from the backup of "), "{notice}");

    check_newer_file_is_gone(&cluster, &after);
    // The cluster works, and no ID is used twice.
    eventually("the jobs that ran during the backup have ended", || {
        jobs(&cluster).iter().all(|(_, state)| state != "running" && state != "committing").then_some(())
    });
    cluster.mrctl(&["fs", "rm", "/deleted"]);
    put(&cluster, "/new", &content("/new"));
    let job = cluster.succeed(&["wordcount", "--input", "/new", "--output", "/new-counts"]);
    assert!(number_of(job["job"].as_str().unwrap()) > highest_job, "{job}");
    cluster.restart_namenode();
    assert_eq!(cluster.mrctl(&["fs", "cat", "/new"]), content("/new"));
    let check = cluster.mrctl(&["fs", "fsck", "/"]);
    assert!(!check.contains("missing blocks"), "{check}");
    cluster.wait_clean();
}

#[test]
fn incomplete_or_damaged_backup_is_refused_and_changes_nothing() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    put(&cluster, "/text", "a b c\n");
    let job = cluster.succeed(&["wordcount", "--input", "/text", "--output", "/out"]);
    let job = job["job"].as_str().unwrap();
    let backup = cluster.path("backup");
    let at = backup.to_str().unwrap();
    let made = cluster.mrctl(&["backup", at]);
    assert!(made.starts_with("backup complete: 3 files, ") && made.contains(" s, in "), "{made}");
    let refused = cluster.refused(1, &["backup", at]);
    assert!(refused.contains("is not empty: name a new folder"), "{refused}");

    let (jobs, files) = (cluster.path("new/jobs"), cluster.path("new/files"));
    let into = ["--jobtracker-dir", jobs.to_str().unwrap(), "--namenode-dir", files.to_str().unwrap()];
    let refuse = |words: &[&str]| {
        let check = cluster.refused(1, &["restore", "--check", at]);
        let restore = cluster.refused(1, &[&["restore", at], into.as_slice()].concat());
        for word in words {
            assert!(check.contains(word) && restore.contains(word), "{word}: {check}{restore}");
        }
        assert!(!cluster.path("new").exists(), "a refused restore has changed something");
    };
    let history = backup.join(format!("jobtracker/history/{job}.jsonl"));
    let journals = ["jobtracker/journal", "namenode/edits"]
        .map(|folder| fs::read_dir(backup.join(folder)).unwrap().next().unwrap().unwrap().path());
    for file in journals.iter().chain([&history]) {
        let sound = fs::read(file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let mut bytes = sound.clone();
        bytes[sound.len() / 2] ^= 1;
        fs::write(file, bytes).unwrap();
        refuse(&[name, "is damaged", "use another backup"]);
        fs::write(file, &sound[..sound.len() - 1]).unwrap();
        refuse(&[name, "is damaged"]);
        fs::remove_file(file).unwrap();
        refuse(&[name, "is missing"]);
        fs::write(file, sound).unwrap();
    }
    let manifest = backup.join("manifest.json");
    let sound = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, sound.replacen("\"last_record\": ", "\"last_record\": 1", 1)).unwrap();
    refuse(&["manifest.json is damaged (its checksum is wrong)"]);
    fs::write(&manifest, &sound[..sound.len() / 2]).unwrap();
    refuse(&["manifest.json is damaged"]);
    fs::remove_file(&manifest).unwrap();
    refuse(&["is not a complete backup", "manifest.json"]);
    fs::write(&manifest, sound).unwrap();

    // The undamaged backup can be restored to other folders, once.
    let restore = [&["restore", at], into.as_slice()].concat();
    let done = cluster.mrctl(&restore);
    assert!(done.contains("restore complete") && done.contains("mrctl fs fsck /"), "{done}");
    assert!(jobs.join("VERSION").exists() && files.join("VERSION").exists());
    assert_eq!(
        fs::read(jobs.join("history").join(format!("{job}.jsonl"))).unwrap(),
        fs::read(history).unwrap()
    );
    assert!(cluster.refused(1, &restore).contains("jobs is not empty"));
}

/// A disk that is too small for the backup, and then one that is too small for the restore.
#[test]
fn full_disk_is_named_and_leaves_no_backup() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    // The names of many files make the snapshot larger than the disk.
    let folders: Vec<String> = (0..2000).map(|number| format!("/d/{number:0>200}")).collect();
    for some in folders.chunks(500) {
        let mut args = vec!["fs", "mkdir", "-p"];
        args.extend(some.iter().map(String::as_str));
        cluster.mrctl(&args);
    }
    let small = cluster.path("small");
    fs::create_dir(&small).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=128k", "tmpfs"]).arg(&small).output();
    if !mounted.is_ok_and(|ran| ran.status.success()) {
        skip("mount", "no tmpfs can be mounted");
        return;
    }
    let _unmounted = Unmount(&small);
    let on_small = small.join("backup");
    let refused = cluster.refused(1, &["backup", on_small.to_str().unwrap()]);
    for word in ["is not complete: remove it", "No space left on device", "free space on that disk"] {
        assert!(refused.contains(word), "{refused}");
    }
    let refused = cluster.refused(1, &["restore", "--check", on_small.to_str().unwrap()]);
    assert!(refused.contains("is not a complete backup"), "{refused}");
    fs::remove_dir_all(&on_small).unwrap();

    let backup = cluster.path("backup");
    cluster.mrctl(&["backup", backup.to_str().unwrap()]);
    let target = small.join("namenode");
    let args = ["restore", backup.to_str().unwrap(), "--namenode-dir", target.to_str().unwrap()];
    let refused = cluster.refused(1, &args);
    assert!(
        refused.contains("is too full: the backup needs ") && refused.contains("nothing was changed"),
        "{refused}"
    );
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
