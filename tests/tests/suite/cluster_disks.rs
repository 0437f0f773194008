//! Data folders of a cluster on several machines: where they are, and what happens if a disk is
//! lost or not mounted. Skipped with a message if network namespaces cannot be created.

use fermata_tests::{Machines, eventually};
use std::{fs, path::Path, process::Command};

/// A mounted disk, until dropped.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    fn mount(at: &'a Path) -> Self {
        fs::create_dir_all(at).unwrap();
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", "size=512m,mode=711", "tmpfs"]).arg(at).status().unwrap();
        assert!(done.success(), "cannot mount {}", at.display());
        Self(at)
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn blocks_in(folder: &Path) -> usize {
    let shards = fs::read_dir(folder.join("current")).into_iter().flatten().flatten();
    shards.map(|shard| fs::read_dir(shard.path()).unwrap().count()).sum()
}

fn log(machines: &Machines, node: &str, daemon: &str) -> String {
    fs::read_to_string(machines.path(node).join(format!("logs/{daemon}.log"))).unwrap_or_default()
}

/// Regression: when a disk was not mounted at a restart, daemons wrote to the root file system.
#[test]
fn configured_disks_are_used_and_unmounted_ones_are_skipped() {
    let Some(machines) = Machines::prepare("fq", 24, &["r1", "r1"], 2) else { return };
    let root = machines.path("disks");
    let dirs = format!("[\"{0}/{{host}}/a/dn\", \"{0}/{{host}}/b/dn\"]", root.display());
    machines.set("datanode", &format!("dirs = {dirs}\nreserve = \"1MiB\""));
    let tasks = dirs.replace("/dn", "/tasks");
    machines.set("tasktracker", &format!("dirs = {tasks}\nreserve = \"1MiB\""));
    let [a, b] = ["a", "b"].map(|disk| root.join("fq2").join(disk));
    let (first, second) = (Disk::mount(&a), Disk::mount(&b));
    for disk in ["a", "b"] {
        fs::create_dir_all(root.join("fq3").join(disk)).unwrap();
    }
    // The account of tasks must be able to reach its folders.
    Command::new("chmod").args(["-R", "a+X"]).arg(&root).status().unwrap();
    machines.up();
    let file = machines.path("file");
    fermata_tests::random_file(&file, 2 << 20, 1);
    for at in 0..4 {
        let to = format!("/file{at}");
        machines.mrctl(&["fs", "put", "--quiet", file.to_str().unwrap(), &to]);
    }
    for disk in [&a, &b] {
        assert!(blocks_in(&disk.join("dn")) > 0, "{} is not used", disk.display());
        assert!(disk.join("tasks/jobs").is_dir(), "{} is not used by the tracker", disk.display());
    }
    assert!(!machines.path("fq2/data/datanode").exists());

    // If one disk is not mounted, the node works without it and does not write to the mount point.
    machines.cluster(&["down"]);
    drop(second);
    machines.cluster(&["up"]);
    assert_eq!(fs::read_dir(&b).unwrap().count(), 0, "something was written below the mount point");
    for daemon in ["datanode", "tasktracker"] {
        let log = log(&machines, "fq2", daemon);
        assert!(log.contains("was in use at the last start and is empty now: mount its disk"), "{log}");
    }
    machines.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);

    // If no disk is mounted, no daemon is started there.
    machines.cluster(&["down"]);
    drop(first);
    let refused = machines.try_mrctl(&["cluster", "up", "--cluster", "mycluster"]);
    assert_eq!(refused.code, 1);
    for text in ["fq2: ", "datanode is not started", "had data and now has none", "--format fq2"] {
        assert!(refused.stderr.contains(text), "{}", refused.stderr);
    }
    assert_eq!(fs::read_dir(&a).unwrap().count(), 0, "something was written below the mount point");

    // New disks are formatted if the operator confirms it with `--format`.
    let (_first, _second) = (Disk::mount(&a), Disk::mount(&b));
    machines.cluster(&["up", "--format", "fq2"]);
    eventually("all blocks have their replicas on the new disks", || {
        (blocks_in(&a.join("dn")) + blocks_in(&b.join("dn")) > 0).then_some(())
    });
    machines.mrctl(&["fs", "fsck", "/", "--wait", "5m"]);
    machines.cluster(&["down", "--purge"]);
    assert!(!a.join("dn").exists() && !b.join("tasks").exists(), "data is left after --purge");
}

/// Regression: a master whose disk was lost started empty.
#[test]
fn lost_master_disk_is_not_formatted_implicitly() {
    let Some(machines) = Machines::make("fv", 25, &["r1"]) else { return };
    machines.mrctl(&["fs", "mkdir", "/precious"]);
    machines.cluster(&["down"]);
    let data = machines.path("fv1/data");
    let kept = machines.path("kept");
    for daemon in ["namenode", "jobtracker"] {
        let folder = data.join(daemon);
        fs::rename(&folder, &kept).unwrap();
        let refused = machines.try_mrctl(&["cluster", "up", "--cluster", "mycluster"]);
        assert_eq!(refused.code, 1, "{}", refused.stdout);
        for text in [daemon, "had data and now has none", "restore the folder from a backup", "--format fv1"]
        {
            assert!(refused.stderr.contains(text), "{}", refused.stderr);
        }
        assert!(!folder.exists(), "the folder was created again");
        machines.cluster(&["down"]);
        fs::rename(&kept, &folder).unwrap();
    }
    machines.cluster(&["up"]);
    assert!(machines.mrctl(&["fs", "ls", "/"]).contains("precious"));

    // With `--format` the master starts empty. The blocks on the nodes belong to another cluster
    // and are kept.
    machines.cluster(&["down"]);
    fs::rename(data.join("namenode"), &kept).unwrap();
    let ran = machines.try_mrctl(&["cluster", "up", "--format", "fv1", "--cluster", "mycluster"]);
    assert!(data.join("namenode/VERSION").exists(), "{}{}", ran.stdout, ran.stderr);
    assert!(
        ran.code == 1 && ran.stderr.contains("cluster"),
        "the DataNode should refuse another cluster: {}",
        ran.stderr
    );
    machines.cluster(&["down"]);
    fs::remove_dir_all(data.join("namenode")).unwrap();
    fs::rename(&kept, data.join("namenode")).unwrap();
    machines.cluster(&["up"]);
    assert!(machines.mrctl(&["fs", "ls", "/"]).contains("precious"));
}
