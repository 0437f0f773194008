//! The daemons of one machine: installed, started, stopped, looked at.
//!
//! A daemon is known by its pid file, and taken for ours only if the process of that number was started with our
//! ready file: numbers are given out again.

use super::{
    hosts::{Host, Part},
    package::{Package, Programs},
    shell::Shell,
};
use anyhow::{Context, Result};
use serde::Serialize;

/// Seconds that a daemon has to serve, and to end.
const READY_WITHIN: u32 = 60;
const END_WITHIN: u32 = 15;

/// Before every script: where we are, and whether a daemon runs (its number in `$p`).
const PRELUDE: &str = "\
cd \"$dir\" || exit 1
alive() { p=$(cat \"run/$1.pid\" 2>/dev/null) && [ -n \"$p\" ] && grep -qaF -- \"$dir/run/$1.ready\" \"/proc/$p/cmdline\" 2>/dev/null; }
";

/// A machine and how to reach it.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) shell: Shell,
    /// The folder of ours there.
    pub(crate) dir: String,
    /// Where the programs are there.
    pub(crate) bin: String,
    /// Ports of the DataNode and the TaskTracker.
    pub(crate) ports: [u16; 2],
}

/// How a daemon stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Standing {
    pub(crate) daemon: String,
    /// running, dead (its pid file is there), absent
    pub(crate) state: String,
    pub(crate) pid: Option<u32>,
    pub(crate) addr: Option<String>,
}

impl Machine {
    fn name(&self) -> &str {
        &self.host.name
    }

    /// Runs a script in its folder of ours; `alive DAEMON` is there, and `$p` its number.
    pub(crate) fn script(&self, script: &str) -> Result<String> {
        self.shell.script(self.name(), &format!("dir={}\n{PRELUDE}{script}", self.dir))
    }

    /// Makes the folder and copies what is not there yet; says what was copied.
    pub(crate) fn install(&self, programs: Option<&Programs>, package: &Package) -> Result<&'static str> {
        // Tasks may have another account: they come through to their folders and programs, and read nothing else. A
        // folder that somebody else has made before us is not ours to put keys into.
        let make = format!(
            "dir={}
umask 066
mkdir -p $dir || exit 1
if [ -L $dir ] || [ ! -O $dir ] || [ -n \"$(find $dir -prune \\( -perm -020 -o -perm -002 \\))\" ]; then
  echo \"$dir is another's, or others can write to it: delete it, or choose another with --remote-dir\" >&2
  exit 1
fi
mkdir -p $dir/bin $dir/run $dir/logs $dir/data $dir/security || exit 1
chmod 711 $dir $dir/bin $dir/data && chmod 700 $dir/run $dir/logs $dir/security || exit 1
cat $dir/bin/STAMP 2>/dev/null || true
",
            self.dir
        );
        let there = self.shell.script(self.name(), &make)?;
        package
            .send(&self.shell, self.name(), self.host.part, &self.dir)
            .context("cannot copy the settings")?;
        let Some(programs) = programs else { return Ok("settings copied") };
        let stamp = programs.stamp(self.host.part)?;
        if there.trim() == stamp {
            return Ok("programs are there");
        }
        // A running program cannot be written over; what is moved away can.
        let aside = "rm -rf bin.old; if [ -e bin/STAMP ]; then mv bin bin.old && mkdir -m 711 bin; fi";
        self.script(aside)?;
        let bin = format!("{}/bin", self.dir);
        programs.send(&self.shell, self.name(), self.host.part, &bin).context("cannot copy the programs")?;
        self.script(&format!("rm -rf bin.old; chmod 755 bin/*; echo '{stamp}' > bin/STAMP"))?;
        Ok("programs copied")
    }

    /// Flags that only this machine's daemons have.
    fn flags(&self, daemon: &str) -> String {
        let Host { name, rack, addr, part } = &self.host;
        let dir = &self.dir;
        let mut flags = vec![format!(
            "--config {dir}/fermata.toml --ready-file {dir}/run/{daemon}.ready --dir {dir}/data/{daemon}"
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

    /// Starts a daemon unless it runs, and waits until it serves.
    pub(crate) fn start(&self, daemon: &str) -> Result<Standing> {
        let (bin, flags, name) = (&self.bin, self.flags(daemon), self.name());
        let script = format!(
            "x={daemon}
if ! alive $x; then
  rm -f run/$x.ready
  FERMATA_HOST={name} setsid {bin}/$x {flags} </dev/null >>logs/$x.log 2>&1 &
  echo $! > run/$x.pid
  i=0
  # Until it has become the daemon.
  until alive $x || [ $i -ge 20 ]; do i=$((i+1)); sleep 0.05; done
fi
i=0
until [ -e run/$x.ready ]; do
  alive $x || {{ tail -n 1 logs/$x.log >&2; exit 1; }}
  [ $i -lt {ticks} ] || {{ echo \"$x does not serve after {READY_WITHIN} s: see $dir/logs/$x.log\" >&2; exit 1; }}
  i=$((i+1)); sleep 0.1
done
alive $x || {{ tail -n 1 logs/$x.log >&2; exit 1; }}
echo \"running $p $(cat run/$x.ready)\"
",
            ticks = READY_WITHIN * 10
        );
        let said = self.script(&script).with_context(|| format!("{daemon} does not start"))?;
        Ok(standing(daemon, &said))
    }

    /// Ends a daemon if it runs, and waits until it is gone.
    pub(crate) fn stop(&self, daemon: &str) -> Result<bool> {
        let script = format!(
            "x={daemon}
alive $x || {{ rm -f run/$x.pid run/$x.ready; exit 0; }}
kill $p
i=0
while alive $x; do
  [ $i -lt {ticks} ] || kill -KILL $p
  i=$((i+1)); sleep 0.1
done
rm -f run/$x.pid run/$x.ready
echo stopped
",
            ticks = END_WITHIN * 10
        );
        Ok(self.script(&script).with_context(|| format!("{daemon} does not end"))?.contains("stopped"))
    }

    /// Sends a signal to a daemon that runs.
    pub(crate) fn signal(&self, daemon: &str, signal: &str) -> Result<u32> {
        let script = format!(
            "alive {daemon} || {{ echo '{daemon} does not run' >&2; exit 1; }}\nkill -{signal} $p && echo $p\n"
        );
        Ok(self.script(&script)?.trim().parse().unwrap_or(0))
    }

    /// How its daemons stand.
    pub(crate) fn look(&self) -> Result<Vec<Standing>> {
        let each = "if alive $x; then echo \"running $p $(cat run/$x.ready 2>/dev/null)\"; \
                    elif [ -e run/$x.pid ]; then echo dead; else echo absent; fi";
        let script: String = self.host.part.daemons().map(|daemon| format!("x={daemon}; {each}\n")).concat();
        let said = self.script(&script)?;
        Ok(self
            .host
            .part
            .daemons()
            .iter()
            .zip(said.lines())
            .map(|(daemon, line)| standing(daemon, line))
            .collect())
    }

    /// The end of a daemon's log.
    pub(crate) fn log(&self, daemon: &str, lines: u32) -> Result<String> {
        self.script(&format!("tail -n {lines} logs/{daemon}.log"))
    }

    /// Removes everything of ours there. The folder goes if nothing else is in it: somebody may have meant another.
    pub(crate) fn purge(&self) -> Result<()> {
        let script = format!(
            "cd {dir} 2>/dev/null || exit 0
rm -rf bin bin.old run logs data security fermata.toml secret revoked
cd / && rmdir {dir} 2>/dev/null || echo kept",
            dir = self.dir
        );
        self.shell.script(self.name(), &script).map(drop)
    }
}

fn standing(daemon: &str, line: &str) -> Standing {
    let mut words = line.split_whitespace();
    let state = words.next().unwrap_or("absent").to_owned();
    let pid = words.next().and_then(|word| word.parse().ok());
    Standing { daemon: daemon.to_owned(), state, pid, addr: words.next().map(str::to_owned) }
}
