//! Tests with a local folder as the machine and scripts as programs: later installations do not
//! affect running daemons.

use super::*;
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

/// A daemon that writes its ready file and then waits.
const FAKE_DAEMON_SCRIPT: &str = "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" != --ready-file ] || echo here > $2; shift; done\n\
                      i=0; while [ $i -lt 600 ]; do i=$((i+1)); sleep 0.1; done\n";

fn build(folder: &Path, version: &str) -> Programs {
    fs::create_dir_all(folder).unwrap();
    for name in ["namenode", "jobtracker", "datanode", "tasktracker"] {
        fs::write(folder.join(name), FAKE_DAEMON_SCRIPT).unwrap();
    }
    fs::write(folder.join("mrtask"), format!("# {version}\n")).unwrap();
    Programs::of(folder)
}

/// A machine whose daemons are stopped at the end of the test.
struct Node(Machine);

impl Drop for Node {
    fn drop(&mut self) {
        for daemon in self.0.host.role.daemons() {
            self.0.stop(daemon).ok();
        }
    }
}

fn machine(dir: &Path, shell: Shell) -> Machine {
    let host = Host { name: "n1".into(), role: MachineRole::Node, rack: "r1".into(), addr: "n1".into() };
    let dir = dir.display().to_string();
    let bin = format!("{dir}/bin");
    let data = DataDirs::of(&daemon::config::Config::default()).unwrap().on_machine(&dir, "n1");
    Machine {
        host,
        shell,
        cluster: "lab-1".into(),
        dir,
        bin,
        ports: [1, 2],
        data,
        formatted: vec![],
        format: false,
        members: vec![],
    }
}

#[test]
fn only_confirmed_empty_data_folders_are_declared_new() {
    let space = tempfile::tempdir().unwrap();
    let at = |name: &str| space.path().join(name);
    fs::create_dir(at("lab")).unwrap();
    fs::write(at("lab/fermata.toml"), "").unwrap();
    let mut node = Node(machine(&at("n1"), "env HOST={host}".parse().unwrap()));
    let mut config = daemon::config::Config::default();
    config.datanode.dirs = vec![at("disk1"), at("disk2")];
    node.0.data = DataDirs::of(&config).unwrap().on_machine(&node.0.dir, "n1");
    node.0.install(Some(&build(&at("build"), "one")), &Package::of(&at("lab")).unwrap()).unwrap();
    let declared_new = || ["disk1", "disk2"].map(|disk| at(disk).join("NEW").exists());
    let start = |machine: &Machine| {
        let started = machine.start(&["datanode"]);
        machine.stop("datanode").unwrap();
        started.map_err(|error| format!("{error:#}"))
    };

    // The first start of a machine whose DataNode may have had data under an earlier build.
    start(&node.0).unwrap();
    assert_eq!(declared_new(), [false, false]);
    // One of two disks is not mounted.
    node.0.format = true;
    fs::create_dir_all(at("disk1")).unwrap();
    fs::write(at("disk1/VERSION"), "cluster_id = \"c\"\n").unwrap();
    start(&node.0).unwrap();
    assert_eq!(declared_new(), [false, false]);
    assert_eq!(node.0.daemons_with_data().unwrap(), ["datanode"]);
    // Both disks are empty: the DataNode is not started until this is confirmed.
    fs::remove_file(at("disk1/VERSION")).unwrap();
    assert!(node.0.daemons_with_data().unwrap().is_empty());
    (node.0.format, node.0.formatted) = (false, vec!["datanode"]);
    let error = start(&node.0).unwrap_err();
    assert!(error.contains("had data and now has none"), "{error}");
    assert_eq!(declared_new(), [false, false]);
    node.0.format = true;
    start(&node.0).unwrap();
    assert_eq!(declared_new(), [true, true]);
    // The NameNode has refused the DataNode, which had created its folders before.
    for disk in ["disk1", "disk2"] {
        fs::write(at(disk).join("VERSION"), "cluster_id = \"\"\n").unwrap();
        fs::remove_file(at(disk).join("NEW")).unwrap();
    }
    assert!(node.0.daemons_with_data().unwrap().is_empty());
    start(&node.0).unwrap();
    assert_eq!(declared_new(), [true, true]);
}

/// Installs, as root, an archive whose files belong to another user. User IDs on the machine of
/// that user may mean other accounts here. Checks that the installed files belong to root.
#[test]
fn files_on_a_root_machine_belong_to_root() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip("root", "only root's tar gives files away");
    }
    const ANN: u32 = 54321;
    let space = tempfile::tempdir().unwrap();
    let at = |name: &str| space.path().join(name);
    let programs = build(&at("build"), "one");
    fs::create_dir(at("lab")).unwrap();
    for name in ["fermata.toml", "secret"] {
        fs::write(at("lab").join(name), "").unwrap();
        fs::set_permissions(at("lab").join(name), Permissions::from_mode(0o666)).unwrap();
    }
    for folder in ["build", "lab"] {
        for file in fs::read_dir(at(folder)).unwrap() {
            chown(file.unwrap().path(), Some(ANN), Some(ANN)).unwrap();
        }
    }
    let package = Package::of(&at("lab")).unwrap();
    let node = machine(&at("n1"), "env HOST={host}".parse().unwrap());
    let install = || node.install(Some(&programs), &package);
    assert_eq!(install().unwrap(), "programs and settings copied");
    for name in ["bin.new/tasktracker", "bin.new/mrtask", "fermata.toml", "secret"] {
        let about = fs::metadata(at("n1").join(name)).unwrap();
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o022), (0, 0, 0), "{name}");
    }
    // Programs that an earlier release left to another account may have been changed, whatever the
    // stamp says.
    chown(at("n1/bin.new/mrtask"), Some(ANN), None).unwrap();
    assert_eq!(install().unwrap(), "programs and settings copied");
    assert_eq!(install().unwrap(), "programs and settings are up to date");
    // A `tar` that ignores the flags and keeps the owner.
    let way = "shift; if [ \"$1\" = tar ]; then shift 3; exec tar --same-owner \"$@\"; fi; exec \"$@\"\n";
    fs::write(at("way"), way).unwrap();
    let shell = format!("sh {} {{host}}", at("way").display()).parse().unwrap();
    let error = machine(&at("n2"), shell).install(None, &package).unwrap_err().to_string();
    assert!(error.contains("n2/incoming belongs to another account"), "{error}");
    assert!(!at("n2/fermata.toml").exists());
}

#[test]
fn folders_without_permissions_are_purged() {
    let space = tempfile::tempdir().unwrap();
    let dir = space.path().join("n1");
    // Permissions do not restrict root: use another account then.
    let root = rustix::process::geteuid().is_root();
    let way = if root { "setpriv --reuid=65534 env HOST={host}" } else { "env HOST={host}" };
    let shell: Shell = way.parse().unwrap();
    if shell.script("n1", "true").is_err() {
        return skip::skip("setpriv", "there is no setpriv here");
    }
    if root {
        chown(space.path(), Some(65534), None).unwrap();
    }
    let node = machine(&dir, shell);
    let left = format!(
        "mkdir -p {0} && echo lab-1 > {0}/CLUSTER && cd {0} && mkdir -p data/tasks/x/y",
        dir.display()
    );
    node.shell.script("n1", &format!("{left} && chmod 0 data/tasks/x && chmod 555 data/tasks")).unwrap();
    node.purge().unwrap();
    assert!(!dir.exists());
}

#[test]
fn installing_programs_does_not_replace_running_programs() {
    let space = tempfile::tempdir().unwrap();
    let at = |name: &str| space.path().join(name);
    fs::create_dir(at("lab")).unwrap();
    fs::write(at("lab/fermata.toml"), "").unwrap();
    fs::write(at("lab/revoked"), "name ann\n").unwrap();
    let package = Package::of(&at("lab")).unwrap();
    let [first, second] = ["one", "the second"].map(|version| build(&at(version), version));
    // While this file exists, copies to the machine fail.
    let broken = at("broken");
    let way = "shift; if [ \"$1\" = tar ] && [ -e $BROKEN ]; then exit 1; fi; exec \"$@\"\n";
    fs::write(at("way"), way.replace("$BROKEN", &broken.display().to_string())).unwrap();
    let shell: Shell = format!("sh {} {{host}}", at("way").display()).parse().unwrap();
    let node = Node(machine(&at("n1"), shell));
    let machine = &node.0;
    let daemons = machine.host.role.daemons();
    let mrtask = || fs::read_to_string(at("n1/bin/mrtask")).unwrap_or_else(|error| error.to_string());
    assert_eq!(machine.install(Some(&first), &package).unwrap(), "programs and settings copied");
    assert!(machine.start(&daemons).unwrap().iter().all(|one| one.state == "running" && !one.outdated));
    assert_eq!(mrtask(), "# one\n");
    // A failed copy changes nothing. A successful copy changes nothing while a daemon runs.
    fs::write(&broken, "").unwrap();
    assert!(machine.install(Some(&second), &package).is_err());
    assert_eq!(mrtask(), "# one\n");
    assert_eq!(fs::read_to_string(at("n1/revoked")).unwrap(), "name ann\n");
    fs::remove_file(&broken).unwrap();
    assert_eq!(machine.install(Some(&second), &package).unwrap(), "programs and settings copied");
    assert_eq!(machine.install(Some(&second), &package).unwrap(), "programs and settings are up to date");
    machine.stop("datanode").unwrap();
    assert!(machine.start(&daemons).unwrap().iter().all(|one| one.state == "running" && one.outdated));
    assert_eq!(mrtask(), "# one\n");
    // If the old programs are installed again before the new programs were used, nothing is
    // outdated.
    machine.install(Some(&first), &package).unwrap();
    assert!(machine.daemon_statuses().unwrap().iter().all(|one| !one.outdated));
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
