//! Programs of users. They are uploaded, fetched by the trackers, started with their side files,
//! and removed from the file system afterwards.

use fermata_tests::{Cluster, Up, binaries};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    process::Command,
};

fn test_job() -> String {
    binaries().join("test-job").display().to_string()
}

fn lines(count: u32) -> Vec<String> {
    (0..count).map(|at| format!("line {:08x}", at.wrapping_mul(0x9e37_79b9))).collect()
}

#[test]
fn executable_sorts_in_total_order_with_its_side_file() {
    let cluster = Cluster::up(Up { block_size: "64KiB", ..Up::default() });
    let mut text = lines(20_000);
    fs::write(cluster.path("lines"), text.join("\n")).unwrap();
    fs::write(cluster.path("prefix.txt"), "seen:").unwrap();
    cluster.mrctl(&["fs", "put", "lines", "/lines"]);
    let program = test_job();
    let common = ["--input", "/lines", "--file", "prefix.txt", "--reduces", "4"];
    let job = cluster.succeed(&[&[program.as_str(), "--output", "/out"], &common[..]].concat());
    assert!(job["maps"]["total"].as_u64().unwrap() > 3, "{job}");
    assert_eq!(job["name"], "test-job");
    text.sort();
    let wanted = format!("seen: {}\n", text.join("\nseen: "));
    assert!(
        String::from_utf8(cluster.output("/out")).unwrap() == wanted,
        "not sorted, or without its side file"
    );
    // The ranges come from samples, so that parts have about the same size.
    let parts = cluster.json(&["fs", "ls", "/out/part-*"]);
    let sizes: Vec<u64> =
        parts.as_array().unwrap().iter().map(|part| part["length"].as_u64().unwrap()).collect();
    assert!(sizes.len() == 4 && sizes.iter().all(|size| *size > wanted.len() as u64 / 8), "{sizes:?}");
    cluster.wait_clean();

    // Nothing is left either if the job is refused after the upload, during the upload, or while
    // sampling.
    let again = cluster.refused(1, &[&["submit", &program, "--output", "/out"], &common[..]].concat());
    assert!(again.contains("/out already exists"), "{again}");
    let missing = [
        "submit",
        &program,
        "--output",
        "/o",
        "--input",
        "/lines",
        "--file",
        "prefix.txt",
        "--file",
        "nowhere",
    ];
    assert!(cluster.refused(2, &missing).contains("nowhere"));
    let unread = ["submit", &program, "--output", "/o", "--input", "/nowhere", "--reduces", "3"];
    assert!(cluster.refused(1, &unread).contains("/nowhere"));
    assert_eq!(cluster.leftovers(), [""; 0]);

    // If clients could choose the staging folder, any folder would be deleted with the job.
    let theft = ["submit", "wordcount", "--input", "/lines", "--output", "/o", "--conf", "staging=/lines"];
    assert!(cluster.refused(2, &theft).contains("staging"));
    assert_eq!(cluster.json(&["fs", "ls", "/lines"]).as_array().unwrap().len(), 1);
}

/// Runs an example of the client and returns what it prints.
fn run_example(cluster: &Cluster, name: &str, args: &[&str]) -> String {
    let mut command = Command::new(binaries().join("examples").join(name));
    command.arg(".fermata/fermata.toml").args(args).current_dir(cluster.path(""));
    let ran = command.output().expect("the example is built");
    assert!(ran.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn examples_of_the_client_submit_builtin_programs_and_executables() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("lines"), "b\na\nb\n").unwrap();
    cluster.mrctl(&["fs", "put", "lines", "/lines"]);
    assert_eq!(run_example(&cluster, "submit", &["/lines", "/counts"]), "a\t1\nb\t2\n");

    run_example(&cluster, "program", &["teragen", "/gen", "0", "rows=1000", "maps=3"]);
    run_example(&cluster, "program", &["terasort", "/sorted", "3", "/gen"]);
    let generated = cluster.output("/gen");
    let mut records: Vec<&[u8]> = generated.chunks(100).collect();
    assert_eq!(records.len(), 1000);
    records.sort_unstable();
    assert!(records.concat() == cluster.output("/sorted"), "the output is not what a plain sort gives");

    let job = run_example(&cluster, "program", &[&test_job(), "/out", "2", "/lines", "misbehaviour="]);
    assert_eq!(String::from_utf8(cluster.output("/out")).unwrap(), "none a\nnone b\nnone b\n");
    let history = cluster.mrctl(&["history", job.trim()]);
    assert!(!history.contains(r#""divisible":false"#), "test-job declares that it is divisible: {history}");
    cluster.wait_clean();
}

#[test]
fn non_executable_program_is_reported() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    fs::write(cluster.path("f"), "now\n").unwrap();
    cluster.mrctl(&["fs", "put", "f", "/f"]);
    fs::write(cluster.path("text"), "no program\n").unwrap();
    let refused = |program: &str| cluster.refused(2, &["submit", program, "--input", "/f", "--output", "/o"]);
    assert!(refused("./text").contains("./text is not executable"));
    assert!(refused("./nowhere").contains("there is no program \"./nowhere\""));
    assert!(refused("/bin/true").contains("/bin/true"));
    // For a program that works here but not on the tracker, the error of the tracker is reported.
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let job = cluster.submit(&[
        "streaming",
        "--mapper",
        "./text",
        "--file",
        "text",
        "--input",
        "/f",
        "--output",
        "/o",
    ]);
    assert_eq!(job["state"], "failed", "{job}");
    let why = job["why"].as_str().unwrap();
    assert!(why.contains("./text") && why.contains("not found") || why.contains("format error"), "{why}");
    let job = cluster.submit(&["streaming", "--mapper", "nosuchprogram", "--input", "/f", "--output", "/o"]);
    let why = job["why"].as_str().unwrap();
    assert!(why.contains("nosuchprogram") && why.contains("No such file"), "{why}");
    fs::write(cluster.path("script"), "#!/nowhere/python3\n").unwrap();
    fs::set_permissions(cluster.path("script"), Permissions::from_mode(0o755)).unwrap();
    let script = ["streaming", "--mapper", "./script", "--file", "script", "--input", "/f", "--output", "/o"];
    // The note about preemption is not printed after the reason of the failure.
    let log = fs::File::create(cluster.path("log")).unwrap();
    let mut submit = cluster.command(&[&["submit"], &script[..]].concat());
    let ended = submit.stdout(log.try_clone().unwrap()).stderr(log).status().unwrap();
    let text = fs::read_to_string(cluster.path("log")).unwrap();
    let lines = |wanted: &str| text.lines().position(|line| line.contains(wanted));
    assert!(!ended.success() && lines("never split") < lines(" failed after "), "{text}");
    assert_eq!(text.matches("never split").count(), 1, "{text}");
    let job = cluster.submit(&script);
    let why = job["why"].as_str().unwrap();
    assert!(why.contains("the first line of ./script names the interpreter /nowhere/python3"), "{why}");
    cluster.wait_clean();
}
