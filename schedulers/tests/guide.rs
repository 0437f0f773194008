//! Compares the excerpts of `docs/research/write-a-scheduler.md` with the code that they are from.

use std::{fs, path::Path};

/// Returns the lines of a text without indentation.
fn lines(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

#[test]
fn excerpts_of_the_guide_are_in_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let guide = read("docs/research/write-a-scheduler.md");
    let excerpts: Vec<&str> = guide.split("```text\n// schedulers/").skip(1).collect();
    assert_eq!(excerpts.len(), 3, "excerpts of a policy");
    for excerpt in excerpts {
        let (file, rest) = excerpt.split_once('\n').unwrap();
        let (excerpt, _) = rest.split_once("\n```").unwrap();
        let code = read(&format!("schedulers/{file}"));
        assert!(lines(&code).contains(&lines(excerpt)), "{file} does not have\n{excerpt}");
    }
}
