//! A real cluster for tests: the real binaries, started by `mrctl up` in a separate folder, and
//! stopped when the test ends in any way. Tests do not use fixed sleeps: [`eventually`] waits for a
//! condition.

mod cluster;
pub mod load;
mod machines;
mod strace;

pub use cluster::{Cluster, QUICK, Ran, Up, is_root, may_inspect_daemons, task_account};
pub use machines::Machines;
pub use skip::skip;
pub use strace::{READS, SYNCS, Strace, is_gone};

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// Returns the folder of the binaries under test, with the examples of the client, built once per run with the profile of the test
/// itself.
///
/// `cargo test` does not always build the binaries of other packages, so this builds them
/// explicitly. `FERMATA_TEST_BINARIES=DIR` runs the tests with other binaries, for example those of
/// an earlier commit, to show that a regression test fails there.
pub fn binaries() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("FERMATA_TEST_BINARIES") {
            return folder.into();
        }
        let this = std::env::current_exe().expect("a test has a path");
        let folder = this.ancestors().nth(2).expect("target/PROFILE/deps/test").to_path_buf();
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Cargo describes the package of this test in the environment. The build script of `ring`
        // depends on these variables, so with them most crates would be compiled again.
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
            {
                build.env_remove(name);
            }
        }
        // With a test among the targets, the features are those of `cargo test`, so that nothing is
        // compiled twice.
        build.args(["build", "--workspace", "--bins", "--test", "suite", "--locked", "--quiet"]);
        build.args(["--example", "submit", "--example", "program"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
        assert!(status.success(), "cargo build --bins failed");
        folder
    })
}

/// Returns a folder with copies of the binaries without debug information, for tests that copy them
/// to machines or into images; the binaries themselves if `strip` is missing.
pub fn stripped_binaries() -> PathBuf {
    use std::{fs, time::UNIX_EPOCH};
    const PROGRAMS: [&str; 8] =
        ["namenode", "datanode", "jobtracker", "tasktracker", "gateway", "mrtask", "mrctl", "wordcount-job"];
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
    // Another test may have created the folder meanwhile.
    let _ = fs::rename(new.path(), &folder);
    if folder.is_dir() { folder } else { binaries().clone() }
}

/// How long a test waits for what must happen. It is long, because tests also run on slow and busy
/// machines. A test that checks a shorter limit measures the time itself.
pub const TIMEOUT: Duration = Duration::from_mins(5);

/// Waits until `condition` returns a value. Fails the test after [`TIMEOUT`] with the description
/// `what`.
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "timeout after {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Copies a folder with its contents.
pub fn copy_folder(from: &Path, to: &Path) {
    let ran = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(ran.success(), "cp -a {} {}", from.display(), to.display());
}

/// Measures how long it takes until a fault is detected and until the cluster has recovered. Prints
/// both for the table in docs/operate/fault-matrix.md.
pub struct Row {
    name: &'static str,
    since: Instant,
    detected: Option<Duration>,
}

impl Row {
    /// Starts the measurement at the time of the fault.
    pub fn begin(name: &'static str) -> Self {
        Self { name, since: Instant::now(), detected: None }
    }

    /// Records that the fault has been detected.
    pub fn detected(&mut self) {
        self.detected.get_or_insert(self.since.elapsed());
    }

    /// Restarts the clock after the test has removed the cause, to measure only the recovery.
    pub fn restart_clock(&mut self) {
        self.since = Instant::now();
    }

    /// Records that the cluster has recovered, and prints the row.
    pub fn recovered(self) {
        let shown = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let detected = self.detected.map_or("-".to_owned(), shown);
        println!("{}: detected after {detected}, recovered after {}", self.name, shown(self.since.elapsed()));
    }
}

/// Returns the SHA-256 of a file, in hex.
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

/// Writes `bytes` incompressible bytes that depend only on `seed`.
pub fn random_file(path: &Path, bytes: u64, seed: u64) {
    use std::io::Write;
    let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path).expect("a file"));
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut left = bytes;
    while left > 0 {
        // xorshift64*, which is fast and good enough for test data.
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
