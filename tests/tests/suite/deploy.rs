//! Checks of files in `deploy/` that cannot be run everywhere: their syntax, and which keys each
//! role gets.

use fermata_tests::skip;
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

/// Returns the word after each occurrence of `before`, up to a character that is not part of a
/// name.
fn words_after<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let name = |rest: &'a str| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c)));
        &rest[..end.unwrap_or(rest.len())]
    };
    text.match_indices(before).map(|(at, found)| name(&text[at + found.len()..])).collect()
}

/// Checks that every alias has an anchor, and that brackets are balanced.
fn check_yaml(name: &str, text: &str) {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let body = lines.collect::<Vec<_>>().join("\n");
    let anchors: BTreeSet<&str> = words_after(&body, " &").into_iter().collect();
    for alias in words_after(&body, " *").into_iter().chain(words_after(&body, "[*")) {
        assert!(anchors.contains(alias), "{name}: *{alias} has no anchor");
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
fn systemd_unit_is_valid() {
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
    // Before systemd 253, the Landlock calls are in no group of system calls. Without these names
    // tasks would be killed, and systemd would not report it.
    let calls = unit.lines().find_map(|line| line.strip_prefix("SystemCallFilter=")).unwrap();
    for call in ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"] {
        assert!(calls.split(' ').any(|word| word == call), "{call} is not allowed: {calls}");
    }
    assert!(unit.contains("\nSystemCallErrorNumber=EPERM\n"));
    // With this setting a tracker could not create control groups for its tasks.
    assert!(!keys.contains("ProtectControlGroups"));
    let mut verify = Command::new("systemd-analyze");
    let Ok(ran) = verify.arg("verify").arg(file("systemd/fermata@.service")).output() else {
        return skip("systemd-analyze", "the unit was not verified");
    };
    for line in String::from_utf8_lossy(&ran.stderr).lines().filter(|line| line.contains("fermata@")) {
        assert!(line.contains("is not executable"), "{line}");
    }
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operate").join(name)).unwrap()
}

/// Runs the commands of docs/operate/systemd.md with a fake ssh that records what would be sent.
#[test]
fn systemd_machine_gets_only_the_keys_of_its_roles() {
    let page = page("systemd.md");
    assert!(
        !page.contains("mycluster/security /") && !page.contains("cp -r mycluster"),
        "all keys are copied"
    );
    let (_, rest) = page.split_once("    keys() {").unwrap();
    let script = rest.lines().take_while(|line| !line.trim().is_empty()).collect::<Vec<_>>().join("\n");
    let dir = tempfile::tempdir().unwrap();
    let lab = dir.path().join("mycluster");
    for folder in ["security", "ca"] {
        fs::create_dir_all(lab.join(folder)).unwrap();
    }
    let roles = ROLES.iter().flat_map(|role| ["pem", "keys"].map(|kind| format!("security/{role}.{kind}")));
    let rest = ["fermata.toml", "secret", "ca/ca.key", "security/ca.pem", "security/admin.pem"];
    for name in roles.chain(rest.map(str::to_owned)) {
        fs::write(lab.join(name), "x").unwrap();
    }
    let script = format!("set -eu\nssh() {{ tar -tf - > sent.${{1#root@}}; }}\nkeys() {{{script}");
    let ran = Command::new("bash").arg("-c").arg(script).current_dir(dir.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    for (host, roles) in [("node1", &ROLES[..2]), ("node2", &ROLES[2..])] {
        let sent = fs::read_to_string(dir.path().join(format!("sent.{host}"))).unwrap();
        let sent: BTreeSet<&str> = sent.lines().collect();
        let own = roles.iter().flat_map(|role| ["pem", "keys"].map(|kind| format!("security/{role}.{kind}")));
        let wanted: BTreeSet<String> =
            own.chain(["fermata.toml", "security/ca.pem"].map(str::to_owned)).collect();
        assert_eq!(sent, wanted.iter().map(String::as_str).collect(), "{host}");
    }
}

#[test]
fn image_build_context_has_only_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rules = fs::read_to_string(root.join(".dockerignore")).unwrap();
    let rules: Vec<&str> = rules.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rules[0], "*", "only listed files are included");
    let cargo = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let (_, members) = cargo.split_once("members = [").unwrap();
    for member in members.split(']').next().unwrap().split('"').skip(1).step_by(2) {
        let folder = member.split('/').next().unwrap();
        let rule = format!("!{folder}");
        assert!(rules.contains(&rule.as_str()), "{member} is missing from the image");
    }
    for needed in ["!Cargo.toml", "!Cargo.lock", "!docs/research/write-a-scheduler.md"] {
        assert!(rules.contains(&needed), "{needed}");
    }
    assert!(!rules.iter().any(|rule| rule.starts_with("!target")), "{rules:?}");
}

/// The folder of a cluster that the pages use must not get into a commit, an image, or a crate.
#[test]
fn cluster_folder_is_ignored_by_git_and_is_no_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = page("machines.md");
    let (_, rest) = page.split_once("mrctl cluster init ").unwrap();
    let folder = rest.split_whitespace().next().unwrap();
    assert!(!root.join(folder).join("Cargo.toml").exists(), "{folder} is a crate");
    let ignored = fs::read_to_string(root.join(".gitignore")).unwrap();
    for rule in [format!("/{folder}/"), format!("/*-{folder}/")] {
        assert!(ignored.lines().any(|line| line == rule), "{rule}: {ignored}");
    }
    assert!(!fs::read_to_string(root.join(".dockerignore")).unwrap().contains(folder));
    assert!(text("container/compose.yaml").contains(&format!("${{FERMATA_LAB:-../../{folder}}}/security")));
}

/// Checks that an invalid experiment is refused before anything is started or created.
#[test]
fn invalid_experiment_is_refused_before_any_change() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = dir.path().join("nodes");
    fs::write(&nodes, "a\nb\n").unwrap();
    let refused = |experiment: &str, nodes: &Path, words: &str| {
        let mut command = Command::new(file("grid5000/fermata.oar"));
        command.arg(experiment).env("OAR_NODE_FILE", nodes).env("OAR_JOB_ID", "7");
        // The programs do not exist, so a run that is not refused fails differently.
        let ran = command.env("PROGRAMS", "/nonexistent").current_dir(dir.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && printed.contains(words), "{printed}");
        assert!(!dir.path().join("results-7").exists() || words.contains("already"), "{printed}");
    };
    refused("/nonexistent", &nodes, "is not a program");
    refused("/bin/true", &dir.path().join("none"), "node file");
    refused("/bin/true", &nodes, "cargo build --release");
}

#[test]
fn container_gets_only_the_keys_of_its_role() {
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
        for secret in words_after(line, "source: ") {
            assert!(declared.contains(secret), "{service}: {secret} is not declared");
            let role = service.trim_end_matches(|c: char| c.is_ascii_digit());
            let own = if role == "mrctl" { "admin-" } else { role };
            assert!(secret == "ca" || secret.starts_with(own), "{service} gets {secret}");
            seen.insert(secret);
        }
    }
    assert_eq!(seen, declared);
    // Processes that escape from tasks become children of the tracker, which kills them, only if
    // the tracker is not process 1.
    let (daemon, _) = all.split_once("\nx-settings:").unwrap();
    assert!(daemon.contains("\n  init: true\n"), "{daemon}");
    // The account of the processes is chosen at start, and a new volume has the mode of the folder
    // in the image, so all accounts must be able to write there.
    let image = text("container/Containerfile");
    assert!(daemon.contains("\n  user: \"${FERMATA_UID:-10001}:") && all.contains(":/data\"]"), "{daemon}");
    assert!(
        image.contains("install -d -m 1777 -o fermata -g fermata /data\n"),
        "/data is not writable for all"
    );
    assert!(image.contains("\nVOLUME /data\n") && image.contains("\nUSER 10001:10001\n"), "{image}");
    // The folder with the key of the authority is not mounted.
    assert!(!all.contains("mycluster}:/") && !all.contains("/ca:"), "the whole folder is mounted");
}

#[test]
fn pod_gets_only_the_keys_of_its_role() {
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
        // 288 is 0440, the mode that Kubernetes gives to files of a pod with fsGroup.
        assert!(body.contains(&format!("secretName: fermata-{role}, defaultMode: 288")));
    }
}

#[test]
fn scripts_have_valid_bash_syntax() {
    for name in [
        "grid5000/fermata.oar",
        "grid5000/example-experiment",
        "grid5000/test/oar",
        "grid5000/test/launch",
        "container/test/docker",
        "container/test/cluster",
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
