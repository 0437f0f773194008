//! A machine that is this one, with programs that are scripts: what runs is left alone by what comes later.

use super::*;
use std::{fs, path::Path};

/// Writes its ready file, and stays for a while.
const DAEMON: &str = "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" != --ready-file ] || echo here > $2; shift; done\n\
                      i=0; while [ $i -lt 600 ]; do i=$((i+1)); sleep 0.1; done\n";

fn build(folder: &Path, version: &str) -> Programs {
    fs::create_dir_all(folder).unwrap();
    for name in ["namenode", "jobtracker", "datanode", "tasktracker"] {
        fs::write(folder.join(name), DAEMON).unwrap();
    }
    fs::write(folder.join("mrtask"), format!("# {version}\n")).unwrap();
    Programs::of(folder)
}

/// Ended whatever becomes of the test.
struct Node(Machine);

impl Drop for Node {
    fn drop(&mut self) {
        for daemon in self.0.host.part.daemons() {
            self.0.stop(daemon).ok();
        }
    }
}

#[test]
fn programs_that_come_take_the_place_of_none_that_run() {
    let space = tempfile::tempdir().unwrap();
    let at = |name: &str| space.path().join(name);
    fs::create_dir(at("lab")).unwrap();
    fs::write(at("lab/fermata.toml"), "").unwrap();
    fs::write(at("lab/revoked"), "name ann\n").unwrap();
    let package = Package::of(&at("lab")).unwrap();
    let [first, second] = ["one", "the second"].map(|version| build(&at(version), version));
    // Where this file is, archives do not arrive.
    let broken = at("broken");
    let way = "shift; if [ \"$1\" = tar ] && [ -e $BROKEN ]; then exit 1; fi; exec \"$@\"\n";
    fs::write(at("way"), way.replace("$BROKEN", &broken.display().to_string())).unwrap();
    let shell: Shell = format!("sh {} {{host}}", at("way").display()).parse().unwrap();
    let host = Host { name: "n1".into(), part: Part::Node, rack: "r1".into(), addr: "n1".into() };
    let dir = at("n1").display().to_string();
    let bin = format!("{dir}/bin");
    let node = Node(Machine { host, shell, cluster: "lab-1".into(), dir, bin, ports: [1, 2] });
    let machine = &node.0;
    let daemons = machine.host.part.daemons();
    let mrtask = || fs::read_to_string(at("n1/bin/mrtask")).unwrap_or_else(|error| error.to_string());
    assert_eq!(machine.install(Some(&first), &package).unwrap(), "programs and settings copied");
    assert!(machine.start(&daemons).unwrap().iter().all(|one| one.state == "running" && !one.outdated));
    assert_eq!(mrtask(), "# one\n");
    // A copy that breaks off leaves all as it was; so does one that arrives, for as long as something runs.
    fs::write(&broken, "").unwrap();
    assert!(machine.install(Some(&second), &package).is_err());
    assert_eq!(mrtask(), "# one\n");
    assert_eq!(fs::read_to_string(at("n1/revoked")).unwrap(), "name ann\n");
    fs::remove_file(&broken).unwrap();
    assert_eq!(machine.install(Some(&second), &package).unwrap(), "programs and settings copied");
    assert_eq!(machine.install(Some(&second), &package).unwrap(), "programs and settings are there");
    machine.stop("datanode").unwrap();
    assert!(machine.start(&daemons).unwrap().iter().all(|one| one.state == "running" && one.outdated));
    assert_eq!(mrtask(), "# one\n");
    // Who goes back before they were used, goes back.
    machine.install(Some(&first), &package).unwrap();
    assert!(machine.look().unwrap().iter().all(|one| !one.outdated));
    machine.install(Some(&second), &package).unwrap();
    for daemon in daemons {
        machine.stop(daemon).unwrap();
    }
    assert!(machine.start(&daemons).unwrap().iter().all(|one| one.state == "running" && !one.outdated));
    assert_eq!(mrtask(), "# the second\n");
    let left: Vec<_> =
        ["bin.new", "bin.old", "incoming"].into_iter().filter(|name| at("n1").join(name).exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}
