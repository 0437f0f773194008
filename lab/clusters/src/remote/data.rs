//! The data folders of the daemons of a machine: below the remote folder, or where the settings
//! say.

use super::shell::check_remote_path;
use anyhow::Result;
use daemon::config::Config;
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};
use view::output::Usage;

/// The data folders of each daemon: for the complete cluster (paths may contain `{host}`) or for
/// one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataDirs(Vec<(&'static str, Vec<String>)>);

/// The file with the ID of the cluster, in data folders outside the remote folder.
const MARK_FILE: &str = "CLUSTER";

/// For a master: the file that exists in every data folder in use, and the names of all files that
/// the daemon may create in a data folder, separated by spaces.
const MASTER_FILES: (&str, &str) = (
    "VERSION",
    "LOCK VERSION VERSION.tmp NEW NEW.tmp RECOVERING RECOVERING.tmp LEFT-GROUP LEFT-GROUP.tmp edits edits.replaced-* \
                 journal journal.replaced-* history",
);
/// Like [`MASTER_FILES`], for a DataNode.
const DATANODE_FILES: (&str, &str) =
    ("VERSION", "LOCK VERSION VERSION.tmp VOLUMES NEW local.sock current tmp bad");
/// Like [`MASTER_FILES`], for a TaskTracker.
const TASKTRACKER_FILES: (&str, &str) =
    ("incarnation", "LOCK incarnation VOLUMES NEW warm process-logs jobs logs");

fn files_of(daemon: &str) -> (&'static str, &'static str) {
    match daemon {
        "datanode" => DATANODE_FILES,
        "tasktracker" => TASKTRACKER_FILES,
        _ => MASTER_FILES,
    }
}

impl DataDirs {
    /// Returns the folders from the settings. A setting with its default value means `data/DAEMON`
    /// below the remote folder.
    pub fn of(config: &Config) -> Result<Self> {
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

    /// Returns the folders on the machine `host` whose remote folder is `dir`.
    #[must_use]
    pub fn on_machine(&self, dir: &str, host: &str) -> Self {
        let place = |path: &String| {
            let path = path.replace("{host}", host);
            if path.starts_with('/') { path } else { format!("{dir}/{path}") }
        };
        Self(self.0.iter().map(|(daemon, dirs)| (*daemon, dirs.iter().map(place).collect())).collect())
    }

    /// Returns the folders of a daemon.
    pub fn of_daemon(&self, daemon: &str) -> &[String] {
        self.0.iter().find(|(name, _)| *name == daemon).map_or(&[], |(_, dirs)| dirs)
    }

    /// Returns a `--dir` flag for each folder of a daemon.
    pub(super) fn dir_flags(&self, daemon: &str) -> String {
        self.of_daemon(daemon).iter().flat_map(|dir| [" --dir ", dir]).collect()
    }

    /// Returns a shell test that succeeds if none of the folders of a daemon is in use.
    pub(super) fn emptiness_test(&self, daemon: &str) -> String {
        let mark = files_of(daemon).0;
        let tests: Vec<String> =
            self.of_daemon(daemon).iter().map(|dir| format!("[ ! -e {dir}/{mark} ]")).collect();
        tests.join(" && ")
    }

    /// Returns a shell test that succeeds if none of the folders of a DataNode belongs to a
    /// cluster. A DataNode that no NameNode has accepted yet has a `VERSION` file with an empty
    /// cluster ID.
    pub(super) fn unjoined_test(&self) -> String {
        let tests: Vec<String> = self
            .of_daemon("datanode")
            .iter()
            .map(|dir| format!("! grep -qs '^cluster_id = \"[^\"]' {dir}/VERSION"))
            .collect();
        tests.join(" && ")
    }

    /// Returns the folders of a daemon outside the remote folder `dir`. Everything in `dir` belongs
    /// to this cluster.
    fn folders_outside<'a>(&'a self, dir: &str, daemon: &str) -> impl Iterator<Item = &'a String> {
        let ours = format!("{dir}/data/");
        self.of_daemon(daemon).iter().filter(move |folder| !folder.starts_with(&ours))
    }

    /// Returns a shell test that succeeds if a folder of a daemon outside `dir` belongs to another
    /// cluster. It sets the variable `other` to that folder.
    pub(super) fn foreign_folder_test(&self, dir: &str, daemon: &str) -> String {
        let folders: String = self.folders_outside(dir, daemon).flat_map(|folder| [" ", folder]).collect();
        format!(
            "other=; for f in{folders}; do m=$(cat $f/{MARK_FILE} 2>/dev/null); \
             [ -z \"$m\" ] || [ \"$m\" = \"$id\" ] || other=\"$f\"; done; [ -n \"$other\" ]"
        )
    }

    /// Returns shell commands that mark the folders of a daemon outside `dir` as belonging to this
    /// cluster. They run after the daemon is ready, because it has then checked that the data
    /// belongs to it.
    pub(super) fn mark_script(&self, dir: &str, daemon: &str) -> String {
        let folders: String = self.folders_outside(dir, daemon).flat_map(|folder| [" ", folder]).collect();
        format!("for f in{folders}; do [ -e $f/{MARK_FILE} ] || echo $id > $f/{MARK_FILE}; done")
    }

    /// Returns shell commands that delete the files of daemons in folders outside `dir` that are
    /// marked as belonging to this cluster. A folder that is then empty is removed. A folder in use
    /// without the mark is kept, and the variable `left` is set.
    pub(super) fn purge_script(&self, dir: &str, daemons: &[&str]) -> String {
        let mut script = String::new();
        for daemon in daemons {
            let (used, names) = files_of(daemon);
            for folder in self.folders_outside(dir, daemon) {
                _ = write!(
                    script,
                    "if [ \"$(cat {folder}/{MARK_FILE} 2>/dev/null)\" = \"$id\" ]; then
  cd {folder} || exit 1
  rm -rf {names} 2>/dev/null || {{
    for x in {names}; do if [ -e $x ] && [ ! -L $x ]; then chmod -R u+rwx $x; fi; done
    rm -rf {names}
  }} && rm -f {MARK_FILE} || exit 1
  cd / && rmdir {folder} 2>/dev/null
elif [ -e {folder}/{used} ]; then
  left=1; echo \"{folder} stays: it is not marked as belonging to cluster $id (file {MARK_FILE}): delete it by hand\" >&2
fi
"
                );
            }
        }
        script
    }
}

/// Checks the folders of a setting: they must be safe as unquoted words of a remote shell.
fn folders(key: &str, dirs: &[PathBuf]) -> Result<Vec<String>> {
    let text = |dir: &PathBuf| {
        let path = dir.to_string_lossy();
        // A relative path is below the remote folder.
        let checked = check_remote_path(&Path::new("/").join(dir).to_string_lossy());
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
    fn settings_choose_the_data_folders() {
        let usual = dirs(|_| {}).unwrap().on_machine("/var/tmp/f", "n1");
        assert_eq!(usual.of_daemon("datanode"), ["/var/tmp/f/data/datanode"]);
        assert_eq!(usual.of_daemon("namenode"), ["/var/tmp/f/data/namenode"]);
        assert_eq!(usual.purge_script("/var/tmp/f", &["datanode", "tasktracker"]), "");
        let set = dirs(|config| config.datanode.dirs = vec!["/d1/{host}/dn".into(), "more/".into()]);
        let set = set.unwrap().on_machine("/f", "n1");
        assert_eq!(set.dir_flags("datanode"), " --dir /d1/n1/dn --dir /f/more");
        assert_eq!(set.emptiness_test("datanode"), "[ ! -e /d1/n1/dn/VERSION ] && [ ! -e /f/more/VERSION ]");
        let purge = set.purge_script("/f", &["datanode"]);
        assert!(purge.contains("cd /d1/n1/dn ") && purge.contains("rmdir /f/more "), "{purge}");
        for bad in ["/d 1", "/d;x", "/../x", "$HOME/x"] {
            let error = dirs(|config| config.datanode.dirs = vec![bad.into()]).unwrap_err().to_string();
            assert!(error.starts_with("datanode.dirs: "), "{error}");
        }
    }

    /// Runs a script of a machine locally, for the cluster `lab-1`.
    fn run(script: &str) -> std::process::Output {
        std::process::Command::new("sh").arg("-c").arg(format!("id=lab-1\n{script}")).output().unwrap()
    }

    #[test]
    fn purge_script_deletes_only_in_folders_marked_for_this_cluster() {
        let space = tempfile::tempdir().unwrap();
        let at = |name: &str| space.path().join(name);
        let text = |name: &str| at(name).display().to_string();
        let set = dirs(|config| {
            config.datanode.dirs = vec![at("ours"), at("other"), at("unmarked"), at("home")];
            config.tasktracker.dirs = vec![at("tasks")];
        });
        let set = set.unwrap().on_machine("/nowhere", "n1");
        for (folder, mark, used) in [
            ("ours", Some("lab-1"), "VERSION"),
            ("other", Some("lab-2"), "VERSION"),
            ("unmarked", None, "VERSION"),
            ("home", None, "letter"),
            ("tasks", Some("lab-1"), "incarnation"),
        ] {
            for name in ["current", "tmp", "logs", "jobs"] {
                std::fs::create_dir_all(at(folder).join(name).join("deep")).unwrap();
            }
            std::fs::write(at(folder).join(used), "").unwrap();
            if let Some(mark) = mark {
                std::fs::write(at(folder).join(MARK_FILE), format!("{mark}\n")).unwrap();
            }
        }
        let ran =
            run(&format!("{}echo left=$left", set.purge_script("/nowhere", &["datanode", "tasktracker"])));
        let (out, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success() && out.contains("left=1"), "{out}{errors}");
        for stays in
            ["ours/logs/deep", "tasks/tmp/deep", "other/current/deep", "unmarked/tmp/deep", "home/tmp/deep"]
        {
            assert!(at(stays).is_dir(), "{stays} is gone");
        }
        for goes in
            ["ours/current", "ours/tmp", "ours/CLUSTER", "tasks/jobs", "tasks/logs", "tasks/incarnation"]
        {
            assert!(!at(goes).exists(), "{goes} is left");
        }
        assert!(errors.contains(&format!("{} stays", text("unmarked"))), "{errors}");
        assert!(errors.contains(&format!("{} stays", text("other"))), "{errors}");
        assert!(!errors.contains(&text("home")), "{errors}");
    }

    #[test]
    fn folders_are_marked_and_folders_of_another_cluster_are_reported() {
        let space = tempfile::tempdir().unwrap();
        let at = |name: &str| space.path().join(name);
        let set = dirs(|config| config.datanode.dirs = vec![at("a"), at("b")]);
        let set = set.unwrap().on_machine("/nowhere", "n1");
        std::fs::create_dir(at("a")).unwrap();
        std::fs::create_dir(at("b")).unwrap();
        let taken = || run(&set.foreign_folder_test("/nowhere", "datanode")).status.success();
        assert!(!taken());
        run(&set.mark_script("/nowhere", "datanode"));
        assert_eq!(std::fs::read_to_string(at("b").join(MARK_FILE)).unwrap(), "lab-1\n");
        assert!(!taken());
        std::fs::write(at("b").join(MARK_FILE), "lab-2\n").unwrap();
        assert!(taken());
        run(&set.mark_script("/nowhere", "datanode"));
        assert_eq!(std::fs::read_to_string(at("b").join(MARK_FILE)).unwrap(), "lab-2\n");
        // A daemon whose folders are all in the remote folder has nothing to mark.
        assert!(!run(&set.foreign_folder_test("/nowhere", "tasktracker")).status.success());
        assert!(run(&set.mark_script("/nowhere", "tasktracker")).status.success());
    }
}
