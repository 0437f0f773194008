//! The daemons of one machine: installed, started, stopped, looked at.
//!
//! A folder there is of one cluster, whose mark is in its file `CLUSTER`: no script does anything in another's. A
//! daemon is known by its pid file, and taken for ours only if the process of that number was started with our ready
//! file: numbers are given out again. Beside it lies what it was started from: settings or programs that came later are
//! not what runs.
//!
//! Nothing is written in the place of what daemons use. Settings come to `incoming` and are moved from there; programs
//! come to `bin.new`, which takes the place of `bin` when daemons are started and none of the machine's runs: a tracker
//! starts its tasks from there all the time.

use super::{
    data::DataDirs,
    hosts::{Host, Part},
    package::{Package, Programs},
    shell::{ScriptTimeouts, Shell},
};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::{path::PathBuf, time::Duration};

/// Seconds that daemons have to serve, and one to end before it is killed, and then to be gone.
const READY_TIMEOUT: u32 = 60;
const END_TIMEOUT: u32 = 15;
const EXIT_TIMEOUT: u32 = 20;

/// Before every script: whether the folder is of this cluster. `$c` is the mark that is there. And whether something,
/// or what is below it, is of another account than ours.
const OURS: &str = "\
theirs() { [ -n \"$(find $1 ! -user $(id -u) 2>/dev/null | head -n 1)\" ]; }
ours() {
  c=$(cat \"$dir/CLUSTER\" 2>/dev/null)
  if [ -n \"$c\" ] && [ \"$c\" != \"$id\" ]; then
    echo \"$dir is of the cluster $c, and this one is $id: choose another folder with --remote-dir\" >&2
    exit 1
  fi
}
ours
";

/// Before a script in the folder: whether a daemon runs (its number in `$p`), what it is started from, what it would be
/// if all were started anew, and how it stands.
const PRELUDE: &str = "\
alive() { p=$(cat \"run/$1.pid\" 2>/dev/null) && [ -n \"$p\" ] && grep -qaF -- \"$dir/run/$1.ready\" \"/proc/$p/cmdline\" 2>/dev/null; }
from() { cat SETTINGS bin/STAMP 2>/dev/null; }
anew() { if [ -e bin.new/STAMP ]; then cat SETTINGS bin.new/STAMP 2>/dev/null; else from; fi; }
stands() {
  if alive $1; then
    s=running; f=new
    case $(sed -n 's/^State:[^A-Za-z]*\\(.\\).*/\\1/p' /proc/$p/status 2>/dev/null) in T|t) s=frozen;; esac
    [ \"$(cat run/$1.from 2>/dev/null)\" = \"$(anew)\" ] || f=old
    echo \"$s $p $f $(cat run/$1.ready 2>/dev/null)\"
  elif [ -e run/$1.pid ]; then echo dead; else echo absent; fi
}
";

/// A machine and how to reach it.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) shell: Shell,
    /// The cluster's mark.
    pub(crate) cluster: String,
    /// The folder of ours there.
    pub(crate) dir: String,
    /// Where the programs are there.
    pub(crate) bin: String,
    /// Ports of the DataNode and the TaskTracker.
    pub(crate) ports: [u16; 2],
    /// Where its daemons keep their data.
    pub(crate) data: DataDirs,
    /// Whether its data folders have been created before: empty ones are then refused.
    pub(crate) formatted: bool,
}

/// How a daemon stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct DaemonStatus {
    pub(crate) daemon: String,
    /// running, frozen (by a signal), dead (its pid file is there), absent
    pub(crate) state: String,
    pub(crate) pid: Option<u32>,
    pub(crate) addr: Option<String>,
    /// Whether it was started from other settings or programs than are there now.
    pub(crate) outdated: bool,
    /// What its master says of it, if that was asked; of a master, whether it answers.
    pub(crate) reported: Option<String>,
}

/// Makes the folder, and says what is there.
const MAKE: &str = "umask 066
mkdir -p $dir || exit 1
if [ -L $dir ] || [ ! -O $dir ] || [ -n \"$(find $dir -prune \\( -perm -020 -o -perm -002 \\))\" ]; then
  echo \"$dir is another's, or others can write to it: delete it, or choose another with --remote-dir\" >&2
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

/// What to do where there is no folder of ours.
const NO_FOLDER: &str = "echo \"there is no $dir: 'mrctl cluster up' makes it\" >&2; exit 1";

impl Machine {
    fn name(&self) -> &str {
        &self.host.name
    }

    /// A script that begins by making sure whose folder it is.
    fn guarded(&self, script: &str) -> String {
        format!("dir={}\nid={}\n{OURS}{script}", self.dir, self.cluster)
    }

    fn inside(&self, without: &str, script: &str) -> String {
        self.guarded(&format!("cd \"$dir\" 2>/dev/null || {{ {without}; }}\n{PRELUDE}{script}"))
    }

    /// Runs a script in its folder of ours; `alive DAEMON` is there, and `$p` its number.
    pub(crate) fn script(&self, script: &str) -> Result<String> {
        self.shell.script(self.name(), &self.inside(NO_FOLDER, script))
    }

    /// The same, of one that takes long.
    pub(crate) fn long_script(&self, takes: Duration, script: &str) -> Result<String> {
        let script = self.inside(NO_FOLDER, script);
        self.shell.script_with_timeout(ScriptTimeouts::of_script(takes), self.name(), &script)
    }

    /// Makes the folder and copies what is not there yet; says what was copied.
    pub(crate) fn install(&self, programs: Option<&Programs>, package: &Package) -> Result<&'static str> {
        // Tasks may have another account: they come through to their folders and programs, and read nothing else. A
        // folder that somebody else has made before us is not ours to put keys into. Of two clusters that come at once,
        // one has it. Programs that were another's, who could have written to them, are brought again.
        let make = self.guarded(MAKE);
        let existing = self.shell.script(self.name(), &make)?;
        let is_there =
            |what: &str, stamp: &str| existing.lines().any(|line| line == format!("{what} {stamp}"));
        let part = self.host.part;
        let settings = package.stamp(part)?;
        self.take(&package.files_for(part), package)?;
        let copied = if is_there("settings", &settings) {
            "settings are there"
        } else {
            self.script(&format!("echo {settings} > SETTINGS"))?;
            "settings copied"
        };
        let Some(programs) = programs else { return Ok(copied) };
        let stamp = programs.stamp(part)?;
        let runs = is_there("programs", &stamp);
        if runs || is_there("brought", &stamp) {
            if runs {
                self.script("rm -rf bin.new")?;
            }
            return Ok(if copied == "settings copied" { copied } else { "programs and settings are there" });
        }
        self.script("rm -rf bin.new && mkdir -m 711 bin.new")?;
        let folder = format!("{}/bin.new", self.dir);
        programs.send(&self.shell, self.name(), part, &folder).context("cannot copy the programs")?;
        // Last: what has no stamp is not whole.
        self.script(&format!(
            "{}chmod 755 bin.new/* && echo '{stamp}' > bin.new/STAMP",
            check_ownership("bin.new")
        ))?;
        Ok("programs and settings copied")
    }

    /// Copies files of the cluster's folder. Each is there whole, or as it was: daemons may be reading it.
    pub(crate) fn take(&self, files: &[PathBuf], package: &Package) -> Result<()> {
        self.script("rm -rf incoming && mkdir -m 700 incoming")?;
        let folder = format!("{}/incoming", self.dir);
        package.send(&self.shell, self.name(), files, &folder).context("cannot copy the settings")?;
        let moves = files.iter().map(|file| format!("mv -f incoming/{0} {0} || exit 1\n", file.display()));
        let moves: String = moves.collect();
        self.script(&format!("{}{moves}rm -rf incoming", check_ownership("incoming"))).map(drop)
    }

    /// Flags that only this machine's daemons have.
    fn flags(&self, daemon: &str) -> String {
        let Host { name, rack, addr, part } = &self.host;
        let dir = &self.dir;
        let mut flags = vec![format!(
            "--config {dir}/fermata.toml --ready-file {dir}/run/{daemon}.ready{}",
            self.data.flags(daemon)
        )];
        if *part == Part::Node {
            flags.push(format!("--node {name} --rack {rack}"));
            if addr != name {
                let port = self.ports[usize::from(daemon == "tasktracker")];
                flags.push(format!("--listen {addr}:{port}"));
            }
        }
        flags.join(" ")
    }

    /// A branch of the script that starts a daemon: empty data folders are refused where there was data before.
    fn check_formatted(&self, daemon: &str) -> String {
        if !self.formatted {
            return String::new();
        }
        let (dirs, empty, name) =
            (self.data.of_daemon(daemon).join(" and "), self.data.is_empty(daemon), self.name());
        let lost = match daemon {
            "namenode" => "restore the folder from a backup, or give up all files of the cluster",
            "jobtracker" => "restore the folder from a backup, or give up all jobs",
            _ => "or begin with empty disks",
        };
        format!(
            "elif {empty}; then
  no=\"$no $x\"
  echo \"$x is not started: {dirs} had data and now has none: mount the disk, {lost} with --format {name}\" >&2
"
        )
    }

    /// Starts daemons that do not run, and waits until all serve. One that does not keeps no other from it.
    pub(crate) fn start(&self, daemons: &[&str]) -> Result<Vec<DaemonStatus>> {
        let (bin, name) = (&self.bin, self.name());
        let begin = |daemon: &&str| {
            format!(
                "x={daemon}
if alive $x; then :
elif {taken}; then
  no=\"$no $x\"
  echo \"$x is not started: $other is of the cluster $(cat $other/CLUSTER): name another folder in the settings\" >&2
{refuse}else
  rm -f run/$x.ready
  from > run/$x.from
  FERMATA_HOST={name} setsid {bin}/$x {flags} </dev/null >>logs/$x.log 2>&1 &
  echo $! > run/$x.pid
  i=0
  # Until it has become the daemon.
  until alive $x || [ $i -ge 20 ]; do i=$((i+1)); sleep 0.05; done
fi
",
                taken = self.data.is_taken(&self.dir, daemon),
                refuse = self.check_formatted(daemon),
                flags = self.flags(daemon)
            )
        };
        let begin: String = daemons.iter().map(begin).collect();
        let mark = |daemon: &&str| format!("{daemon}) {};;\n", self.data.mark(&self.dir, daemon));
        let marks: Vec<String> = daemons.iter().map(mark).collect();
        let every = self.host.part.daemons().join(" ");
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
  if ! alive $x; then bad=1; echo \"$x does not start: $(tail -n 1 logs/$x.log)\" >&2
  elif [ ! -e run/$x.ready ]; then
    bad=1; echo \"$x runs, and does not serve after {READY_TIMEOUT} s: $(tail -n 1 logs/$x.log)\" >&2
  else
    case $x in
{marks}    esac
    stands $x
  fi
done
[ -z \"$bad\" ]
",
            all = daemons.join(" "),
            marks = marks.concat(),
            ticks = READY_TIMEOUT * 10
        );
        let paper_figures = self.script(&script)?;
        statuses(daemons, &paper_figures)
    }

    /// Ends a daemon if it runs, a frozen one too, and waits until it is gone.
    pub(crate) fn stop(&self, daemon: &str) -> Result<bool> {
        let script = format!(
            "x={daemon}
alive $x || {{ rm -f run/$x.pid run/$x.ready; exit 0; }}
kill $p; kill -CONT $p
i=0
while alive $x; do
  [ $i -lt {kill} ] || kill -KILL $p
  [ $i -lt {give_up} ] || {{ echo \"$x (pid $p) cannot be ended\" >&2; exit 1; }}
  i=$((i+1)); sleep 0.1
done
rm -f run/$x.pid run/$x.ready
echo stopped
",
            kill = END_TIMEOUT * 10,
            give_up = EXIT_TIMEOUT * 10
        );
        let paper_figures = self.shell.script(self.name(), &self.inside("exit 0", &script));
        Ok(paper_figures.with_context(|| format!("{daemon} does not end"))?.contains("stopped"))
    }

    /// Sends a signal to a daemon; its number, if it runs.
    pub(crate) fn signal(&self, daemon: &str, signal: &str) -> Result<Option<u32>> {
        let paper_figures =
            self.script(&format!("alive {daemon} || exit 0\nkill -{signal} $p && echo $p\n"))?;
        Ok(paper_figures.trim().parse().ok())
    }

    /// How its daemons stand.
    pub(crate) fn status_of(&self) -> Result<Vec<DaemonStatus>> {
        let daemons = self.host.part.daemons();
        let script: String = daemons.map(|daemon| format!("stands {daemon}\n")).concat();
        let without = format!("{}exit 0", "echo absent; ".repeat(daemons.len()));
        let paper_figures = self.shell.script(self.name(), &self.inside(&without, &script))?;
        statuses(&daemons, &paper_figures)
    }

    /// The end of a daemon's log.
    pub(crate) fn log(&self, daemon: &str, lines: u32) -> Result<String> {
        // The one before it, too: it may have been begun a moment ago.
        let all = format!("logs/{daemon}.log.1 logs/{daemon}.log");
        self.script(&format!("[ -e logs/{daemon}.log ] && cat {all} 2>/dev/null | tail -n {lines}"))
            .with_context(|| format!("{daemon} has no log there"))
    }

    /// Removes everything of ours there. The folder goes if nothing else is in it: somebody may have meant another. An
    /// error names data folders that are not marked as this cluster's: they stay.
    pub(crate) fn purge(&self) -> Result<()> {
        let elsewhere = self.data.purge(&self.dir, &self.host.part.daemons());
        let ours = "cd $dir 2>/dev/null || exit 0
[ -n \"$c\" ] || [ ! -e fermata.toml ] || { echo \"$dir does not say of which cluster it is: delete it by hand\" >&2; exit 1; }
";
        let rest = "cd $dir || exit 1
all=\"bin bin.old bin.new incoming run logs data security fermata.toml secret revoked SETTINGS\"
# Tasks may have left folders that they have closed.
rm -rf $all 2>/dev/null || { chmod -R u+rwx data; rm -rf $all; } && rm -f CLUSTER || exit 1
cd / && rmdir $dir 2>/dev/null || echo kept
[ -z \"$left\" ]";
        let script = self.guarded(&format!("{ours}left=\nif [ -n \"$c\" ]; then :\n{elsewhere}fi\n{rest}"));
        self.shell.script(self.name(), &script).map(drop)
    }
}

/// Before what has come takes its place: not every tar knows what ours is told.
fn check_ownership(what: &str) -> String {
    format!(
        "if theirs {what}; then
  echo \"what came to $dir/{what} belongs to another account: tar there must know --no-same-owner\" >&2; exit 1
fi
"
    )
}

/// A line for each daemon.
fn statuses(daemons: &[&str], paper_figures: &str) -> Result<Vec<DaemonStatus>> {
    let all: Vec<DaemonStatus> =
        daemons.iter().zip(paper_figures.lines()).map(|(daemon, line)| status(daemon, line)).collect();
    if all.len() != daemons.len() {
        bail!("it does not say how its daemons stand: {paper_figures:?}");
    }
    Ok(all)
}

/// `STATE [PID new|old [ADDR]]`
fn status(daemon: &str, line: &str) -> DaemonStatus {
    let mut text = line.split_whitespace();
    let state = text.next().unwrap_or("absent").to_owned();
    let pid = text.next().and_then(|word| word.parse().ok());
    let outdated = text.next() == Some("old");
    let addr = text.next().map(str::to_owned);
    DaemonStatus { daemon: daemon.to_owned(), state, pid, addr, outdated, reported: None }
}

#[cfg(test)]
mod tests;
