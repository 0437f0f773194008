//! The disk of the JobTracker fills up. Checks that no job is accepted, no history is written, and
//! running jobs continue. With almost no space left, no attempt is started.

use daemon::config::JobTrackerConfig;
use fermata_tests::{Cluster, QUICK, Up, eventually, is_root, skip};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A tmpfs that is a little larger than the default of `jobtracker.disk_reserve`. It uses memory
/// only for its contents. Unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts the tmpfs over a folder, and copies the contents of the folder. Prints a message and
    /// returns `None` if that is not possible.
    fn mount_over(folder: &Path) -> Option<Self> {
        let before = folder.with_extension("before");
        fs::rename(folder, &before).unwrap();
        fs::create_dir(folder).unwrap();
        let size = format!("size={},mode=700", Self::size());
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder).output();
        if !mounted.is_ok_and(|ran| ran.status.success()) {
            skip("mount", "no tmpfs can be mounted");
            fs::remove_dir(folder).unwrap();
            fs::rename(&before, folder).unwrap();
            return None;
        }
        let small = Self(folder.to_path_buf());
        let copied = Command::new("cp").arg("-a").arg(before.join(".")).arg(folder).status().unwrap();
        assert!(copied.success());
        Some(small)
    }

    fn size() -> u64 {
        JobTrackerConfig::default().disk_reserve.0 + (64 << 20)
    }

    /// Resizes the tmpfs so that this many bytes are free.
    fn leave_free(&self, bytes: u64) {
        let ran = Command::new("df").args(["-B1", "--output=used"]).arg(&self.0).output().unwrap();
        let used: u64 =
            String::from_utf8(ran.stdout).unwrap().lines().last().unwrap().trim().parse().unwrap();
        self.resize(used + bytes);
    }

    /// Restores the original size.
    fn restore_size(&self) {
        self.resize(Self::size());
    }

    fn resize(&self, bytes: u64) {
        let size = format!("remount,size={bytes}");
        assert!(Command::new("mount").args(["-o", &size]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn jobtracker_with_a_full_disk_refuses_jobs_and_finishes_active_ones() {
    if !is_root() {
        return skip("root", "only root may mount a small file system");
    }
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("text"), "word\n".repeat(20_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    let folder = cluster.path(".fermata/data/jobtracker");
    let small = SmallDisk::mount_over(&folder);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    let Some(small) = small else { return };

    let slow = ["wordcount", "--conf", "pace.map=20KiB", "--input", "/text", "--output", "/slow"];
    let running = cluster.detach(&slow);
    eventually("the job runs", || (cluster.json(&["job", &running])["maps"]["running"] != 0).then_some(()));
    small.leave_free(JobTrackerConfig::default().disk_reserve.0 / 2);
    let job = ["submit", "wordcount", "--input", "/text", "--output", "/out"];
    let refused = cluster.refused(1, &job);
    assert!(refused.contains("jobtracker.disk_reserve"), "{refused}");
    let nodes = cluster.try_mrctl(&["nodes"]);
    assert!(nodes.code == 0 && nodes.stderr.contains("disk_reserve"), "{}", nodes.stderr);
    eventually("the running job has succeeded", || {
        (cluster.json(&["job", &running])["state"] == "succeeded").then_some(())
    });
    small.restore_size();
    cluster.mrctl(&job);
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    drop(small);
}

/// Regression: attempts were launched and failed until the journal could not be written, and the
/// JobTracker ended.
#[test]
fn jobtracker_with_an_almost_full_disk_starts_no_attempt_and_stays_up() {
    if !is_root() {
        return skip("root", "only root may mount a small file system");
    }
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("text"), "word\n".repeat(20_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    let folder = cluster.path(".fermata/data/jobtracker");
    let small = SmallDisk::mount_over(&folder);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    let Some(small) = small else { return };
    let process = cluster.processes_named("jobtracker");

    let mapper = "sh -c 'cat > /dev/null; head -c 20000 /dev/zero | tr \"\\0\" x >&2; sleep 1; exit 3'";
    let failing = ["streaming", "--mapper", mapper, "--reduces", "0", "--conf", "attempts.max=100"];
    let bad = cluster.detach(&[&failing[..], &["--input", "/text", "--output", "/bad"]].concat());
    let attempts = || cluster.json(&["tasks", &bad])[0]["attempts"].as_array().map_or(0, Vec::len);
    eventually("an attempt has failed", || (attempts() > 1).then_some(()));
    // The disk is almost full before the map of this job ends, which takes twenty seconds.
    let slow = ["wordcount", "--conf", "pace.map=5KiB", "--input", "/text", "--output", "/slow"];
    let good = cluster.detach(&slow);
    eventually("its map runs", || (cluster.json(&["job", &good])["maps"]["running"] == 1).then_some(()));
    // Leaves enough space to record the end of running attempts.
    small.leave_free(64 << 10);

    let mut idle = 0;
    eventually("slots stay free although tasks wait", || {
        assert_eq!(cluster.processes_named("jobtracker"), process, "the JobTracker was restarted");
        let running = |job: &str| {
            let job = cluster.json(&["job", job]);
            job["maps"]["running"] != 0 || job["reduces"]["running"] != 0
        };
        idle = if running(&bad) || running(&good) { 0 } else { idle + 1 };
        (idle >= 10).then_some(())
    });
    assert_eq!(
        cluster.json(&["job", &good])["state"],
        "running",
        "the job has ended although its reduce may not start"
    );
    let nodes = cluster.try_mrctl(&["nodes"]);
    assert!(nodes.code == 0 && nodes.stderr.contains("no attempt is started"), "{}", nodes.stderr);
    let log = fs::read_to_string(cluster.path(".fermata/logs/jobtracker.log")).unwrap();
    assert!(log.contains("no attempt is started"), "{log}");

    let before = attempts();
    small.restore_size();
    eventually("attempts are started again", || (attempts() > before).then_some(()));
    cluster.mrctl(&["kill", &bad]);
    eventually("the other job has succeeded", || {
        (cluster.json(&["job", &good])["state"] == "succeeded").then_some(())
    });
    let refused = cluster.refused(
        2,
        &["submit", "wordcount", "--input", "/text", "--no-output", "--conf", "attempts.max=101"],
    );
    assert!(refused.contains("attempts.max") && refused.contains("from 1 to 100"), "{refused}");
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    drop(small);
}

#[test]
fn killed_job_with_many_maps_has_a_short_history() {
    let settings = format!("{QUICK}[jobtracker]\nmaps_max = 1000000\n");
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    fs::write(cluster.path("text"), format!("{:63}\n", "w").repeat(50_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let many = ["wordcount", "--conf", "split.size=64", "--input", "/text", "--output", "/out"];
    let job = cluster.detach(&many);
    assert!(cluster.json(&["job", &job])["maps"]["total"].as_u64().unwrap() >= 50_000);
    cluster.mrctl(&["kill", &job]);
    let history = cluster.path(&format!(".fermata/data/jobtracker/history/{job}.jsonl"));
    let length = eventually("the history of the job exists", || fs::metadata(&history).ok()).len();
    assert!(length < 1 << 20, "{length} bytes");
}
