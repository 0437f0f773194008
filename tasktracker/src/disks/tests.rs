//! What lies where, and what is left alone.

use super::*;
use crate::index::tests::write;

fn attempt(text: &str) -> Attempt {
    text.parse().unwrap()
}

fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn an_attempt_comes_and_goes_and_leaves_its_logs() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    let (disks, _) = Disks::open(&dirs, 0).unwrap();
    let id = attempt("job_1.m0.0");
    let warm = disks.make_warm(1, 7).unwrap();
    for name in ["stdout", "stderr", "scrap"] {
        fs::write(warm.join(name), name).unwrap();
    }
    let work = disks.make_work(1, id, Some(&warm)).unwrap();
    assert_eq!(work.scratch.len(), 2);
    assert!(work.own.starts_with(disks.root(1)) && work.own.join("scrap").exists());
    assert!(disks.log(id, "stderr").unwrap().starts_with(&work.own));
    fs::write(&work.output, "half").unwrap();
    disks.end_work(&work, false);
    let left = ["LOCK", "logs/job_1.m0.0/stderr", "logs/job_1.m0.0/stdout"];
    assert_eq!(files(&dirs[1]), left);
    assert_eq!(files(&dirs[0]), ["LOCK"]);
    assert_eq!(fs::read(disks.log(id, "stdout").unwrap()).unwrap(), b"stdout");
    disks.clean(Job(1));
    assert!(!dirs[0].join("jobs/job_1").exists() && !dirs[1].join("jobs/job_1").exists());
    assert_eq!(disks.logs(), [id]);
    disks.remove_log(id);
    assert_eq!(files(&dirs[1]), ["LOCK"]);
}

#[test]
fn a_new_start_keeps_outputs_and_strangers_and_removes_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    let good = attempt("job_1.m0.0");
    {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        disks.keep_token(Job(1), b"secret").unwrap();
        disks.make_warm(0, 3).unwrap();
        let work = disks.make_work(1, good, None).unwrap();
        write(&work.output, &[b"one", b"two"]);
        let torn = disks.make_work(1, attempt("job_1.m1.0"), None).unwrap();
        fs::write(&torn.output, "half").unwrap();
        // Without a token nobody can fetch it.
        let tokenless = disks.make_work(0, attempt("job_2.m0.0"), None).unwrap();
        write(&tokenless.output, &[b"one"]);
        fs::create_dir_all(dirs[0].join("jobs/job_1/files")).unwrap();
        fs::write(dirs[0].join("jobs/notes.txt"), "mine").unwrap();
        fs::write(dirs[1].join("jobs/job_1/output/notes.txt"), "mine").unwrap();
    }
    for _ in 0..2 {
        let (_, found) = Disks::open(&dirs, 0).unwrap();
        assert_eq!(found.outputs.keys().copied().collect::<Vec<_>>(), [good]);
        assert_eq!(found.tokens[&Job(1)], b"secret");
    }
    assert_eq!(files(&dirs[0]), ["LOCK", "jobs/job_1/token", "jobs/notes.txt"]);
    let output = "jobs/job_1/output/job_1.m0.0.out";
    let kept = ["LOCK", output, &format!("{output}.index"), "jobs/job_1/output/notes.txt"];
    assert_eq!(files(&dirs[1]), kept);
    assert!(!dirs[0].join("jobs/job_2").exists());
}

#[test]
fn two_trackers_do_not_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_owned()];
    let _first = Disks::open(&dirs, 0).unwrap();
    let error = Disks::open(&dirs, 0).unwrap_err().to_string();
    assert!(error.contains("in use by tasktracker"), "{error}");
}

#[test]
fn attempts_are_spread_and_full_disks_left_alone() {
    /// Folder `a` has little room, `b` and `c` plenty, `e` none that anyone can tell.
    fn room(path: &Path) -> io::Result<u64> {
        match path.file_name().and_then(|name| name.to_str()) {
            Some("a") => Ok(1 << 20),
            Some("e") => Err(io::Error::other("ill")),
            _ => Ok(100 << 30),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let dirs = [at("a"), at("b"), at("c"), at("e")];
    let (disks, _) = Disks::open_with(&dirs, 64 << 20, room).unwrap();
    let mut counts = [0; 4];
    for index in 0..10 {
        let disk = disks.choose().unwrap();
        disks.make_work(disk, attempt(&format!("job_1.m{index}.0")), None).unwrap();
        counts[disk] += 1;
    }
    assert_eq!(counts, [0, 5, 5, 0]);
    disks.shun(1);
    assert_eq!(disks.choose().unwrap(), 2);
    // Rather one that failed lately than none.
    disks.shun(2);
    assert_eq!(disks.choose().unwrap(), 1);
    drop(disks);
    let (disks, _) = Disks::open_with(&[at("a")], 64 << 20, room).unwrap();
    let error = disks.choose().unwrap_err().to_string();
    assert!(error.starts_with("no space on ") && error.ends_with("/a"), "{error}");
}
