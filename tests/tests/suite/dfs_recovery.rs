//! Damage of the edit log. The NameNode reports where the damage is and does not start. With
//! `--recover` it reports what it drops and starts, and new files have the right contents.

use fermata_tests::{Cluster, QUICK, Up, binaries, eventually};
use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Command, Stdio},
};

fn namenode(cluster: &Cluster) -> Command {
    let mut command = Command::new(binaries().join("namenode"));
    command.arg("--config").arg(cluster.path(".fermata/fermata.toml"));
    command.args(["--listen", "127.0.0.1:0"]).stdin(Stdio::null());
    command
}

/// Flips a byte in the middle of the only segment, and returns its name.
fn damage_the_log(cluster: &Cluster) -> String {
    let edits = fs::read_dir(cluster.path(".fermata/data/namenode/edits")).unwrap().flatten();
    let segments: Vec<PathBuf> = edits
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "log"))
        .collect();
    let [segment] = &segments[..] else { panic!("one segment, not {segments:?}") };
    let file = fs::OpenOptions::new().read(true).write(true).open(segment).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], middle).unwrap();
    segment.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn a_damaged_edit_log_is_refused_and_then_recovered() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: QUICK, ..Up::default() });
    let source = cluster.path("source");
    for number in 0..6 {
        fs::write(&source, format!("content {number}")).unwrap();
        cluster.mrctl(&["fs", "put", source.to_str().unwrap(), &format!("/f{number}")]);
    }
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    let segment = damage_the_log(&cluster);

    let refused = namenode(&cluster).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "the NameNode started with a damaged log: {text}");
    for word in [segment.as_str(), "at offset", "--recover"] {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }

    let ready = cluster.path("recovered");
    let log = cluster.path("recover.log");
    let mut recovering = namenode(&cluster)
        .arg("--recover")
        .arg("--ready-file")
        .arg(&ready)
        .stderr(fs::File::create(&log).unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the recovered namenode serves", || ready.exists().then_some(()));
    recovering.kill().unwrap();
    recovering.wait().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    for word in [segment.as_str(), "dropped", "saved_as", "new IDs start above"] {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }

    cluster.mrctl(&["chaos", "restart", "namenode"]);
    let list = cluster.json(&["fs", "ls", "/"]);
    let files =
        list.as_array().unwrap().iter().filter(|entry| entry["path"].as_str().unwrap().starts_with("/f"));
    let left = files.count();
    assert!((1..6).contains(&left), "some files should be lost and some should exist: {list}");
    // New files have the same lengths as lost files: an old replica with a reused block ID would
    // look valid.
    for number in 0..6 {
        fs::write(&source, format!("another {number}")).unwrap();
        let at = format!("/new{number}");
        cluster.mrctl(&["fs", "put", source.to_str().unwrap(), &at]);
        assert_eq!(cluster.mrctl(&["fs", "cat", &at]), format!("another {number}"));
    }
}
