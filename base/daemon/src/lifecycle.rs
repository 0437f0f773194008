//! Starts and ends daemons: common flags, the ready file, and signals.

use crate::{
    Bytes, SecurityArgs,
    config::{Config, ConfigError},
    logging::LogFormat,
};
use std::{io, path::PathBuf, process::ExitCode, sync::OnceLock};

/// Flags of all daemons.
#[derive(Debug, Clone, clap::Args)]
pub struct DaemonArgs {
    /// Configuration file; flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the configuration that results from file and flags, and exit
    #[arg(long)]
    pub print_config: bool,
    /// Format of log lines
    #[arg(long, value_enum, default_value = "human")]
    pub log_format: LogFormat,
    /// Size at which the log file of standard error is renamed to FILE.1 and a new one started; 0
    /// for never
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    pub log_max: Bytes,
    /// File to write the address to once the daemon is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Allow addresses that other machines can reach without authentication of callers
    #[arg(long)]
    pub insecure: bool,
    /// Credentials.
    #[command(flatten)]
    pub security: SecurityArgs,
}

impl DaemonArgs {
    /// Returns the checked configuration from the file and the flags. If it was only to be printed,
    /// prints it and returns `None`.
    pub fn load(&self, flags: impl FnOnce(&mut Config)) -> Result<Option<Config>, ConfigError> {
        self.load_checked(flags, |_| Ok(()))
    }

    /// Like [`Self::load`], but also calls `check`, for settings that only this daemon can check.
    pub fn load_checked(
        &self,
        flags: impl FnOnce(&mut Config),
        check: impl FnOnce(&Config) -> Result<(), ConfigError>,
    ) -> Result<Option<Config>, ConfigError> {
        let mut config = Config::load(self.config.as_deref())?;
        config.cluster.insecure |= self.insecure;
        self.security.override_settings(&mut config.security);
        flags(&mut config);
        config
            .check()
            .and_then(|()| check(&config))
            .map_err(|error| error.found_in(self.config.as_deref()))?;
        if self.print_config {
            print!("{}", config.print());
            return Ok(None);
        }
        Ok(Some(config))
    }

    /// Starts logging. Call once, when the configuration is valid.
    pub fn start_logging(&self) {
        crate::logging::init_with_rotation(self.log_format, self.log_max);
    }

    /// Writes the ready file with the address of the daemon, atomically.
    pub fn write_ready(&self, addr: &str) -> io::Result<()> {
        let Some(path) = &self.ready_file else { return Ok(()) };
        crate::files::replace(path, format!("{addr}\n").as_bytes(), crate::files::USUAL, false)
    }
}

/// Waits for Ctrl-C, SIGTERM, or the end of the terminal (SIGHUP), unless the process was started with
/// SIGHUP ignored, as by `nohup`.
pub async fn end_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    if ignores_hangup() {
        return stop_signal().await;
    }
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        return stop_signal().await;
    };
    tokio::select! { () = stop_signal() => {}, _ = hangup.recv() => {} }
}

/// Returns whether the process was started with SIGHUP ignored. This is read before a handler is
/// installed, which changes it.
fn ignores_hangup() -> bool {
    static IGNORES: OnceLock<bool> = OnceLock::new();
    *IGNORES.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        // The lowest bit is that of signal 1, which is SIGHUP.
        mask & 1 == 1
    })
}

/// Waits for SIGTERM or SIGINT, or until the locked folders of the process were deleted. SIGHUP is
/// logged and ignored, because settings are read only at start.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int), Ok(mut hangup)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()))
    else {
        return std::future::pending().await;
    };
    let mut gone = std::pin::pin!(crate::lock::all_folders_gone());
    loop {
        tokio::select! {
            _ = term.recv() => return,
            _ = int.recv() => return,
            _ = hangup.recv() => {
                tracing::warn!("SIGHUP is ignored: settings are read at start, so restart the daemon to change them");
            }
            folder = &mut gone => {
                tracing::error!(folder = %folder.display(), "the data folder was deleted: stopping");
                return;
            }
        }
    }
}

/// Prepares the process of a daemon. Must be called first in its `main`. Closes inherited file
/// descriptors, so that neither the daemon nor its tasks have them. Sets a umask, so that only the
/// account of the daemon can access blocks, logs of tasks and secrets of jobs. Raises the limit of
/// open files. From then on, a panic ends the process, and SIGHUP does not.
pub fn prepare_process() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    close_inherited();
    ignore_hangup();
    // Other processes of the account, such as tasks, cannot trace this process or read its memory,
    // environment and files through /proc. No core file is written, which would contain the keys of
    // the cluster. This call does not fail on Linux.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).ok();
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let files = getrlimit(Resource::Nofile);
    // If this fails, the daemon accepts fewer connections, according to the current limit.
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).ok();
    abort_on_panic();
}

/// Installs a handler so that SIGHUP does not end the process, even while it reads a long journal.
/// [`stop_signal`] logs the signal. The handler remains after the runtime that installs it has
/// ended. Unlike an ignored signal, a handler is not inherited by child processes.
fn ignore_hangup() {
    use tokio::signal::unix::{SignalKind, signal};
    // If this fails, SIGHUP ends the daemon until `stop_signal` is awaited.
    if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() {
        let _context = runtime.enter();
        signal(SignalKind::hangup()).ok();
    }
}

/// Closes all descriptors except standard input, output and error.
#[allow(unsafe_code, reason = "no Rust value owns an inherited descriptor, so it may be closed by number")]
fn close_inherited() {
    // If the list cannot be read there is no /proc, and the daemon cannot work anyway.
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<i32> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The descriptor of the list itself is already closed and must not be closed again.
    let is_open = |descriptor: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{descriptor}")).is_ok();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2 && is_open(descriptor)) {
        // SAFETY: called first in the process: no value owns a descriptor above 2 yet.
        unsafe { rustix::io::close(descriptor) };
    }
}

/// Makes a panic in any thread end the process, because it may leave shared state half changed.
fn abort_on_panic() {
    let print_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print_panic(info);
        std::process::abort();
    }));
}

/// Ends `main` after a configuration error: one line on standard error, and exit code 2 as for
/// invalid flags.
pub fn exit_usage(name: &str, error: &ConfigError) -> ExitCode {
    eprintln!("{name}: {error}");
    ExitCode::from(2)
}

/// Ends `main`: an error is one line on standard error, and exit code 1.
pub fn exit(name: &str, result: Result<(), impl std::fmt::Display>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    const CHILD_VAR: &str = "FERMATA_TEST_CHILD";

    /// Runs this test again in a separate process that has inherited an open file.
    #[test]
    fn inherited_descriptors_are_closed() {
        let name = "lifecycle::tests::inherited_descriptors_are_closed";
        if std::env::var_os(CHILD_VAR).is_some() {
            let open = || std::fs::metadata("/proc/self/fd/9").is_ok();
            let before = open();
            super::close_inherited();
            assert!(before && !open());
            return;
        }
        let own = std::env::current_exe().unwrap();
        // The harness runs a test in a separate thread and uses no descriptor above 2.
        let script = "exec 9</dev/null; exec \"$0\" --exact \"$1\" --nocapture --test-threads=1";
        let child =
            Command::new("sh").args(["-c", script]).arg(own).arg(name).env(CHILD_VAR, "1").output().unwrap();
        assert!(child.status.success(), "{child:?}");
    }

    /// Runs this test again in a separate process that sends itself the signal.
    #[test]
    fn sighup_during_startup_does_not_end_the_daemon() {
        if std::env::var_os(CHILD_VAR).is_some() {
            super::ignore_hangup();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
            println!("still there");
            return;
        }
        let name = "lifecycle::tests::sighup_during_startup_does_not_end_the_daemon";
        let own = std::env::current_exe().unwrap();
        let child = Command::new(own).args(["--exact", name, "--nocapture"]).env(CHILD_VAR, "1").output();
        let child = child.unwrap();
        assert!(child.status.success(), "{child:?}");
        assert!(String::from_utf8_lossy(&child.stdout).contains("still there"), "{child:?}");
    }

    /// Runs this test again in a separate process that panics in a detached thread.
    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        if std::env::var_os(CHILD_VAR).is_some() {
            super::abort_on_panic();
            drop(std::thread::spawn(|| panic!("on purpose")));
            std::thread::sleep(std::time::Duration::from_secs(30));
            return;
        }
        let name = "lifecycle::tests::a_panic_in_any_thread_ends_the_process";
        let own = std::env::current_exe().unwrap();
        let child = Command::new(own).args(["--exact", name, "--nocapture"]).env(CHILD_VAR, "1").output();
        let child = child.unwrap();
        assert_eq!(child.status.signal(), Some(6), "{child:?}");
        assert!(String::from_utf8_lossy(&child.stderr).contains("on purpose"), "{child:?}");
    }
}
