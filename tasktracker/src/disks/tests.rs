//! Tests of the layout of the folders, and of files that must be kept.

use super::{free_space::free, *};
use engine::{
    checkpoint,
    segment::{Extent, Index},
};
use std::{fs::OpenOptions, io::Write};

/// Writes a map output with these partitions, and its index.
pub(crate) fn write(output: &Path, partitions: &[&[u8]]) {
    let mut index = Index::default();
    let mut offset = 0;
    for part in partitions {
        let (stored, raw, crc) = (part.len() as u64, part.len() as u64 * 2, crc32c::crc32c(part));
        index.extents.push(Extent { offset, stored, raw, records: 3, block_max: raw, crc });
        offset += stored;
    }
    fs::write(output, partitions.concat()).unwrap();
    index.write(output).unwrap();
}

fn place(disks: &Disks, disk: usize) -> ProcessFolders {
    let (folder, process_logs) = (disks.make_folder(disk).unwrap(), disks.make_process_logs(disk).unwrap());
    process_logs.files(None).unwrap();
    ProcessFolders { disk, folder, process_logs }
}

fn work(disks: &Disks, disk: usize, id: &str) -> AttemptFolders {
    disks.make_attempt_folders(attempt(id), &place(disks, disk)).unwrap()
}

pub(crate) fn attempt(text: &str) -> AttemptId {
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
fn attempt_folders_are_removed_and_logs_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    let (disks, _) = Disks::open(&dirs, 0).unwrap();
    let id = attempt("job_1.m0.0");
    let place = place(&disks, 1);
    fs::write(place.folder.join("scrap"), "scrap").unwrap();
    fs::write(place.process_logs.path().join("stdout"), "stdout").unwrap();
    let work = disks.make_attempt_folders(id, &place).unwrap();
    drop(place);
    assert_eq!(work.scratch.len(), 2);
    assert!(work.own.starts_with(disks.root(1)) && work.own.join("scrap").exists());
    assert!(disks.log(id, "stderr").unwrap().starts_with(&work.logs));
    assert_eq!(work.outputs.len(), 2);
    for output in &work.outputs {
        fs::write(output, "half").unwrap();
    }
    disks.remove_attempt_folders(&work, None, 4);
    let left = ["LOCK", "VOLUMES", "logs/job_1.m0.0/stderr", "logs/job_1.m0.0/stdout"];
    assert_eq!(files(&dirs[1]), left);
    assert_eq!(files(&dirs[0]), ["LOCK", "VOLUMES"]);
    assert_eq!(fs::read(disks.log(id, "stdout").unwrap()).unwrap(), b"stdo");
    assert!(disks.clean(JobId(1)));
    assert!(!dirs[0].join("jobs/job_1").exists() && !dirs[1].join("jobs/job_1").exists());
    assert_eq!(disks.logs(), [id]);
    disks.remove_log(id);
    assert_eq!(files(&dirs[1]), ["LOCK", "VOLUMES"]);
}

#[test]
fn restart_keeps_outputs_and_unknown_files_and_removes_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    let good = attempt("job_1.m0.0");
    {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        disks.keep_token(JobId(1), b"secret").unwrap();
        std::mem::forget(place(&disks, 0));
        let done = work(&disks, 1, "job_1.m0.0");
        write(&done.outputs[0], &[b"one", b"two"]);
        let torn = work(&disks, 1, "job_1.m1.0");
        fs::write(&torn.outputs[0], "half").unwrap();
        // Without a token it cannot be fetched.
        let tokenless = work(&disks, 0, "job_2.m0.0");
        write(&tokenless.outputs[0], &[b"one"]);
        // The first checkpoint is complete, the second belongs to another attempt, the third is
        // incomplete.
        let state = checkpoint::ReduceState::default();
        for (paused, owner) in [("job_1.r0.0", "job_1.r0.0"), ("job_1.r2.0", "job_1.r9.0")] {
            checkpoint::save(&work(&disks, 1, paused).checkpoint_dirs, owner, 0, &state).unwrap();
        }
        fs::create_dir_all(dirs[0].join("jobs/job_1/checkpoints/job_1.r1.0")).unwrap();
        fs::create_dir_all(dirs[0].join("jobs/job_1/files")).unwrap();
        fs::write(dirs[0].join("jobs/notes.txt"), "mine").unwrap();
        fs::write(
            dirs[0].join("jobs/job_1/checkpoints/job_1.r7.0"),
            "a file of the user with the name of an attempt",
        )
        .unwrap();
        fs::write(dirs[1].join("jobs/job_1/output/notes.txt"), "mine").unwrap();
    }
    for _ in 0..2 {
        let (_, found) = Disks::open(&dirs, 0).unwrap();
        assert_eq!(found.outputs.keys().copied().collect::<Vec<_>>(), [good]);
        let paused = attempt("job_1.r0.0");
        assert_eq!(found.checkpoints.keys().copied().collect::<Vec<_>>(), [paused]);
        assert_eq!(checkpoint::read(&found.checkpoints[&paused]).unwrap().attempt, "job_1.r0.0");
        assert_eq!(found.tokens[&JobId(1)], b"secret");
        assert_eq!(found.jobs.iter().copied().collect::<Vec<_>>(), [JobId(1)]);
    }
    // Logs are kept until there are too many.
    let kept = |dir: &Path| {
        let mut left = files(dir);
        left.retain(|path| !path.starts_with("logs/"));
        left
    };
    let stray = "jobs/job_1/checkpoints/job_1.r7.0";
    assert_eq!(kept(&dirs[0]), ["LOCK", "VOLUMES", stray, "jobs/job_1/token", "jobs/notes.txt"]);
    let output = "jobs/job_1/output/job_1.m0.0/out";
    let index = format!("{output}.index");
    let state = "jobs/job_1/checkpoints/job_1.r0.0/state";
    assert_eq!(kept(&dirs[1]), ["LOCK", "VOLUMES", state, output, &index, "jobs/job_1/output/notes.txt"]);
    let (disks, _) = Disks::open(&dirs, 0).unwrap();
    disks.delete_checkpoint(attempt("job_1.r0.0"));
    assert_eq!(kept(&dirs[1]), ["LOCK", "VOLUMES", output, &index, "jobs/job_1/output/notes.txt"]);
    assert!(!dirs[0].join("jobs/job_2").exists());
}

/// A temporary read error does not mean that the files are damaged.
#[test]
fn unreadable_files_are_neither_served_nor_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_path_buf()];
    let (output, state) = {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        disks.keep_token(JobId(1), b"secret").unwrap();
        let output = work(&disks, 0, "job_1.m0.0").outputs[0].clone();
        write(&output, &[b"one"]);
        let checkpoint_dirs = work(&disks, 0, "job_1.r0.0").checkpoint_dirs;
        checkpoint::save(&checkpoint_dirs, "job_1.r0.0", 0, &checkpoint::ReduceState::default()).unwrap();
        (output, checkpoint_dirs[0].join("state"))
    };
    // Causes read errors, also for root.
    for path in [&output.with_extension("index"), &state] {
        fs::rename(path, path.with_extension("kept")).unwrap();
        fs::create_dir(path).unwrap();
    }
    let (_, found) = Disks::open(&dirs, 0).unwrap();
    assert!(found.outputs.is_empty() && found.checkpoints.is_empty(), "{found:?}");
    for path in [&output.with_extension("index"), &state] {
        fs::remove_dir(path).unwrap();
        fs::rename(path.with_extension("kept"), path).unwrap();
    }
    let (_, found) = Disks::open(&dirs, 0).unwrap();
    assert_eq!((found.outputs.len(), found.checkpoints.len()), (1, 1), "{found:?}");
}

/// A new copy may be of the same attempt: it is not deleted together with the dropped one.
#[test]
fn checkpoint_may_be_recreated_while_the_old_one_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_owned()];
    let (disks, _) = Disks::open(&dirs, 0).unwrap();
    disks.keep_token(JobId(1), b"secret").unwrap();
    let (id, state) = (attempt("job_1.r0.0"), checkpoint::ReduceState::default());
    let checkpoint_dirs = work(&disks, 0, "job_1.r0.0").checkpoint_dirs;
    let keep = || checkpoint::save(&checkpoint_dirs, "job_1.r0.0", 0, &state).unwrap();
    keep();
    let dropped = disks.rename_for_deletion(id);
    keep();
    let dropped_again = disks.rename_for_deletion(id);
    assert!(dropped.len() == 1 && dropped_again.len() == 1 && dropped != dropped_again);
    keep();
    for path in &dropped {
        remove_tree(path).unwrap();
    }
    assert!(
        checkpoint::read(&checkpoint_dirs).is_ok()
            && disks.rename_for_deletion(attempt("job_1.r7.0")).is_empty()
    );
    drop(disks);
    // Folders that were not deleted are removed at the next start.
    assert_eq!(files(&dirs[0]).iter().filter(|file| file.contains(DROPPED)).count(), 1);
    let (_disks, found) = Disks::open(&dirs, 0).unwrap();
    assert_eq!(found.checkpoints.keys().copied().collect::<Vec<_>>(), [id]);
    assert_eq!(found.states[&id].stage, "shuffle");
    assert!(!files(&dirs[0]).iter().any(|file| file.contains(DROPPED)));
}

/// Runs `act` as an ordinary account, in a folder that was prepared for it.
fn as_nobody(prepare: impl FnOnce(&Path), act: impl FnOnce(&Path) + Send) {
    const NOBODY: u32 = 65534;
    let dir = tempfile::tempdir().unwrap();
    let root = rustix::process::geteuid().is_root();
    prepare(dir.path());
    std::thread::scope(|scope| {
        let dir = dir.path();
        scope.spawn(move || {
            if root {
                std::os::unix::fs::chown(dir, Some(NOBODY), None).unwrap();
                // Affects only this thread.
                let nobody = rustix::process::Uid::from_raw(NOBODY);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            act(dir);
        });
    });
}

/// As left by programs that unpack archives with folders of mode 0555.
#[test]
fn unreadable_task_folder_does_not_block_a_start() {
    as_nobody(
        |_| (),
        |dir| {
            let dirs = [dir.to_owned()];
            let close = |folder: &Path| {
                for (name, mode) in [("closed", 0), ("fixed", 0o555)] {
                    let path = folder.join(name);
                    fs::create_dir_all(path.join("deeper")).unwrap();
                    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
                }
            };
            {
                let (disks, _) = Disks::open(&dirs, 0).unwrap();
                disks.keep_token(JobId(1), b"secret").unwrap();
                let (map, reduce) = (work(&disks, 0, "job_1.m0.0"), work(&disks, 0, "job_1.r0.0"));
                for folder in [&map.own, &reduce.checkpoint_dirs[0], map.outputs[0].parent().unwrap()] {
                    close(folder);
                }
                // The folders of an ended attempt are removed at once.
                let ended = work(&disks, 0, "job_1.m1.0");
                close(&ended.own);
                disks.remove_attempt_folders(&ended, None, 0);
                assert!(!ended.own.exists());
            }
            let (disks, found) = Disks::open(&dirs, 0).unwrap();
            assert!(found.jobs.is_empty(), "{found:?}");
            close(&work(&disks, 0, "job_2.m0.0").own);
            assert!(disks.clean(JobId(2)));
        },
    );
}

#[test]
fn files_that_cannot_be_removed_keep_their_job_registered() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip("root", "only root can create files that another account cannot remove");
    }
    let prepare = |dir: &Path| {
        for left in ["jobs/job_1/work/job_1.m0.0/root's/file", "warm/7/root's/file"] {
            fs::create_dir_all(dir.join(left)).unwrap();
        }
        for own in ["jobs", "warm", "jobs/job_1", "jobs/job_1/work", "jobs/job_1/work/job_1.m0.0", "warm/7"] {
            std::os::unix::fs::chown(dir.join(own), Some(65534), None).unwrap();
        }
    };
    as_nobody(prepare, |dir| {
        let (disks, found) = Disks::open(&[dir.to_owned()], 0).unwrap();
        assert_eq!(found.jobs.iter().copied().collect::<Vec<_>>(), [JobId(1)]);
        assert!(!disks.clean(JobId(1)));
        assert!(place(&disks, 0).folder.ends_with("warm/8"));
    });
}

#[test]
fn a_start_goes_without_a_folder_that_cannot_be_used_if_another_can() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    let (disks, _) = Disks::open(&dirs, 0).unwrap();
    assert_eq!(disks.next_incarnation(1000).unwrap(), 1000);
    drop(disks);
    // Fails for root too, as on a disk that has become read-only.
    for (at, broken) in dirs.iter().enumerate() {
        fs::remove_file(broken.join("LOCK")).unwrap();
        fs::create_dir(broken.join("LOCK")).unwrap();
        match Disks::open(&dirs, 0) {
            Ok((disks, _)) if at == 0 => {
                assert_eq!((disks.count(), disks.choose().unwrap()), (1, 0));
                // The number does not start over if the first folder is missing or unreadable.
                assert_eq!(disks.next_incarnation(500).unwrap(), 1001);
                work(&disks, 0, "job_1.m0.0");
            }
            other => {
                let error = other.unwrap_err().to_string();
                assert!(error.starts_with("cannot use folder ") && error.contains("/a: "), "{error}");
                assert!(!error.contains('\n') && at == 1, "{error}");
            }
        }
    }
    // A folder that another process has locked is not skipped.
    fs::remove_dir(dirs[1].join("LOCK")).unwrap();
    let (_held, _) = Disks::open(&dirs[1..], 0).unwrap();
    let error = Disks::open(&dirs, 0).unwrap_err().to_string();
    assert!(error.contains("in use by tasktracker"), "{error}");
}

/// A token that cannot be read is not treated as missing.
#[test]
fn a_job_whose_token_cannot_be_read_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_owned()];
    let output = {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        fs::create_dir_all(dir.path().join("jobs/job_1/token")).unwrap();
        let output = work(&disks, 0, "job_1.m0.0").outputs[0].clone();
        write(&output, &[b"one"]);
        output
    };
    let (_, found) = Disks::open(&dirs, 0).unwrap();
    assert!(found.outputs.is_empty() && found.jobs.contains(&JobId(1)) && output.exists(), "{found:?}");
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
fn attempts_are_distributed_and_full_disks_are_not_used() {
    /// Folder `a` has little space, `b` and `c` have much, and `e` cannot be measured.
    fn free_space(path: &Path) -> io::Result<u64> {
        match path.file_name().and_then(|name| name.to_str()) {
            Some("a") => Ok(1 << 20),
            Some("e") => Err(io::Error::other("cannot be measured")),
            _ => Ok(100 << 30),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let dirs = [at("a"), at("b"), at("c"), at("e")];
    let (disks, _) = Disks::open_with(&dirs, 64 << 20, free_space).unwrap();
    let mut counts = [0; 4];
    for index in 0..10 {
        let disk = disks.choose().unwrap();
        work(&disks, disk, &format!("job_1.m{index}.0"));
        counts[disk] += 1;
    }
    assert_eq!(counts, [0, 5, 5, 0]);
    disks.avoid(1);
    assert_eq!(disks.choose().unwrap(), 2);
    // A folder that failed recently is better than none.
    disks.avoid(2);
    assert_eq!(disks.choose().unwrap(), 1);
    drop(disks);
    let (disks, _) = Disks::open_with(&[at("a")], 64 << 20, free_space).unwrap();
    let error = disks.choose().unwrap_err().to_string();
    assert!(error.starts_with("no space on ") && error.ends_with("/a"), "{error}");
}

#[test]
fn choosing_a_folder_never_waits_for_a_disk() {
    static HANGS: AtomicU64 = AtomicU64::new(0);
    fn free_space(_: &Path) -> io::Result<u64> {
        std::thread::sleep(Duration::from_secs(10 * HANGS.load(Ordering::Relaxed)));
        free(Path::new("/"))
    }
    let dir = tempfile::tempdir().unwrap();
    let (disks, _) = Disks::open_with(&[dir.path().to_owned()], 0, free_space).unwrap();
    HANGS.store(1, Ordering::Relaxed);
    let began = Instant::now();
    assert!(disks.usable(0) && disks.choose().is_ok());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn token_is_stored_on_a_disk_with_space() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        let done = work(&disks, 1, "job_1.m0.0");
        write(&done.outputs[0], &[b"one"]);
        fs::remove_dir_all(dirs[0].join("jobs")).unwrap();
        fs::write(dirs[0].join("jobs"), "blocks the creation of a folder").unwrap();
        disks.keep_token(JobId(1), b"secret").unwrap();
        fs::remove_file(dirs[0].join("jobs")).unwrap();
    }
    let (_, found) = Disks::open(&dirs, 0).unwrap();
    assert_eq!(found.tokens[&JobId(1)], b"secret");
    assert_eq!(found.outputs.len(), 1);
}

#[test]
fn start_number_increases_although_the_clock_was_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a")];
    let number = |now| Disks::open(&dirs, 0).unwrap().0.next_incarnation(now).unwrap();
    assert_eq!(number(1000), 1000);
    assert_eq!(number(2000), 2000);
    // The clock is set back by an hour, twice.
    assert_eq!(number(500), 2001);
    assert_eq!(number(500), 2002);
    assert_eq!(number(3000), 3000);
    assert_eq!(files(&dirs[0]), ["LOCK", "VOLUMES", "incarnation"]);
}

#[test]
fn only_a_full_disk_of_the_attempt_is_reported() {
    /// Folder `b` is full, `c` cannot be measured.
    fn free_space(path: &Path) -> io::Result<u64> {
        match path.file_name().and_then(|name| name.to_str()) {
            Some("b") => Ok(0),
            Some("c") => Err(io::Error::other("cannot be measured")),
            _ => Ok(100 << 30),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (disks, _) = Disks::open_with(&[at("a"), at("b"), at("c")], 1 << 20, free_space).unwrap();
    // It has no folder on `b`, which was full already.
    let on_a = work(&disks, 0, "job_1.m0.0");
    assert_eq!(on_a.scratch.len(), 1);
    assert_eq!(disks.full(&on_a), None);
    let on_b = work(&disks, 1, "job_1.m1.0");
    assert_eq!(disks.full(&on_b), Some(1));
    let root = fs::canonicalize(at("b")).unwrap();
    assert_eq!(disks.folder_named_in(&format!("write {}/jobs/x: full", root.display())), Some(1));
    assert_eq!(disks.folder_named_in("no space on /elsewhere/data"), None);
}

#[test]
fn reused_process_leaves_its_logs_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (disks, _) = Disks::open(&[dir.path().join("a")], 0).unwrap();
    let place = place(&disks, 0);
    // As the process has it.
    let mut out = OpenOptions::new().append(true).open(place.process_logs.path().join("stdout")).unwrap();
    let first = disks.make_attempt_folders(attempt("job_1.m0.0"), &place).unwrap();
    out.write_all(b"first").unwrap();
    let process_logs = disks.detach_logs(&first).unwrap();
    disks.remove_attempt_folders(&first, None, 0);
    let next = disks.make_process_folders_with(process_logs).unwrap();
    let second = disks.make_attempt_folders(attempt("job_1.m1.0"), &next).unwrap();
    out.write_all(b"second").unwrap();
    let process_logs = |id| fs::read_to_string(disks.log(attempt(id), "stdout").unwrap()).unwrap();
    assert_eq!((process_logs("job_1.m0.0"), process_logs("job_1.m1.0")), ("first".into(), "second".into()));
    drop(disks.detach_logs(&second).unwrap());
    assert_eq!(fs::read_dir(dir.path().join("a/process-logs")).unwrap().count(), 0);
}
