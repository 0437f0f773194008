//! A daemon's beginning and end: the flags all daemons share, the ready file, and the signal to stop.

use crate::{
    Bytes, SecurityArgs,
    config::{Config, ConfigError},
    logging::LogFormat,
};
use std::{io, path::PathBuf, process::ExitCode};

/// Flags that every daemon takes.
#[derive(Debug, Clone, clap::Args)]
pub struct DaemonArgs {
    /// Configuration file; flags go over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the configuration that results from file and flags, and exit
    #[arg(long)]
    pub print_config: bool,
    /// How log lines look
    #[arg(long, value_enum, default_value = "human")]
    pub log_format: LogFormat,
    /// Size at which a log that standard error goes to is checkpointed as FILE.1 and begun anew; 0 for never
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    pub log_max: Bytes,
    /// Written, with the address served on, once the daemon serves
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Allow listening on addresses that other machines can reach, without asking who calls
    #[arg(long)]
    pub insecure: bool,
    /// What callers must show.
    #[command(flatten)]
    pub security: SecurityArgs,
}

impl DaemonArgs {
    /// The file's configuration, with `flags` laid over it and checked. None if it was only to be printed.
    pub fn load(&self, flags: impl FnOnce(&mut Config)) -> Result<Option<Config>, ConfigError> {
        self.load_checked(flags, |_| Ok(()))
    }

    /// The same, with a `check` of what only this daemon knows; it, too, comes before anything is printed.
    pub fn load_checked(
        &self,
        flags: impl FnOnce(&mut Config),
        check: impl FnOnce(&Config) -> Result<(), ConfigError>,
    ) -> Result<Option<Config>, ConfigError> {
        let mut config = Config::load(self.config.as_deref())?;
        config.cluster.insecure |= self.insecure;
        self.security.over(&mut config.security);
        flags(&mut config);
        config.check()?;
        check(&config).map_err(|error| error.found_in(self.config.as_deref()))?;
        if self.print_config {
            print!("{}", config.print());
            return Ok(None);
        }
        Ok(Some(config))
    }

    /// Starts logging. Call once, when the configuration is known to be good.
    pub fn begin_log(&self) {
        crate::logging::init_within(self.log_format, self.log_max);
    }

    /// Tells whoever waits that the daemon serves on `addr`. Appears whole.
    pub fn write_ready(&self, addr: &str) -> io::Result<()> {
        let Some(path) = &self.ready_file else { return Ok(()) };
        crate::files::replace(path, format!("{addr}\n").as_bytes(), crate::files::USUAL, false)
    }
}

/// Completes when the process is asked to stop (SIGTERM or SIGINT), or its folders have been deleted under it. SIGHUP,
/// which other daemons take for "read your settings again", is logged and ignored.
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
                tracing::error!(folder = %folder.display(), "the folder has been deleted: no data can be stored");
                return;
            }
        }
    }
}

/// First thing in a daemon's `main`: what whoever started it had open is not its, nor its tasks'; what it writes is
/// for its own account alone (blocks, logs of tasks, secrets of jobs), it may open as many files as the system lets
/// it, a panic ends it, and SIGHUP does not.
pub fn begin() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    close_inherited();
    ignore_hangup();
    // No other process of the account, such as a task, can trace this one or read its memory, environment and files
    // through /proc. There are no core files either, which would hold the cluster's keys. Fails on no Linux.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).ok();
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let files = getrlimit(Resource::Nofile);
    // As it was, if not: the limits on connections follow from it.
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).ok();
    abort_on_panic();
}

/// From now on SIGHUP does not end the process, also while it reads a long journal. [`stop_signal`] logs it. The
/// handler outlives the runtime that it is installed by; unlike an ignored signal it is not inherited by child
/// processes.
fn ignore_hangup() {
    use tokio::signal::unix::{SignalKind, signal};
    // Without it, SIGHUP ends the daemon until `stop_signal` is awaited.
    if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() {
        let _context = runtime.enter();
        signal(SignalKind::hangup()).ok();
    }
}

/// Closes everything but standard input, output and errors.
#[allow(unsafe_code, reason = "what was inherited belongs to no value that could close it")]
fn close_inherited() {
    // Where it cannot be listed there is no /proc, and nothing else works.
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<i32> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The one that the list was read by is closed already; to close it again would be a mistake.
    let is_open = |descriptor: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{descriptor}")).is_ok();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2 && is_open(descriptor)) {
        // SAFETY: the first thing that the process does: no value owns a descriptor above 2 yet.
        unsafe { rustix::io::close(descriptor) };
    }
}

/// From now on a panic in any thread ends the process: it may leave the state half changed, and the task that it
/// ends is not the only user of it.
fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::abort();
    }));
}

/// Ends a daemon's `main` over a configuration that cannot be used: one line on standard error, and exit code 2 as for
/// bad flags.
pub fn exit_usage(name: &str, error: &ConfigError) -> ExitCode {
    eprintln!("{name}: {error}");
    ExitCode::from(2)
}

/// Ends a daemon's `main`: an error is one line on standard error, and exit code 1.
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

    const VICTIM: &str = "FERMATA_TEST_VICTIM";

    /// Runs this very test again in a process of its own, which has a file open that it did not open.
    #[test]
    fn inherited_descriptors_are_closed() {
        let name = "lifecycle::tests::inherited_descriptors_are_closed";
        if std::env::var_os(VICTIM).is_some() {
            let open = || std::fs::metadata("/proc/self/fd/9").is_ok();
            let before = open();
            super::close_inherited();
            assert!(before && !open());
            return;
        }
        let own = std::env::current_exe().unwrap();
        // The harness runs a test in a thread of its own, which has nothing above 2 that is in use.
        let script = "exec 9</dev/null; exec \"$0\" --exact \"$1\" --nocapture --test-threads=1";
        let victim =
            Command::new("sh").args(["-c", script]).arg(own).arg(name).env(VICTIM, "1").output().unwrap();
        assert!(victim.status.success(), "{victim:?}");
    }

    /// Runs this very test again in a process of its own, which sends itself the signal.
    #[test]
    fn sighup_during_startup_does_not_end_the_daemon() {
        if std::env::var_os(VICTIM).is_some() {
            super::ignore_hangup();
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
            println!("still there");
            return;
        }
        let name = "lifecycle::tests::sighup_during_startup_does_not_end_the_daemon";
        let own = std::env::current_exe().unwrap();
        let victim = Command::new(own).args(["--exact", name, "--nocapture"]).env(VICTIM, "1").output();
        let victim = victim.unwrap();
        assert!(victim.status.success(), "{victim:?}");
        assert!(String::from_utf8_lossy(&victim.stdout).contains("still there"), "{victim:?}");
    }

    /// Runs this very test again in a process of its own, which panics in a thread that nobody joins.
    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        if std::env::var_os(VICTIM).is_some() {
            super::abort_on_panic();
            drop(std::thread::spawn(|| panic!("on purpose")));
            std::thread::sleep(std::time::Duration::from_secs(30));
            return;
        }
        let name = "lifecycle::tests::a_panic_in_any_thread_ends_the_process";
        let own = std::env::current_exe().unwrap();
        let victim = Command::new(own).args(["--exact", name, "--nocapture"]).env(VICTIM, "1").output();
        let victim = victim.unwrap();
        assert_eq!(victim.status.signal(), Some(6), "{victim:?}");
        assert!(String::from_utf8_lossy(&victim.stderr).contains("on purpose"), "{victim:?}");
    }
}
