//! The journal of a master is damaged at its end, where a torn write would be, or is unreadable.
//! Checks that no acknowledged record is dropped silently: the master reports the damage and does
//! not start. With `--recover` it saves and logs what it drops.

use fermata_tests::{Cluster, QUICK, READS, Strace, TIMEOUT, Up, binaries, eventually};
use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A master, and the folder of its journal.
#[derive(Clone, Copy)]
struct Master {
    program: &'static str,
    journal: &'static str,
}

const NAMENODE: Master = Master { program: "namenode", journal: ".fermata/data/namenode/edits" };
const JOBTRACKER: Master = Master { program: "jobtracker", journal: ".fermata/data/jobtracker/journal" };

/// Starts a cluster with a file and a finished job, so that both masters have acknowledged records.
fn cluster(settings: &str) -> Cluster {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings, ..Up::default() });
    fs::write(cluster.path("text"), "one two two\n").unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    cluster.succeed(&["wordcount", "--input", "/text", "--output", "/counts"]);
    cluster
}

impl Master {
    fn folder(self, cluster: &Cluster) -> PathBuf {
        cluster.path(self.journal)
    }

    /// Returns the files of the journal with this extension, oldest first.
    fn files(self, cluster: &Cluster, ending: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder(cluster)).unwrap().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|end| end == ending)).collect();
        files.sort();
        files
    }

    /// Returns the newest segment.
    fn newest_segment(self, cluster: &Cluster) -> PathBuf {
        self.files(cluster, "log").pop().expect("a segment")
    }

    /// Returns the newest segment if it has records, and if there are also an older segment and a
    /// snapshot.
    fn newest_of_several(self, cluster: &Cluster) -> Option<PathBuf> {
        // Longer than the header of a file.
        const RECORDS: u64 = 150;
        let several = self.files(cluster, "log").len() > 1 && !self.files(cluster, "snap").is_empty();
        let newest = self.newest_segment(cluster);
        (several && fs::metadata(&newest).unwrap().len() > RECORDS).then_some(newest)
    }

    /// Makes the master acknowledge another record.
    fn write(self, cluster: &Cluster, number: u32) {
        let path = format!("/more-{number}");
        if self.program == "namenode" {
            cluster.mrctl(&["fs", "mkdir", &path]);
        } else {
            cluster.succeed(&["wordcount", "--input", "/text", "--output", &path]);
        }
    }

    fn restart(self, cluster: &Cluster) {
        if self.program == "namenode" {
            cluster.restart_namenode();
        } else {
            cluster.mrctl(&["chaos", "restart", self.program]);
        }
    }

    /// Kills the master, or stops it cleanly.
    fn stop(self, cluster: &Cluster, cleanly: bool) {
        if cleanly {
            let pids = cluster.processes_named(self.program);
            let ran = Command::new("kill").arg("-TERM").args(&pids).status().unwrap();
            assert!(ran.success());
            eventually("the master has ended", || {
                cluster.processes_named(self.program).is_empty().then_some(())
            });
        } else {
            cluster.mrctl(&["chaos", "kill", self.program]);
        }
    }

    fn command(self) -> Command {
        Command::new(binaries().join(self.program))
    }

    /// Checks that the master exits with one line that contains the file and the advice. Returns
    /// that line.
    fn check_refuses_to_start(self, cluster: &Cluster, mut command: Command, file: &str) -> String {
        let errors = cluster.path("refusal");
        command.arg("--config").arg(cluster.path(".fermata/fermata.toml"));
        command.args(["--listen", "127.0.0.1:0"]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(fs::File::create(&errors).unwrap()).spawn().unwrap();
        let since = Instant::now();
        let ended = loop {
            match child.try_wait().unwrap() {
                None if since.elapsed() < TIMEOUT => std::thread::sleep(Duration::from_millis(20)),
                ended => break ended,
            }
        };
        if ended.is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let text = fs::read_to_string(&errors).unwrap();
        let status = ended.unwrap_or_else(|| panic!("{} still runs after {TIMEOUT:?}: {text}", self.program));
        assert!(!status.success(), "{} started: {text}", self.program);
        let last = text.lines().last().unwrap_or_default();
        for word in [file, "--recover"] {
            assert!(last.contains(word), "{word:?} is not in {last}");
        }
        last.to_owned()
    }

    /// Starts the master with `--recover`, checks that `mrctl nodes` reports the loss, and returns
    /// the log of the master.
    fn check_recovers(self, cluster: &Cluster, command: Command) -> String {
        let config = cluster.path(".fermata/fermata.toml").display().to_string();
        let at = format!("--{}", self.program);
        cluster.recover_by(command, self.program, |addr| {
            let nodes = cluster.try_mrctl(&["--config", &config, &at, addr, "nodes"]);
            assert!(nodes.stderr.contains("may be lost"), "{}{}", nodes.stdout, nodes.stderr);
            if self.program == "namenode" {
                let report = cluster.mrctl(&["--config", &config, "--namenode", addr, "fs", "report"]);
                assert!(report.contains("lost_edits"), "{report}");
            }
        })
    }
}

/// Flips a bit in the last batch of a file, shortly before its end.
fn flip_near_the_end(path: &Path) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let at = file.metadata().unwrap().len() - 5;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Checks that a master refuses to start after a bit of its last record was flipped, and that
/// `--recover` saves the damaged segment.
fn check_flipped_bit_is_refused_and_saved(master: Master, cleanly: bool) {
    let cluster = cluster(QUICK);
    master.stop(&cluster, cleanly);
    let newest = master.newest_segment(&cluster);
    flip_near_the_end(&newest);
    let damaged = fs::read(&newest).unwrap();
    master.check_refuses_to_start(&cluster, master.command(), &name_of(&newest));
    assert_eq!(fs::read(&newest).unwrap(), damaged, "a refusal changes nothing");
    let text = master.check_recovers(&cluster, master.command());
    assert_saved(&newest, &damaged, &text);
    cluster.mrctl(&["chaos", "restart", master.program]);
}

/// Checks that a recovery logged what it dropped, and saved the damaged segment.
fn assert_saved(segment: &Path, damaged: &[u8], log: &str) {
    for word in ["dropped", "saved_as", "may be lost"] {
        assert!(log.contains(word), "{word:?} is not in {log}");
    }
    let kept = segment.with_file_name(format!("{}.damaged-1", name_of(segment)));
    assert!(fs::read(kept).unwrap() == damaged, "the damaged segment was not saved unchanged");
}

#[test]
fn a_flipped_bit_in_the_last_edit_is_refused_after_a_kill() {
    check_flipped_bit_is_refused_and_saved(NAMENODE, false);
}

#[test]
fn a_flipped_bit_in_the_last_edit_is_refused_after_a_clean_stop() {
    check_flipped_bit_is_refused_and_saved(NAMENODE, true);
}

#[test]
fn a_flipped_bit_in_the_last_fact_is_refused_after_a_kill() {
    check_flipped_bit_is_refused_and_saved(JOBTRACKER, false);
}

#[test]
fn a_flipped_bit_in_the_last_fact_is_refused_after_a_clean_stop() {
    check_flipped_bit_is_refused_and_saved(JOBTRACKER, true);
}

/// Returns a cluster whose master was killed, and the newest segment of its journal. A snapshot and
/// older segments have earlier records.
fn killed_with_several_segments(master: Master) -> (Cluster, PathBuf) {
    let often = "snapshot_bytes = \"4KiB\"\n";
    let cluster = cluster(&format!("{QUICK}{often}[jobtracker]\n{often}"));
    let mut number = 0;
    let newest = eventually("a snapshot, and records in the newest of several segments", || {
        number += 1;
        master.write(&cluster, number);
        master.newest_of_several(&cluster)?;
        master.stop(&cluster, false);
        // A snapshot may have started a new segment meanwhile.
        let newest = master.newest_of_several(&cluster);
        if newest.is_none() {
            master.restart(&cluster);
        }
        newest
    });
    (cluster, newest)
}

/// Removes the newest segment, and checks that the master refuses to start. The remaining snapshot
/// and segments look like a complete journal: only `COMMIT` shows that more was acknowledged.
fn check_missing_segment_is_refused(master: Master) -> Cluster {
    let (cluster, newest) = killed_with_several_segments(master);
    assert!(newest.with_file_name("COMMIT").exists());
    fs::remove_file(&newest).unwrap();
    master.check_refuses_to_start(&cluster, master.command(), &name_of(&newest));
    let text = master.check_recovers(&cluster, master.command());
    assert!(text.contains("may be lost"), "{text}");
    cluster
}

#[test]
fn a_missing_newest_segment_of_the_edit_log_is_refused() {
    check_missing_segment_is_refused(NAMENODE);
}

#[test]
fn job_ids_are_not_reused_after_a_missing_segment() {
    let cluster = check_missing_segment_is_refused(JOBTRACKER);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    let job = cluster.succeed(&["wordcount", "--input", "/text", "--output", "/counts-again"]);
    let number: u32 = job["job"].as_str().unwrap().trim_start_matches("job_").parse().unwrap();
    assert!(number > 1000, "job IDs that may have been used were not skipped: {number}");
}

/// Makes the newest segment unreadable (EIO, by strace), at a start and during the recovery. Checks
/// that the master refuses to start and that the recovery keeps the segment.
fn check_unreadable_segment_is_refused_and_kept(master: Master) {
    let (cluster, newest) = killed_with_several_segments(master);
    let acknowledged = fs::read(&newest).unwrap();
    // A new segment gets the name of this one. The fault is therefore attached to another file,
    // which the name links to.
    let sectors = fs::canonicalize(cluster.path("")).unwrap().join("sectors");
    fs::rename(&newest, &sectors).unwrap();
    symlink(&sectors, &newest).unwrap();
    let start = || Strace::starting(&binaries().join(master.program), READS, "error=EIO", &sectors);
    let (Some(first), Some(second)) = (start(), start()) else { return };
    let refusal = master.check_refuses_to_start(&cluster, first, &name_of(&newest));
    assert!(refusal.contains("input/output error"), "{refusal}");
    assert_eq!(fs::read_link(&newest).unwrap(), sectors, "a refusal changes nothing");
    let text = master.check_recovers(&cluster, second);
    assert_saved(&newest, &acknowledged, &text);
    // The records before that segment exist, and the cluster works.
    master.restart(&cluster);
    cluster.succeed(&["wordcount", "--input", "/text", "--output", "/counts-after"]);
    assert_eq!(cluster.output("/counts-after"), b"one\t1\ntwo\t2\n");
}

#[test]
fn an_unreadable_segment_of_the_edit_log_is_refused_and_recovered() {
    check_unreadable_segment_is_refused_and_kept(NAMENODE);
}

#[test]
fn an_unreadable_segment_of_the_jobtrackers_journal_is_refused_and_recovered() {
    check_unreadable_segment_is_refused_and_kept(JOBTRACKER);
}
