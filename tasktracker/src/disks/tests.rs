//! Tests the contents of the folders, which files a restart keeps, and which disk is chosen.

use super::{free_space::measure_free_bytes, *};
use engine::{
    checkpoint,
    segment::{Extent, Index},
};
use std::{fs::OpenOptions, io::Write};

/// Writes a map output with these partitions, and its index.
pub(crate) fn write_output(output: &Path, partitions: &[&[u8]]) {
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

/// Creates the folders of an idle process, with log files.
fn make_process_folders(disks: &Disks, disk: usize) -> ProcessFolders {
    let (folder, process_logs) =
        (disks.make_working_folder(disk).unwrap(), disks.make_process_logs(disk).unwrap());
    process_logs.create_files(None).unwrap();
    ProcessFolders { disk, folder, process_logs }
}

fn make_attempt_folders(disks: &Disks, disk: usize, id: &str) -> AttemptFolders {
    disks.make_attempt_folders(attempt(id), &make_process_folders(disks, disk)).unwrap()
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
    let process_folders = make_process_folders(&disks, 1);
    fs::write(process_folders.folder.join("scrap"), "scrap").unwrap();
    fs::write(process_folders.process_logs.path().join("stdout"), "stdout").unwrap();
    let work = disks.make_attempt_folders(id, &process_folders).unwrap();
    drop(process_folders);
    assert_eq!(work.scratch.len(), 2);
    assert!(work.working.starts_with(disks.root(1)) && work.working.join("scrap").exists());
    assert!(disks.log_path(id, "stderr").unwrap().starts_with(&work.logs));
    assert_eq!(work.outputs.len(), 2);
    for output in &work.outputs {
        fs::write(output, "half").unwrap();
    }
    disks.remove_attempt_folders(&work, None, 4);
    let kept = ["LOCK", "VOLUMES", "logs/job_1.m0.0/stderr", "logs/job_1.m0.0/stdout"];
    assert_eq!(files(&dirs[1]), kept);
    assert_eq!(files(&dirs[0]), ["LOCK", "VOLUMES"]);
    assert_eq!(fs::read(disks.log_path(id, "stdout").unwrap()).unwrap(), b"stdo");
    assert!(disks.delete_job_files(JobId(1)));
    assert!(!dirs[0].join("jobs/job_1").exists() && !dirs[1].join("jobs/job_1").exists());
    assert_eq!(disks.attempts_with_logs(), [id]);
    disks.remove_logs(id);
    assert_eq!(files(&dirs[1]), ["LOCK", "VOLUMES"]);
}

#[test]
fn restart_keeps_complete_outputs_and_checkpoints_and_unknown_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    let good = attempt("job_1.m0.0");
    {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        disks.store_token(JobId(1), b"secret").unwrap();
        std::mem::forget(make_process_folders(&disks, 0));
        let complete = make_attempt_folders(&disks, 1, "job_1.m0.0");
        write_output(&complete.outputs[0], &[b"one", b"two"]);
        let incomplete = make_attempt_folders(&disks, 1, "job_1.m1.0");
        fs::write(&incomplete.outputs[0], "half").unwrap();
        // The output of a job without a token cannot be fetched, so it is removed.
        let tokenless = make_attempt_folders(&disks, 0, "job_2.m0.0");
        write_output(&tokenless.outputs[0], &[b"one"]);
        // The first checkpoint is complete, the second belongs to another attempt, the third is
        // incomplete.
        let state = checkpoint::ReduceState::default();
        for (paused, owner) in [("job_1.r0.0", "job_1.r0.0"), ("job_1.r2.0", "job_1.r9.0")] {
            checkpoint::save(&make_attempt_folders(&disks, 1, paused).checkpoint_dirs, owner, 0, &state)
                .unwrap();
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
    // Logs are not compared: a start keeps them until there are too many.
    let kept = |dir: &Path| {
        let mut kept = files(dir);
        kept.retain(|path| !path.starts_with("logs/"));
        kept
    };
    let user_file = "jobs/job_1/checkpoints/job_1.r7.0";
    assert_eq!(kept(&dirs[0]), ["LOCK", "VOLUMES", user_file, "jobs/job_1/token", "jobs/notes.txt"]);
    let output = "jobs/job_1/output/job_1.m0.0/out";
    let index = format!("{output}.index");
    let state = "jobs/job_1/checkpoints/job_1.r0.0/state";
    assert_eq!(kept(&dirs[1]), ["LOCK", "VOLUMES", state, output, &index, "jobs/job_1/output/notes.txt"]);
    let (disks, _) = Disks::open(&dirs, 0).unwrap();
    disks.delete_checkpoint(attempt("job_1.r0.0"));
    assert_eq!(kept(&dirs[1]), ["LOCK", "VOLUMES", output, &index, "jobs/job_1/output/notes.txt"]);
    assert!(!dirs[0].join("jobs/job_2").exists());
}

/// Makes an output and a checkpoint unreadable for one start. Checks that they are found at the
/// next start, because a temporary read error does not mean that the files are damaged.
#[test]
fn unreadable_files_are_neither_served_nor_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_path_buf()];
    let (output, state) = {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        disks.store_token(JobId(1), b"secret").unwrap();
        let output = make_attempt_folders(&disks, 0, "job_1.m0.0").outputs[0].clone();
        write_output(&output, &[b"one"]);
        let checkpoint_dirs = make_attempt_folders(&disks, 0, "job_1.r0.0").checkpoint_dirs;
        checkpoint::save(&checkpoint_dirs, "job_1.r0.0", 0, &checkpoint::ReduceState::default()).unwrap();
        (output, checkpoint_dirs[0].join("state"))
    };
    // Replace the files with folders, which causes read errors, also for root.
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

/// Saves a checkpoint of the same attempt again after the old one was renamed for deletion. Checks
/// that the new one is not deleted together with the old one.
#[test]
fn new_checkpoint_of_an_attempt_is_kept_while_the_old_one_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_owned()];
    let (disks, _) = Disks::open(&dirs, 0).unwrap();
    disks.store_token(JobId(1), b"secret").unwrap();
    let (id, state) = (attempt("job_1.r0.0"), checkpoint::ReduceState::default());
    let checkpoint_dirs = make_attempt_folders(&disks, 0, "job_1.r0.0").checkpoint_dirs;
    let save = || checkpoint::save(&checkpoint_dirs, "job_1.r0.0", 0, &state).unwrap();
    save();
    let dropped = disks.rename_for_deletion(id);
    save();
    let dropped_again = disks.rename_for_deletion(id);
    assert!(dropped.len() == 1 && dropped_again.len() == 1 && dropped != dropped_again);
    save();
    for path in &dropped {
        remove_tree(path).unwrap();
    }
    assert!(
        checkpoint::read(&checkpoint_dirs).is_ok()
            && disks.rename_for_deletion(attempt("job_1.r7.0")).is_empty()
    );
    drop(disks);
    // The renamed folder that was not deleted is removed at the next start.
    assert_eq!(files(&dirs[0]).iter().filter(|file| file.contains(DROPPED_INFIX)).count(), 1);
    let (_disks, found) = Disks::open(&dirs, 0).unwrap();
    assert_eq!(found.checkpoints.keys().copied().collect::<Vec<_>>(), [id]);
    assert_eq!(found.checkpoint_infos[&id].stage, "shuffle");
    assert!(!files(&dirs[0]).iter().any(|file| file.contains(DROPPED_INFIX)));
}

/// Runs `act` as an account other than root, in a temporary folder that `prepare` was called with.
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
                // This changes the account of this thread only.
                let nobody = rustix::process::Uid::from_raw(NOBODY);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            act(dir);
        });
    });
}

/// Leaves task folders with modes 0 and 0555, as programs do that unpack archives. Checks that the
/// tracker removes them and starts.
#[test]
fn task_folders_without_permissions_are_removed_and_do_not_prevent_a_start() {
    as_nobody(
        |_| (),
        |dir| {
            let dirs = [dir.to_owned()];
            let make_protected_folders = |folder: &Path| {
                for (name, mode) in [("closed", 0), ("fixed", 0o555)] {
                    let path = folder.join(name);
                    fs::create_dir_all(path.join("deeper")).unwrap();
                    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
                }
            };
            {
                let (disks, _) = Disks::open(&dirs, 0).unwrap();
                disks.store_token(JobId(1), b"secret").unwrap();
                let (map, reduce) = (
                    make_attempt_folders(&disks, 0, "job_1.m0.0"),
                    make_attempt_folders(&disks, 0, "job_1.r0.0"),
                );
                for folder in [&map.working, &reduce.checkpoint_dirs[0], map.outputs[0].parent().unwrap()] {
                    make_protected_folders(folder);
                }
                // The folders of an ended attempt are removed at once.
                let ended = make_attempt_folders(&disks, 0, "job_1.m1.0");
                make_protected_folders(&ended.working);
                disks.remove_attempt_folders(&ended, None, 0);
                assert!(!ended.working.exists());
            }
            let (disks, found) = Disks::open(&dirs, 0).unwrap();
            assert!(found.jobs.is_empty(), "{found:?}");
            make_protected_folders(&make_attempt_folders(&disks, 0, "job_2.m0.0").working);
            assert!(disks.delete_job_files(JobId(2)));
        },
    );
}

#[test]
fn job_with_files_that_cannot_be_removed_is_still_found() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip("root", "only root can create files that another account cannot remove");
    }
    let prepare = |dir: &Path| {
        for path in ["jobs/job_1/work/job_1.m0.0/root's/file", "warm/7/root's/file"] {
            fs::create_dir_all(dir.join(path)).unwrap();
        }
        for own in ["jobs", "warm", "jobs/job_1", "jobs/job_1/work", "jobs/job_1/work/job_1.m0.0", "warm/7"] {
            std::os::unix::fs::chown(dir.join(own), Some(65534), None).unwrap();
        }
    };
    as_nobody(prepare, |dir| {
        let (disks, found) = Disks::open(&[dir.to_owned()], 0).unwrap();
        assert_eq!(found.jobs.iter().copied().collect::<Vec<_>>(), [JobId(1)]);
        assert!(!disks.delete_job_files(JobId(1)));
        assert!(make_process_folders(&disks, 0).folder.ends_with("warm/8"));
    });
}

#[test]
fn start_skips_a_folder_that_cannot_be_used_if_another_can() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    let (disks, _) = Disks::open(&dirs, 0).unwrap();
    assert_eq!(disks.next_incarnation(1000).unwrap(), 1000);
    drop(disks);
    // Make the lock file a folder, so that locking fails also for root, as on a disk that has
    // become read-only.
    for (at, broken) in dirs.iter().enumerate() {
        fs::remove_file(broken.join("LOCK")).unwrap();
        fs::create_dir(broken.join("LOCK")).unwrap();
        match Disks::open(&dirs, 0) {
            Ok((disks, _)) if at == 0 => {
                assert_eq!((disks.count(), disks.choose().unwrap()), (1, 0));
                // The incarnation still increases if the first folder is missing or unreadable.
                assert_eq!(disks.next_incarnation(500).unwrap(), 1001);
                make_attempt_folders(&disks, 0, "job_1.m0.0");
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
    let (_locked, _) = Disks::open(&dirs[1..], 0).unwrap();
    let error = Disks::open(&dirs, 0).unwrap_err().to_string();
    assert!(error.contains("in use by tasktracker"), "{error}");
}

#[test]
fn files_of_a_job_whose_token_cannot_be_read_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_owned()];
    let output = {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        fs::create_dir_all(dir.path().join("jobs/job_1/token")).unwrap();
        let output = make_attempt_folders(&disks, 0, "job_1.m0.0").outputs[0].clone();
        write_output(&output, &[b"one"]);
        output
    };
    let (_, found) = Disks::open(&dirs, 0).unwrap();
    assert!(found.outputs.is_empty() && found.jobs.contains(&JobId(1)) && output.exists(), "{found:?}");
}

#[test]
fn folder_that_another_tracker_uses_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_owned()];
    let _first = Disks::open(&dirs, 0).unwrap();
    let error = Disks::open(&dirs, 0).unwrap_err().to_string();
    assert!(error.contains("in use by tasktracker"), "{error}");
}

#[test]
fn attempts_are_spread_over_disks_with_enough_space() {
    /// Returns little space for folder `a`, much for `b` and `c`, and an error for `e`.
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
        make_attempt_folders(&disks, disk, &format!("job_1.m{index}.0"));
        counts[disk] += 1;
    }
    assert_eq!(counts, [0, 5, 5, 0]);
    disks.avoid(1);
    assert_eq!(disks.choose().unwrap(), 2);
    // If all folders with enough space have failed recently, one of them is used.
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
        measure_free_bytes(Path::new("/"))
    }
    let dir = tempfile::tempdir().unwrap();
    let (disks, _) = Disks::open_with(&[dir.path().to_owned()], 0, free_space).unwrap();
    HANGS.store(1, Ordering::Relaxed);
    let began = Instant::now();
    assert!(disks.is_usable(0) && disks.choose().is_ok());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn token_is_stored_on_another_disk_if_the_first_one_fails() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a"), dir.path().join("b")];
    {
        let (disks, _) = Disks::open(&dirs, 0).unwrap();
        let complete = make_attempt_folders(&disks, 1, "job_1.m0.0");
        write_output(&complete.outputs[0], &[b"one"]);
        fs::remove_dir_all(dirs[0].join("jobs")).unwrap();
        fs::write(dirs[0].join("jobs"), "blocks the creation of a folder").unwrap();
        disks.store_token(JobId(1), b"secret").unwrap();
        fs::remove_file(dirs[0].join("jobs")).unwrap();
    }
    let (_, found) = Disks::open(&dirs, 0).unwrap();
    assert_eq!(found.tokens[&JobId(1)], b"secret");
    assert_eq!(found.outputs.len(), 1);
}

#[test]
fn incarnation_increases_although_the_clock_was_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().join("a")];
    let incarnation = |now| Disks::open(&dirs, 0).unwrap().0.next_incarnation(now).unwrap();
    assert_eq!(incarnation(1000), 1000);
    assert_eq!(incarnation(2000), 2000);
    // The clock was set back, and shows the same time at two starts.
    assert_eq!(incarnation(500), 2001);
    assert_eq!(incarnation(500), 2002);
    assert_eq!(incarnation(3000), 3000);
    assert_eq!(files(&dirs[0]), ["LOCK", "VOLUMES", "incarnation"]);
}

#[test]
fn full_disk_is_reported_only_if_the_attempt_uses_it() {
    /// Returns no space for folder `b`, and an error for `c`.
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
    // This attempt has no folder on `b`, which was full when the attempt started.
    let on_a = make_attempt_folders(&disks, 0, "job_1.m0.0");
    assert_eq!(on_a.scratch.len(), 1);
    assert_eq!(disks.full_disk_of(&on_a), None);
    let on_b = make_attempt_folders(&disks, 1, "job_1.m1.0");
    assert_eq!(disks.full_disk_of(&on_b), Some(1));
    let root = fs::canonicalize(at("b")).unwrap();
    assert_eq!(disks.folder_named_in(&format!("write {}/jobs/x: full", root.display())), Some(1));
    assert_eq!(disks.folder_named_in("no space on /elsewhere/data"), None);
}

#[test]
fn logs_of_each_attempt_of_a_reused_process_are_separate() {
    let dir = tempfile::tempdir().unwrap();
    let (disks, _) = Disks::open(&[dir.path().join("a")], 0).unwrap();
    let process_folders = make_process_folders(&disks, 0);
    // The process has its stdout open for appending all the time.
    let stdout = process_folders.process_logs.path().join("stdout");
    let mut out = OpenOptions::new().append(true).open(stdout).unwrap();
    let first = disks.make_attempt_folders(attempt("job_1.m0.0"), &process_folders).unwrap();
    out.write_all(b"first").unwrap();
    let process_logs = disks.detach_logs(&first).unwrap();
    disks.remove_attempt_folders(&first, None, 0);
    let next = disks.make_process_folders_with(process_logs).unwrap();
    let second = disks.make_attempt_folders(attempt("job_1.m1.0"), &next).unwrap();
    out.write_all(b"second").unwrap();
    let log = |id| fs::read_to_string(disks.log_path(attempt(id), "stdout").unwrap()).unwrap();
    assert_eq!((log("job_1.m0.0"), log("job_1.m1.0")), ("first".into(), "second".into()));
    drop(disks.detach_logs(&second).unwrap());
    assert_eq!(fs::read_dir(dir.path().join("a/process-logs")).unwrap().count(), 0);
}
