//! Where the daemons of a machine keep their data: below its folder of ours, or where the settings say.

use super::fleet::remote_path;
use crate::output::Usage;
use anyhow::Result;
use daemon::config::Config;
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// Each daemon with its folders; of the cluster as a whole, or of one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DataDirs(Vec<(&'static str, Vec<String>)>);

/// The file by which a data folder that is in use is known from an empty one, and all that a daemon puts into its folder.
const MASTER: (&str, &str) =
    ("VERSION", "LOCK VERSION VERSION.tmp NEW NEW.tmp RECOVERING RECOVERING.tmp edits journal history");
const DATANODE: (&str, &str) = ("VERSION", "LOCK VERSION VERSION.tmp VOLUMES NEW local.sock current tmp bad");
const TASKTRACKER: (&str, &str) = ("incarnation", "LOCK incarnation VOLUMES NEW warm printed jobs logs");

fn about(daemon: &str) -> (&'static str, &'static str) {
    match daemon {
        "datanode" => DATANODE,
        "tasktracker" => TASKTRACKER,
        _ => MASTER,
    }
}

impl DataDirs {
    /// As the settings have them; a setting that is not set stands for `data/DAEMON` below the machine's folder.
    pub(crate) fn of(config: &Config) -> Result<Self> {
        let usual = Config::default();
        let namenode = (vec![config.namenode.dir.clone()], vec![usual.namenode.dir]);
        let jobtracker = (vec![config.jobtracker.dir.clone()], vec![usual.jobtracker.dir]);
        let datanode = (config.datanode.dirs.clone(), usual.datanode.dirs);
        let tasktracker = (config.tasktracker.dirs.clone(), usual.tasktracker.dirs);
        let all = [
            ("namenode", "namenode.dir", namenode),
            ("jobtracker", "jobtracker.dir", jobtracker),
            ("datanode", "datanode.dirs", datanode),
            ("tasktracker", "tasktracker.dirs", tasktracker),
        ];
        let all = all.into_iter().map(|(daemon, key, (set, usual))| {
            let dirs = if set == usual { Ok(vec![format!("data/{daemon}")]) } else { folders(key, &set) };
            dirs.map(|dirs| (daemon, dirs))
        });
        all.collect::<Result<_>>().map(Self)
    }

    /// Of a machine whose folder of ours is `dir`.
    pub(crate) fn on(&self, dir: &str, host: &str) -> Self {
        let place = |path: &String| {
            let path = path.replace("{host}", host);
            if path.starts_with('/') { path } else { format!("{dir}/{path}") }
        };
        Self(self.0.iter().map(|(daemon, dirs)| (*daemon, dirs.iter().map(place).collect())).collect())
    }

    /// The folders of a daemon.
    pub(crate) fn of_daemon(&self, daemon: &str) -> &[String] {
        self.0.iter().find(|(name, _)| *name == daemon).map_or(&[], |(_, dirs)| dirs)
    }

    /// `--dir` for each of them.
    pub(super) fn flags(&self, daemon: &str) -> String {
        self.of_daemon(daemon).iter().flat_map(|dir| [" --dir ", dir]).collect()
    }

    /// A shell's test whether none of a daemon's folders is in use.
    pub(super) fn is_empty(&self, daemon: &str) -> String {
        let mark = about(daemon).0;
        let tests: Vec<String> =
            self.of_daemon(daemon).iter().map(|dir| format!("[ ! -e {dir}/{mark} ]")).collect();
        tests.join(" && ")
    }

    /// Commands that delete what daemons keep in folders outside `dir`. A folder goes if nothing else is in it.
    pub(super) fn purge(&self, dir: &str, daemons: &[&str]) -> String {
        let mut script = String::new();
        for daemon in daemons {
            let names = about(daemon).1;
            for folder in
                self.of_daemon(daemon).iter().filter(|folder| !folder.starts_with(&format!("{dir}/data/")))
            {
                _ = write!(
                    script,
                    "if cd {folder} 2>/dev/null; then\n  \
                     rm -rf {names} 2>/dev/null || {{ chmod -R u+rwx .; rm -rf {names}; }} || exit 1\n  \
                     cd / && rmdir {folder} 2>/dev/null\nfi\n"
                );
            }
        }
        script
    }
}

/// Folders as they are written in the settings, which a remote shell takes as they are.
fn folders(key: &str, dirs: &[PathBuf]) -> Result<Vec<String>> {
    let text = |dir: &PathBuf| {
        let path = dir.to_string_lossy();
        // A relative one is below the machine's folder.
        let checked = remote_path(&Path::new("/").join(dir).to_string_lossy());
        checked.map_err(|error| Usage(format!("{key}: {error}")))?;
        Ok(path.trim_end_matches('/').to_owned())
    };
    dirs.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(change: impl Fn(&mut Config)) -> Result<DataDirs> {
        let mut config = Config::default();
        change(&mut config);
        DataDirs::of(&config)
    }

    #[test]
    fn the_settings_say_where_data_lies() {
        let usual = dirs(|_| {}).unwrap().on("/var/tmp/f", "n1");
        assert_eq!(usual.of_daemon("datanode"), ["/var/tmp/f/data/datanode"]);
        assert_eq!(usual.of_daemon("namenode"), ["/var/tmp/f/data/namenode"]);
        assert_eq!(usual.purge("/var/tmp/f", &["datanode", "tasktracker"]), "");
        let set = dirs(|config| config.datanode.dirs = vec!["/d1/{host}/dn".into(), "more/".into()]);
        let set = set.unwrap().on("/f", "n1");
        assert_eq!(set.flags("datanode"), " --dir /d1/n1/dn --dir /f/more");
        assert_eq!(set.is_empty("datanode"), "[ ! -e /d1/n1/dn/VERSION ] && [ ! -e /f/more/VERSION ]");
        let purge = set.purge("/f", &["datanode"]);
        assert!(purge.contains("cd /d1/n1/dn ") && purge.contains("rmdir /f/more "), "{purge}");
        for bad in ["/d 1", "/d;x", "/../x", "$HOME/x"] {
            let error = dirs(|config| config.datanode.dirs = vec![bad.into()]).unwrap_err().to_string();
            assert!(error.starts_with("datanode.dirs: "), "{error}");
        }
    }
}
