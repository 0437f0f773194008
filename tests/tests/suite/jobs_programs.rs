//! Programs of users. They are uploaded, fetched by the trackers, started with their side files,
//! and removed from the file system afterwards.

use fermata_tests::{Cluster, Up, binaries};
use std::fs;

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
    cluster.wait_clean();
}
