//! Tests of scenario runs that end early. The machines are folders, and a partitioned link is a
//! file.

use super::*;
use client::{model::Tracker, scheduling::Throughput};
use clusters::remote::{Fleet, Reach};
use std::{fs, path::Path};

/// A replacement for `ip` that creates a file for each partitioned link, after a delay.
const FAKE_IP_SCRIPT: &str = "#!/bin/sh\ncase \"$*\" in\n*'route get'*) echo \"x dev eth0 x\";;\n\
    *'neigh replace'*) sleep 1; touch $LINKS/$3;;\n*'neigh show'*) [ ! -e $LINKS/$3 ] || echo 02:00:00:00:00:01;;\n\
    *'neigh del'*) rm $LINKS/$3;;\nesac\n";

fn fleet(space: &Path) -> Fleet {
    let (lab, bin, links) = (space.join("lab"), space.join("bin"), space.join("links"));
    for folder in [&lab, &bin, &links] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(lab.join("fermata.toml"), "").unwrap();
    fs::write(lab.join("hosts"), "m master addr=10.0.0.1\nn node addr=10.0.0.2\n").unwrap();
    fs::write(bin.join("ip"), FAKE_IP_SCRIPT.replace("$LINKS", &links.display().to_string())).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(bin.join("ip"), executable).unwrap();
    let path = std::env::var("PATH").unwrap();
    fs::write(space.join("way"), format!("shift; PATH={}:{path}; exec \"$@\"\n", bin.display())).unwrap();
    let launch = serde_json::json!({ "shell": format!("sh {} {{host}}", space.join("way").display()) });
    fs::write(lab.join("launch.json"), launch.to_string()).unwrap();
    Fleet::of(&Reach::of(&lab)).unwrap()
}

#[test]
fn killed_node_is_named_with_the_command_that_forgets_it() {
    let space = tempfile::tempdir().unwrap();
    let target = Arc::new(ChaosTarget::Machines(fleet(space.path())));
    let tracker = |name: &str, state: &str| Tracker {
        name: name.into(),
        host: name.into(),
        rack: String::new(),
        state: state.into(),
        map_slots: 1,
        reduce_slots: 1,
        maps_running: 0,
        reduces_running: 0,
        last_heartbeat_ms_ago: 0,
        map_rates: Throughput::default(),
        reduce_rates: Throughput::default(),
    };
    let trackers = vec![tracker("n", "lost"), tracker("other", "lost"), tracker("back", "live")];
    let view = ClusterView { trackers: Some(trackers), ..ClusterView::default() };
    let opening =
        InitialCluster { nodes: vec!["n".into()], observer: Observer::new(target.client_target()), view };
    let mut run = ScenarioRun::new(target, "faults.toml".into(), Vec::new(), opening, 1, true);
    assert!(run.lost_node_notes().is_empty(), "no step has killed a node");
    run.removed_nodes = vec![("n".into(), Daemons::Both), ("back".into(), Daemons::Both)];
    let lines = run.lost_node_notes();
    assert!(lines.len() == 1 && lines[0].contains("`mrctl nodes forget n`"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actions_in_progress_at_the_timeout_are_undone() {
    let space = tempfile::tempdir().unwrap();
    let text = "[[step]]\nat = \"0s\"\ndo = \"partition\"\nnode = \"n\"\nfrom = \"master\"\nfor = \"10m\"\n";
    fs::write(space.path().join("faults.toml"), text).unwrap();
    let steps = sim::catalog::read_scenario("", &space.path().join("faults.toml")).unwrap().steps;
    let target = Arc::new(ChaosTarget::Machines(fleet(space.path())));
    let (observer, view) = (Observer::new(target.client_target()), ClusterView::default());
    let opening = InitialCluster { nodes: vec!["n".into()], observer, view };
    let mut run = ScenarioRun::new(target, "faults.toml".into(), steps, opening, 1, true);
    // Each direction of the link takes a second.
    run.run(Duration::from_millis(200)).await.unwrap();
    assert_eq!(fs::read_dir(space.path().join("links")).unwrap().count(), 0, "links are left cut");
    assert!(run.faults_to_undo.is_empty() && run.failed);
    let done = run.fault_log.timeline.iter().map(|entry| entry.what).collect::<Vec<_>>();
    assert!(done.contains(&"undone"), "{done:?}");
}
