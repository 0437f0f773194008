//! Installs, starts, stops and inspects the daemons of one machine.
//!
//! The remote folder belongs to one cluster, whose ID is in its file `CLUSTER`; scripts refuse to
//! work in the folder of another cluster. A daemon is found by its PID file. PIDs are reused, so a
//! process counts as the daemon only if the path of our ready file is in its command line. A file
//! beside the PID file records the settings and programs that the daemon was started from, to
//! detect later changes.
//!
//! Files in use are never overwritten. Settings are copied to `incoming` and then moved. Programs
//! are copied to `bin.new`, which replaces `bin` at a start when no daemon of the machine runs: a
//! running tracker starts task processes from `bin` at any time.

use super::{
    data::DataDirs,
    hosts::{Host, MachineRole},
    package::{Package, Programs},
    shell::{ScriptTimeouts, Shell},
};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::{path::PathBuf, time::Duration};

/// How many seconds a started daemon may take until it is ready.
const READY_TIMEOUT: u32 = 60;
/// A daemon that has not stopped after this many seconds is killed.
const KILL_TIMEOUT: u32 = 15;
/// Stopping fails if the daemon has not ended after this many seconds, although it was killed.
const EXIT_TIMEOUT: u32 = 20;

/// Shell functions that precede every script. `ours` sets `c` to the cluster ID in the folder, and
/// exits if that is another cluster. `theirs` succeeds if a path, or anything below it, belongs to
/// another account.
const OWNERSHIP_CHECKS: &str = "\
theirs() { [ -n \"$(find $1 ! -user $(id -u) 2>/dev/null | head -n 1)\" ]; }
ours() {
  c=$(cat \"$dir/CLUSTER\" 2>/dev/null)
  if [ -n \"$c\" ] && [ \"$c\" != \"$id\" ]; then
    echo \"$dir belongs to cluster $c, but this cluster is $id: choose another folder with --remote-dir\" >&2
    exit 1
  fi
}
ours
";

/// Shell functions for scripts in the remote folder. `alive` succeeds if a daemon is running, and
/// sets `p` to its PID. `from` prints the stamps of the current settings and programs. `latest`
/// prints the stamps that a restart of all daemons would use. `print_state` prints the state of a
/// daemon.
const STATE_FUNCTIONS: &str = "\
alive() { p=$(cat \"run/$1.pid\" 2>/dev/null) && [ -n \"$p\" ] && grep -qaF -- \"$dir/run/$1.ready\" \"/proc/$p/cmdline\" 2>/dev/null; }
from() { cat SETTINGS bin/STAMP 2>/dev/null; }
latest() { if [ -e bin.new/STAMP ]; then cat SETTINGS bin.new/STAMP 2>/dev/null; else from; fi; }
print_state() {
  if alive $1; then
    s=running; f=new
    case $(sed -n 's/^State:[^A-Za-z]*\\(.\\).*/\\1/p' /proc/$p/status 2>/dev/null) in T|t) s=frozen;; esac
    [ \"$(cat run/$1.from 2>/dev/null)\" = \"$(latest)\" ] || f=old
    echo \"$s $p $f $(cat run/$1.ready 2>/dev/null)\"
  elif [ -e run/$1.pid ]; then echo dead; else echo absent; fi
}
";

/// A machine, and how to run commands on it.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its line in the hosts file.
    pub host: Host,
    /// The remote shell.
    pub shell: Shell,
    /// The ID of the cluster.
    pub cluster: String,
    /// The remote folder.
    pub dir: String,
    /// The folder with the programs on the machine.
    pub bin: String,
    /// Ports of the DataNode and the TaskTracker.
    pub ports: [u16; 2],
    /// The data folders of its daemons.
    pub data: DataDirs,
    /// The daemons that had data. They are not started if their data folders are empty now.
    pub formatted: Vec<&'static str>,
    /// Whether the operator has confirmed that empty data folders are new (`--format`).
    pub format: bool,
    /// Its masters as members of groups; empty for a node and for the only master.
    pub members: Vec<Member>,
}

/// A master as a member of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// `namenode` or `jobtracker`.
    pub daemon: &'static str,
    /// Its ID.
    pub id: usize,
    /// Where clients and the other members reach it.
    pub address: String,
    /// The addresses of the others.
    pub others: Vec<String>,
    /// Whether it forms the group, which the others join with empty folders.
    pub is_founder: bool,
}

/// States reported by masters that need no attention.
const HEALTHY_STATES: [&str; 6] = ["up", "leader", "follower", "live", "draining", "drained"];

/// The state of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DaemonStatus {
    /// `namenode`, `datanode`, `jobtracker` or `tasktracker`.
    pub daemon: String,
    /// `running`, `frozen` (by a signal), `dead` (only its PID file exists) or `absent`.
    pub state: String,
    /// Its PID, if it is running.
    pub pid: Option<u32>,
    /// The address that it listens on, once it is ready.
    pub addr: Option<String>,
    /// Whether the settings or programs have changed since its start.
    pub outdated: bool,
    /// The state that its master reports, if it was queried; for a master, whether it is up, or its role in
    /// its group.
    pub reported: Option<String>,
}

impl DaemonStatus {
    /// Returns whether the daemon is running and `reported`, if known, is a healthy state.
    pub fn is_healthy(&self) -> bool {
        let reported = self.reported.as_deref();
        self.state == "running" && reported.is_none_or(|reported| HEALTHY_STATES.contains(&reported))
    }
}

/// Shell commands that create the remote folder, and print the stamps of the settings and programs
/// in it.
const MAKE_FOLDER: &str = "umask 066
mkdir -p $dir || exit 1
if [ -L $dir ] || [ ! -O $dir ] || [ -n \"$(find $dir -prune \\( -perm -020 -o -perm -002 \\))\" ]; then
  echo \"$dir belongs to another account, or others can write to it: delete it, or choose another with --remote-dir\" >&2
  exit 1
fi
( set -C; echo $id > $dir/CLUSTER ) 2>/dev/null
ours
[ -e $dir/bin ] || [ ! -e $dir/bin.old ] || mv $dir/bin.old $dir/bin || exit 1
mkdir -p $dir/bin $dir/run $dir/logs $dir/data $dir/security || exit 1
chmod 711 $dir $dir/bin $dir/data && chmod 700 $dir/run $dir/logs $dir/security || exit 1
for x in bin bin.new; do if theirs $dir/$x; then rm -f $dir/$x/STAMP || exit 1; fi; done
echo \"settings $(cat $dir/SETTINGS 2>/dev/null)\"
echo \"programs $(cat $dir/bin/STAMP 2>/dev/null)\"
echo \"brought $(cat $dir/bin.new/STAMP 2>/dev/null)\"
";

/// Shell commands that report that the remote folder does not exist, and fail.
const FAIL_WITHOUT_FOLDER: &str = "echo \"$dir does not exist: 'mrctl cluster up' creates it\" >&2; exit 1";

impl Machine {
    fn name(&self) -> &str {
        &self.host.name
    }

    /// Returns the script, preceded by a check that the remote folder belongs to this cluster.
    fn with_ownership_check(&self, script: &str) -> String {
        format!("dir={}\nid={}\n{OWNERSHIP_CHECKS}{script}", self.dir, self.cluster)
    }

    fn in_remote_folder(&self, without: &str, script: &str) -> String {
        self.with_ownership_check(&format!(
            "cd \"$dir\" 2>/dev/null || {{ {without}; }}\n{STATE_FUNCTIONS}{script}"
        ))
    }

    /// Runs a script in the remote folder. It can use `alive DAEMON`, which sets `$p` to the PID.
    pub fn script(&self, script: &str) -> Result<String> {
        self.shell.script(self.name(), &self.in_remote_folder(FAIL_WITHOUT_FOLDER, script))
    }

    /// Runs a script like `script`, but expects it to take about `takes`.
    pub fn long_script(&self, takes: Duration, script: &str) -> Result<String> {
        let script = self.in_remote_folder(FAIL_WITHOUT_FOLDER, script);
        self.shell.script_with_timeout(ScriptTimeouts::of_script(takes), self.name(), &script)
    }

    /// Creates the folder and copies missing or outdated files. Returns what was copied.
    pub fn install(&self, programs: Option<&Programs>, package: &Package) -> Result<&'static str> {
        // Tasks may run as another account: they may traverse to their folders and programs, but
        // read nothing else. A folder that another account has created gets no keys. If two
        // clusters start at once, only one gets the folder. Programs that another account owned,
        // and so may have changed, are copied again.
        let make = self.with_ownership_check(MAKE_FOLDER);
        let existing = self.shell.script(self.name(), &make)?;
        let is_there =
            |what: &str, stamp: &str| existing.lines().any(|line| line == format!("{what} {stamp}"));
        let role = self.host.role;
        let settings = package.stamp(role)?;
        self.copy_files(&package.files_for(role), package)?;
        let copied = if is_there("settings", &settings) {
            "settings are up to date"
        } else {
            self.script(&format!("echo {settings} > SETTINGS"))?;
            "settings copied"
        };
        let Some(programs) = programs else { return Ok(copied) };
        let stamp = programs.stamp(role)?;
        let runs = is_there("programs", &stamp);
        if runs || is_there("brought", &stamp) {
            if runs {
                self.script("rm -rf bin.new")?;
            }
            return Ok(if copied == "settings copied" {
                copied
            } else {
                "programs and settings are up to date"
            });
        }
        self.script("rm -rf bin.new && mkdir -m 711 bin.new")?;
        let folder = format!("{}/bin.new", self.dir);
        programs.send(&self.shell, self.name(), role, &folder).context("cannot copy the programs")?;
        // Write the stamp last: programs without a stamp are incomplete.
        self.script(&format!(
            "{}chmod 755 bin.new/* && echo '{stamp}' > bin.new/STAMP",
            check_ownership("bin.new")
        ))?;
        Ok("programs and settings copied")
    }

    /// Copies files of the cluster folder. Each file is replaced atomically, because daemons may be
    /// reading it.
    pub fn copy_files(&self, files: &[PathBuf], package: &Package) -> Result<()> {
        self.script("rm -rf incoming && mkdir -m 700 incoming")?;
        let folder = format!("{}/incoming", self.dir);
        package.send(&self.shell, self.name(), files, &folder).context("cannot copy the settings")?;
        let moves = files.iter().map(|file| format!("mv -f incoming/{0} {0} || exit 1\n", file.display()));
        let moves: String = moves.collect();
        self.script(&format!("{}{moves}rm -rf incoming", check_ownership("incoming"))).map(drop)
    }

    /// Returns the flags of a daemon on this machine.
    fn flags(&self, daemon: &str) -> String {
        let Host { name, rack, addr, role } = &self.host;
        let dir = &self.dir;
        let mut flags = vec![format!(
            "--config {dir}/fermata.toml --ready-file {dir}/run/{daemon}.ready{}",
            self.data.dir_flags(daemon)
        )];
        if *role == MachineRole::Node {
            flags.push(format!("--node {name} --rack {rack}"));
            if addr != name {
                let port = self.ports[usize::from(daemon == "tasktracker")];
                flags.push(format!("--listen {addr}:{port}"));
            }
        }
        if let Some(Member { id, address, others, is_founder, .. }) = self.member(daemon) {
            flags.push(format!("--member {id} --advertise {address}"));
            if addr != name {
                flags.push(format!("--listen {address}"));
            }
            if !is_founder {
                flags.push(format!("--join {}", others.join(",")));
            }
        }
        flags.join(" ")
    }

    /// Returns a master of this machine as a member of its group; `None` if it has no group.
    pub fn member(&self, daemon: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.daemon == daemon)
    }

    /// Returns a branch of the start script that refuses empty data folders if they had data
    /// before.
    fn check_formatted(&self, daemon: &str) -> String {
        if self.format || !self.formatted.contains(&daemon) {
            return String::new();
        }
        let (dirs, empty, name) =
            (self.data.of_daemon(daemon).join(" and "), self.data.emptiness_test(daemon), self.name());
        let lost = match daemon {
            _ if self.member(daemon).is_some() => "or let it get everything from the other masters",
            "namenode" => "restore the folder from a backup, or give up all files of the cluster",
            "jobtracker" => "restore the folder from a backup, or give up all jobs",
            _ => "or start with empty disks",
        };
        format!(
            "elif {empty}; then
  no=\"$no $x\"
  echo \"$x is not started: {dirs} had data and now has none: mount the disk, {lost} with --format {name}\" >&2
"
        )
    }

    /// Returns shell commands that declare the data folders of a DataNode new if the operator has
    /// confirmed it. Otherwise the NameNode refuses a DataNode that had blocks. If only some of the
    /// folders are empty, nothing is declared, because their disks may be missing.
    fn declare_new(&self, daemon: &str) -> String {
        if !self.format || daemon != "datanode" {
            return String::new();
        }
        let (dirs, unjoined) = (self.data.of_daemon(daemon).join(" "), self.data.unjoined_test());
        format!("  if {unjoined}; then for f in {dirs}; do mkdir -p $f && : > $f/NEW; done; fi\n")
    }

    /// Returns the daemons that have data.
    pub fn daemons_with_data(&self) -> Result<Vec<&'static str>> {
        let daemons = self.host.role.daemons();
        let is_empty = |daemon: &str| match daemon {
            "datanode" => self.data.unjoined_test(),
            _ => self.data.emptiness_test(daemon),
        };
        let script = daemons.map(|daemon| format!("{{ {}; }} || echo {daemon}\n", is_empty(daemon)));
        let output = self.script(&script.concat())?;
        Ok(daemons.into_iter().filter(|daemon| output.lines().any(|line| line == *daemon)).collect())
    }

    /// Starts the daemons that are not running, and waits until all are ready. If one daemon fails,
    /// the others are still started.
    pub fn start(&self, daemons: &[&str]) -> Result<Vec<DaemonStatus>> {
        let (bin, name) = (&self.bin, self.name());
        let begin = |daemon: &&str| {
            format!(
                "x={daemon}
if alive $x; then :
elif {taken}; then
  no=\"$no $x\"
  echo \"$x is not started: $other belongs to cluster $(cat $other/CLUSTER): name another folder in the settings\" >&2
{refuse}else
{new}  rm -f run/$x.ready
  from > run/$x.from
  FERMATA_HOST={name} setsid {bin}/$x {flags} </dev/null >>logs/$x.log 2>&1 &
  echo $! > run/$x.pid
  i=0
  # Wait until setsid has become the daemon.
  until alive $x || [ $i -ge 20 ]; do i=$((i+1)); sleep 0.05; done
fi
",
                taken = self.data.foreign_folder_test(&self.dir, daemon),
                refuse = self.check_formatted(daemon),
                new = self.declare_new(daemon),
                flags = self.flags(daemon)
            )
        };
        let begin: String = daemons.iter().map(begin).collect();
        let mark = |daemon: &&str| format!("{daemon}) {};;\n", self.data.mark_script(&self.dir, daemon));
        let marks: Vec<String> = daemons.iter().map(mark).collect();
        let every = self.host.role.daemons().join(" ");
        let script = format!(
            "runs=; for x in {every}; do if alive $x; then runs=1; fi; done
if [ -z \"$runs\" ] && [ -e bin.new/STAMP ]; then
  rm -rf bin.old && mv bin bin.old && mv bin.new bin && rm -rf bin.old || exit 1
fi
no=
{begin}i=0; bad=$no
for x in {all}; do
  case \"$no \" in *\" $x \"*) continue;; esac
  while alive $x && [ ! -e run/$x.ready ] && [ $i -lt {ticks} ]; do i=$((i+1)); sleep 0.1; done
  if ! alive $x; then bad=1; echo \"$x did not start: $(tail -n 1 logs/$x.log)\" >&2
  elif [ ! -e run/$x.ready ]; then
    bad=1; echo \"$x is running but not ready after {READY_TIMEOUT} s: $(tail -n 1 logs/$x.log)\" >&2
  else
    case $x in
{marks}    esac
    print_state $x
  fi
done
[ -z \"$bad\" ]
",
            all = daemons.join(" "),
            marks = marks.concat(),
            ticks = READY_TIMEOUT * 10
        );
        let output = self.script(&script)?;
        parse_statuses(daemons, &output)
    }

    /// Stops a daemon, also a frozen one, and waits until it has ended. Returns whether it was
    /// running.
    pub fn stop(&self, daemon: &str) -> Result<bool> {
        let script = format!(
            "x={daemon}
alive $x || {{ rm -f run/$x.pid run/$x.ready; exit 0; }}
kill $p; kill -CONT $p
i=0
while alive $x; do
  [ $i -lt {kill} ] || kill -KILL $p
  [ $i -lt {give_up} ] || {{ echo \"$x (pid $p) cannot be stopped\" >&2; exit 1; }}
  i=$((i+1)); sleep 0.1
done
rm -f run/$x.pid run/$x.ready
echo stopped
",
            kill = KILL_TIMEOUT * 10,
            give_up = EXIT_TIMEOUT * 10
        );
        let output = self.shell.script(self.name(), &self.in_remote_folder("exit 0", &script));
        Ok(output.with_context(|| format!("cannot stop {daemon}"))?.contains("stopped"))
    }

    /// Sends a signal to a daemon. Returns its PID if it is running.
    pub fn signal(&self, daemon: &str, signal: &str) -> Result<Option<u32>> {
        let output = self.script(&format!("alive {daemon} || exit 0\nkill -{signal} $p && echo $p\n"))?;
        Ok(output.trim().parse().ok())
    }

    /// Returns the states of the daemons of this machine.
    pub fn daemon_statuses(&self) -> Result<Vec<DaemonStatus>> {
        let daemons = self.host.role.daemons();
        let script: String = daemons.map(|daemon| format!("print_state {daemon}\n")).concat();
        let without = format!("{}exit 0", "echo absent; ".repeat(daemons.len()));
        let output = self.shell.script(self.name(), &self.in_remote_folder(&without, &script))?;
        parse_statuses(&daemons, &output)
    }

    /// Returns the last lines of the log of a daemon.
    pub fn log(&self, daemon: &str, lines: u32) -> Result<String> {
        // Include the previous log: the current one may have just been started.
        let all = format!("logs/{daemon}.log.1 logs/{daemon}.log");
        self.script(&format!("[ -e logs/{daemon}.log ] && cat {all} 2>/dev/null | tail -n {lines}"))
            .with_context(|| format!("{daemon} has no log on this machine"))
    }

    /// Removes everything that mrctl has created on the machine. The remote folder is removed only
    /// if it is then empty: `--remote-dir` may be the wrong folder. Data folders without the mark
    /// of this cluster are kept, and an error names them.
    pub fn purge(&self) -> Result<()> {
        let elsewhere = self.data.purge_script(&self.dir, &self.host.role.daemons());
        let ours = "cd $dir 2>/dev/null || exit 0
[ -n \"$c\" ] || [ ! -e fermata.toml ] || { echo \"$dir has no cluster ID: delete it by hand\" >&2; exit 1; }
";
        let rest = "cd $dir || exit 1
all=\"bin bin.old bin.new incoming run logs data security fermata.toml secret revoked SETTINGS\"
# Tasks may have left folders without permissions.
rm -rf $all 2>/dev/null || { chmod -R u+rwx data; rm -rf $all; } && rm -f CLUSTER || exit 1
cd / && rmdir $dir 2>/dev/null || echo kept
[ -z \"$left\" ]";
        let script = self
            .with_ownership_check(&format!("{ours}left=\nif [ -n \"$c\" ]; then :\n{elsewhere}fi\n{rest}"));
        self.shell.script(self.name(), &script).map(drop)
    }
}

/// Returns shell commands that check, before copied files are moved into place, that no other
/// account owns them. A remote `tar` that does not support our flags may have changed their owner.
fn check_ownership(what: &str) -> String {
    format!(
        "if theirs {what}; then
  echo \"the copy in $dir/{what} belongs to another account: the remote tar must support --no-same-owner\" >&2; exit 1
fi
"
    )
}

/// Parses the output of a script: one line per daemon.
fn parse_statuses(daemons: &[&str], output: &str) -> Result<Vec<DaemonStatus>> {
    let all: Vec<DaemonStatus> =
        daemons.iter().zip(output.lines()).map(|(daemon, line)| parse_status(daemon, line)).collect();
    if all.len() != daemons.len() {
        bail!("cannot parse the states of its daemons: {output:?}");
    }
    Ok(all)
}

/// Parses a line `STATE [PID new|old [ADDR]]`.
fn parse_status(daemon: &str, line: &str) -> DaemonStatus {
    let mut text = line.split_whitespace();
    let state = text.next().unwrap_or("absent").to_owned();
    let pid = text.next().and_then(|word| word.parse().ok());
    let outdated = text.next() == Some("old");
    let addr = text.next().map(str::to_owned);
    DaemonStatus { daemon: daemon.to_owned(), state, pid, addr, outdated, reported: None }
}

#[cfg(test)]
mod tests;
