//! A real cluster for tests: the real binaries, started by `mrctl up` in a folder of its own and stopped when
//! the test ends, however it ends. Nothing here sleeps for luck: [`eventually`] waits for a condition.

mod cluster;
mod machines;
mod strace;

pub use cluster::{Cluster, QUICK, Ran, Up, is_root, may_inspect_daemons, task_account};
pub use machines::Machines;
pub use strace::{READS, SYNCS, Strace, is_gone};

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The folder with the binaries under test, built once a run with the profile of the test itself.
///
/// `cargo test` builds the binaries of other packages only by accident, so this asks for them by name.
/// `FERMATA_TEST_BINARIES=DIR` runs the tests on binaries built elsewhere, for instance those of an earlier
/// commit, to show that a regression test fails there.
pub fn binaries() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("FERMATA_TEST_BINARIES") {
            return folder.into();
        }
        let this = std::env::current_exe().expect("a test has a path");
        let folder = this.ancestors().nth(2).expect("target/PROFILE/deps/test").to_path_buf();
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // With a test among the targets the features are those of `cargo test`, so that nothing is compiled twice.
        build.args(["build", "--workspace", "--bins", "--test", "suite", "--locked", "--quiet"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
        assert!(status.success(), "cargo build --bins failed");
        folder
    })
}

/// A folder with copies of the binaries without debugging information, for tests that copy them to machines or into
/// images; the binaries themselves where there is no `strip`.
pub fn stripped_binaries() -> PathBuf {
    use std::{fs, time::UNIX_EPOCH};
    const PROGRAMS: [&str; 7] =
        ["namenode", "datanode", "jobtracker", "tasktracker", "mrtask", "mrctl", "wordcount-job"];
    let built = |name: &str| fs::metadata(binaries().join(name)).and_then(|file| file.modified()).ok();
    let newest = PROGRAMS.into_iter().filter_map(built).max().expect("the binaries are built");
    let stamp = newest.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let space = binaries().with_file_name("tmp");
    let folder = space.join(format!("stripped-{stamp}"));
    if folder.is_dir() {
        return folder;
    }
    fs::create_dir_all(&space).expect("a folder for temporary files");
    let new = tempfile::tempdir_in(&space).expect("a temporary folder");
    fs::set_permissions(new.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("our own folder");
    for name in PROGRAMS.into_iter().filter(|name| built(name).is_some()) {
        let stripped =
            Command::new("strip").arg("-o").arg(new.path().join(name)).arg(binaries().join(name)).status();
        if !stripped.is_ok_and(|status| status.success()) {
            return binaries().clone();
        }
    }
    // Another test may have been quicker.
    let _ = fs::rename(new.path(), &folder);
    if folder.is_dir() { folder } else { binaries().clone() }
}

/// Waits until `condition` yields a value; fails the test after `limit`, saying `what` never came true.
pub fn eventually<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Copies a folder with all that is in it.
pub fn copy_folder(from: &Path, to: &Path) {
    let ran = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(ran.success(), "cp -a {} {}", from.display(), to.display());
}

/// How soon a fault is noticed, and got over: printed, for the table in docs/faults.md.
pub struct Row {
    name: &'static str,
    since: Instant,
    noticed: Option<Duration>,
}

impl Row {
    /// It happens now.
    pub fn begin(name: &'static str) -> Self {
        Self { name, since: Instant::now(), noticed: None }
    }

    /// It has been noticed.
    pub fn noticed(&mut self) {
        self.noticed.get_or_insert(self.since.elapsed());
    }

    /// What was wrong has been mended from outside: how long it takes from now on is of interest.
    pub fn mended(&mut self) {
        self.since = Instant::now();
    }

    /// All is well.
    pub fn whole(self) {
        let shown = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let noticed = self.noticed.map_or("-".to_owned(), shown);
        println!("{}: noticed after {noticed}, whole after {}", self.name, shown(self.since.elapsed()));
    }
}

/// SHA-256 of a file, in hex.
pub fn sha256_of(path: &Path) -> String {
    use sha2::Digest;
    let mut file = std::fs::File::open(path).expect("a file to hash");
    let mut hasher = sha2::Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = std::io::Read::read(&mut file, &mut buffer).expect("a readable file");
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    hasher.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Writes `bytes` bytes that do not compress and depend on `seed` alone.
pub fn random_file(path: &Path, bytes: u64, seed: u64) {
    use std::io::Write;
    let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path).expect("a file"));
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut left = bytes;
    while left > 0 {
        // xorshift64*: fast, and good enough for test data
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
        let take = left.min(8) as usize;
        file.write_all(&word[..take]).expect("room on the disk");
        left -= take as u64;
    }
    file.flush().expect("room on the disk");
}
