//! What lies in `deploy/` and cannot be run everywhere: read as far as a mistake would show, and who gets whose keys.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const ROLES: [&str; 4] = ["namenode", "jobtracker", "datanode", "tasktracker"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

fn text(name: &str) -> String {
    let text = fs::read_to_string(file(name)).unwrap();
    assert!(!text.contains('\t'), "{name}: a tab");
    text
}

/// Words after `before`, up to what cannot be in a name.
fn named<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let name = |rest: &'a str| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c)));
        &rest[..end.unwrap_or(rest.len())]
    };
    text.match_indices(before).map(|(at, found)| name(&text[at + found.len()..])).collect()
}

/// Every alias has its anchor before it, and every bracket its other half.
fn check_yaml(name: &str, text: &str) {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let body = lines.collect::<Vec<_>>().join("\n");
    let anchors: BTreeSet<&str> = named(&body, " &").into_iter().collect();
    for alias in named(&body, " *").into_iter().chain(named(&body, "[*")) {
        assert!(anchors.contains(alias), "{name}: *{alias} stands for nothing");
    }
    for (open, close) in [('[', ']'), ('{', '}')] {
        let count = |c: char| body.matches(c).count();
        assert_eq!(count(open), count(close), "{name}: {open}");
    }
    for line in body.lines() {
        let indent = line.len() - line.trim_start().len();
        assert!(indent.is_multiple_of(2), "{name}: {line}");
    }
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let unit = text("systemd/fermata@.service");
    let mut keys = BTreeSet::new();
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if !line.starts_with('[') {
            let (key, _) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
            assert!(key.chars().all(|c| c.is_ascii_alphabetic()), "{line}");
            keys.insert(key);
        }
    }
    for key in ["ExecStart", "User", "Delegate", "NoNewPrivileges", "ProtectSystem", "UMask"] {
        assert!(keys.contains(key), "no {key}");
    }
    // A tracker could make no groups for its tasks.
    assert!(!keys.contains("ProtectControlGroups"));
    let mut verify = Command::new("systemd-analyze");
    let Ok(ran) = verify.arg("verify").arg(file("systemd/fermata@.service")).output() else {
        return eprintln!("there is no systemd-analyze here: the unit was not shown to it");
    };
    for line in String::from_utf8_lossy(&ran.stderr).lines().filter(|line| line.contains("fermata@")) {
        assert!(line.contains("is not executable"), "{line}");
    }
}

#[test]
fn a_container_gets_the_keys_of_its_role_alone() {
    let all = text("container/compose.yaml");
    check_yaml("compose.yaml", &all);
    let (services, declared) = all.split_once("\nsecrets:\n").unwrap();
    let declared: BTreeSet<&str> =
        declared.lines().filter_map(|line| line.trim_start().split_once(':')).map(|(name, _)| name).collect();
    let (_, services) = services.split_once("\nservices:\n").unwrap();
    let mut service = "";
    let mut seen = BTreeSet::new();
    for line in services.lines() {
        if line.starts_with("  ") && !line.starts_with("   ") && !line.trim_start().starts_with('#') {
            service = line.trim_start().split(':').next().unwrap();
        }
        for secret in named(line, "source: ") {
            assert!(declared.contains(secret), "{service}: {secret} is not declared");
            let role = service.trim_end_matches(|c: char| c.is_ascii_digit());
            let own = if role == "mrctl" { "admin-" } else { role };
            assert!(secret == "ca" || secret.starts_with(own), "{service} gets {secret}");
            seen.insert(secret);
        }
    }
    assert_eq!(seen, declared);
    // The folder as a whole, with the authority's key, goes nowhere.
    assert!(!all.contains("lab}:/") && !all.contains("/ca:"), "all of lab is mounted");
}

#[test]
fn a_pod_gets_the_keys_of_its_role_alone() {
    let all = text("kubernetes/fermata.yaml");
    check_yaml("fermata.yaml", &all);
    check_yaml("mrctl.yaml", &text("kubernetes/mrctl.yaml"));
    let body = all.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    assert!(!body.contains("admin"));
    for role in ROLES {
        let (_, container) = body.split_once(&format!("        - name: {role}\n")).unwrap();
        let container = container.split("        - name: ").next().unwrap();
        assert!(container.contains(&format!("args: [{role}, ")), "{container}");
        let mounted = "mountPath: /etc/fermata";
        assert!(container.contains(&format!("{{ name: {role}, {mounted}")), "{container}");
        assert_eq!(container.matches(mounted).count(), 1);
        // What a kubelet makes of any mode with fsGroup.
        assert!(body.contains(&format!("secretName: fermata-{role}, defaultMode: 288")));
    }
}

#[test]
fn scripts_are_ones_that_bash_reads() {
    for name in [
        "grid5000/fermata.oar",
        "grid5000/example-experiment",
        "netns/net",
        "netns/common",
        "netns/demo",
        "netns/soak",
        "netns/chronos",
    ] {
        let ran = Command::new("bash").arg("-n").arg(file(name)).output().unwrap();
        assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}
