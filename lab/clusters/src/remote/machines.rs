//! The machines of a cluster, and how to reach them. The flags of the first start are stored in the
//! file `launch.json` in the cluster folder. The file `formatted` lists the daemons that had data,
//! one line `HOST DAEMON` each. Their data folders are created again only on request, because an
//! empty folder means a lost or unmounted disk.

use super::{
    DataDirs, Host, Hosts, Machine, MachineRole, Member, Package, Programs, Shell, check_host, on_all,
    shell::check_remote_path,
};
use crate::locate::Target;
use anyhow::{Context, Result};
use daemon::{
    MasterAddrs,
    config::Config,
    files::{USUAL, replace},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use view::output::Usage;

/// The default remote folder.
const REMOTE_DIR: &str = "/var/tmp/fermata";

/// Flags that select the cluster, and how to reach its machines.
#[derive(Debug, clap::Args)]
pub struct Reach {
    /// Folder of the cluster, as created by `mrctl cluster init`
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub cluster: PathBuf,
    /// Hosts file [default: the file hosts in the folder of the cluster]
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Command that runs another on a machine, such as 'oarsh {host}' [default: as before, or ssh
    /// {host}]
    #[arg(long, value_name = "COMMAND")]
    shell: Option<Shell>,
    /// Folder on each machine [default: as before, or /var/tmp/fermata]
    #[arg(long, value_name = "DIR")]
    remote_dir: Option<String>,
    /// Folder with the programs on each machine, to copy none [default: copy those in the folder of
    /// mrctl]
    #[arg(long, value_name = "DIR")]
    programs: Option<String>,
}

impl Reach {
    /// Selects a cluster with the stored flags.
    pub fn of(cluster: &Path) -> Self {
        Self { cluster: cluster.to_owned(), hosts: None, shell: None, remote_dir: None, programs: None }
    }
}

/// The flags stored in `launch.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StoredFlags {
    hosts: Option<PathBuf>,
    shell: Option<String>,
    remote_dir: Option<String>,
    programs: Option<String>,
}

impl StoredFlags {
    fn path(cluster: &Path) -> PathBuf {
        cluster.join("launch.json")
    }

    fn load(cluster: &Path) -> Result<Self> {
        let path = Self::path(cluster);
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| {
                Usage(format!(
                    "{}: {error}: delete this file and pass --shell, --hosts and --remote-dir again",
                    path.display()
                ))
                .into()
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

/// The machines of a cluster.
pub struct Fleet {
    /// The machines, in the order of the hosts file.
    pub machines: Vec<Machine>,
    /// The hosts file.
    pub hosts_file: PathBuf,
    /// The folder of the cluster.
    pub cluster: PathBuf,
    stored_flags: StoredFlags,
    /// Whether `--hosts` names a subset of the machines in the hosts file of the cluster.
    is_subset: bool,
}

/// Returns whether all of `hosts` are also in the file `own`.
fn is_subset(hosts: &Hosts, own: &Path) -> bool {
    let known = Hosts::load(own).map(|own| own.all).unwrap_or_default();
    !known.is_empty() && hosts.all.iter().all(|host| known.iter().any(|other| other.name == host.name))
}

impl Fleet {
    /// Returns the machines that the flags of a command name.
    pub fn of(reach: &Reach) -> Result<Self> {
        let cluster = reach.cluster.clone();
        crate::trust::check_folder(&cluster)?;
        Package::of(&cluster)?;
        let before = StoredFlags::load(&cluster)?;
        let either = |flag: &Option<String>, before: Option<String>| flag.clone().or(before);
        let stored_flags = StoredFlags {
            hosts: reach.hosts.as_ref().map(std::path::absolute).transpose()?.or(before.hosts),
            shell: either(&reach.shell.as_ref().map(ToString::to_string), before.shell),
            remote_dir: either(&reach.remote_dir, before.remote_dir),
            programs: either(&reach.programs, before.programs),
        };
        let shell = match &stored_flags.shell {
            Some(text) => text.parse().map_err(|why| Usage(format!("shell {text:?}: {why}")))?,
            None => Shell::default(),
        };
        let dir = check_remote_path(stored_flags.remote_dir.as_deref().unwrap_or(REMOTE_DIR))?;
        let bin = match &stored_flags.programs {
            Some(folder) => check_remote_path(folder)?,
            None => format!("{dir}/bin"),
        };
        let own_file = cluster.join("hosts");
        let hosts_file = stored_flags.hosts.clone().unwrap_or_else(|| own_file.clone());
        let hosts = Hosts::load(&hosts_file)?;
        let is_subset = is_subset(&hosts, &own_file);
        let config = Config::load(Some(&cluster.join("fermata.toml")))?;
        check_masters(&hosts, &config)?;
        let (ports, data) = (ports(&config)?, DataDirs::of(&config)?);
        let (mark, formatted) = (cluster_id(&cluster)?, read_formatted_list(&cluster)?);
        // Machines may share a file system (network namespaces in a test), so their folders must
        // differ.
        let machine = |host: Host| {
            let dir = dir.replace("{host}", &host.name);
            let bin = bin.replace("{host}", &host.name);
            let data = data.on_machine(&dir, &host.name);
            let formatted = formatted_daemons(&formatted, &host);
            let (shell, cluster) = (shell.clone(), mark.clone());
            let members = members(&host, &config);
            Machine { bin, dir, host, shell, cluster, ports, data, formatted, format: false, members }
        };
        let machines = hosts.all.into_iter().map(machine).collect();
        let mut fleet = Self { machines, hosts_file, cluster, stored_flags, is_subset };
        fleet.declare_new(&[])?;
        Ok(fleet)
    }

    /// Accepts that the data folders of these machines are empty. The first master forms a group if no
    /// other one has data of its daemon; otherwise it joins the others if its folder is empty.
    pub fn declare_new(&mut self, names: &[String]) -> Result<()> {
        let formatted = read_formatted_list(&self.cluster)?;
        let is_master = |machine: &&Machine| machine.host.role == MachineRole::Master;
        let masters: BTreeSet<String> =
            self.machines.iter().filter(is_master).map(|machine| machine.host.name.clone()).collect();
        let has_data = |name: &str, daemon: &str| {
            formatted.iter().any(|line| {
                let (host, with_data) = match line.split_once(' ') {
                    Some((host, with_data)) => (host, with_data == daemon),
                    // An earlier build wrote only the machine, which has all daemons of its role.
                    None => (line.as_str(), masters.contains(line)),
                };
                with_data && host != name && !names.iter().any(|new| new == host)
            })
        };
        for machine in &mut self.machines {
            let Machine { host, format, members, .. } = machine;
            *format = names.contains(&host.name);
            for member in members {
                member.is_founder = member.id == 1 && !has_data(&host.name, member.daemon);
            }
        }
        Ok(())
    }

    /// Returns the masters in the order of their first start: the one that forms a group of which no
    /// member has data must be ready before the others, which join it.
    pub fn masters_to_start(&self) -> Vec<Vec<&Machine>> {
        let forms = |machine: &&Machine| {
            machine.members.iter().any(|member| {
                member.is_founder && (machine.format || !machine.formatted.contains(&member.daemon))
            })
        };
        let (founders, others) = self.with_role(MachineRole::Master).into_iter().partition(forms);
        [founders, others].into_iter().filter(|stage: &Vec<_>| !stage.is_empty()).collect()
    }

    /// Stores the flags. A hosts file with a subset of the machines applies to one command only.
    pub fn remember(&self) -> Result<()> {
        let path = StoredFlags::path(&self.cluster);
        let hosts = self.stored_flags.hosts.clone().filter(|_| !self.is_subset);
        let text = serde_json::to_string_pretty(&StoredFlags { hosts, ..self.stored_flags.clone() })? + "\n";
        replace(&path, text.as_bytes(), USUAL, true)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Records which daemons of these machines have data, also if another daemon of the machine
    /// failed. An unreachable machine is skipped; the next call queries it again.
    pub fn record_formatted<'a>(&self, machines: impl IntoIterator<Item = &'a Machine>) -> Result<()> {
        let is_unknown = |machine: &&Machine| machine.formatted.len() < machine.host.role.daemons().len();
        let asked = on_all(machines.into_iter().filter(is_unknown), Machine::daemons_with_data, |_, _| {});
        self.change_formatted(|lines| {
            for (machine, daemons) in asked {
                let name = &machine.host.name;
                lines.extend(daemons.iter().flatten().map(|daemon| format!("{name} {daemon}")));
            }
        })
    }

    /// Forgets that the daemons of these machines had data.
    pub fn forget_formatted(&self, names: &[&str]) -> Result<()> {
        self.change_formatted(|lines| {
            lines.retain(|line| !line.split(' ').next().is_some_and(|name| names.contains(&name)));
        })
    }

    fn change_formatted(&self, change: impl FnOnce(&mut BTreeSet<String>)) -> Result<()> {
        let before = read_formatted_list(&self.cluster)?;
        let mut now = before.clone();
        change(&mut now);
        if now == before {
            return Ok(());
        }
        let text: String = now.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        let path = formatted_list_path(&self.cluster);
        replace(&path, text.as_bytes(), USUAL, true)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the machine with this name.
    pub fn find(&self, name: &str) -> Result<&Machine> {
        let names =
            || self.machines.iter().map(|machine| machine.host.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.machines.iter().find(|machine| machine.host.name == name);
        found.ok_or_else(|| Usage(format!("there is no machine {name}; the machines are {}", names())).into())
    }

    /// Returns the machines with this role.
    pub fn with_role(&self, role: MachineRole) -> Vec<&Machine> {
        self.machines.iter().filter(|machine| machine.host.role == role).collect()
    }

    /// Returns the programs to install; None if the machines have their own.
    pub fn programs(&self) -> Result<Option<Programs>> {
        if self.stored_flags.programs.is_some() { Ok(None) } else { Programs::own().map(Some) }
    }

    /// Returns the settings and keys to install.
    pub fn package(&self) -> Result<Package> {
        Package::of(&self.cluster)
    }

    /// Returns the target for commands that connect to this cluster.
    pub fn target(&self) -> Target {
        Target::of_config(&self.cluster.join("fermata.toml"))
    }
}

/// Returns the ID of the cluster, from the file `id` in its folder. It marks the folders of the
/// cluster on its machines.
fn cluster_id(cluster: &Path) -> Result<String> {
    let path = cluster.join("id");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let mark = text.trim();
            check_host(mark).map_err(|why| Usage(format!("{}: {why}", path.display())))?;
            Ok(mark.to_owned())
        }
        // The cluster was created before there were IDs.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => write_cluster_id(cluster, "cluster"),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Creates a unique ID that starts with `name`.
pub fn write_cluster_id(cluster: &Path, name: &str) -> Result<String> {
    let path = cluster.join("id");
    let mark = format!("{name}-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
    replace(&path, format!("{mark}\n").as_bytes(), USUAL, true)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(mark)
}

fn formatted_list_path(cluster: &Path) -> PathBuf {
    cluster.join("formatted")
}

/// Returns the daemons of a machine that had data. A line without a daemon, written by an earlier
/// build, means all daemons.
fn formatted_daemons(lines: &BTreeSet<String>, host: &Host) -> Vec<&'static str> {
    let has =
        |daemon: &&str| lines.contains(&host.name) || lines.contains(&format!("{} {daemon}", host.name));
    host.role.daemons().into_iter().filter(has).collect()
}

/// Returns the lines of the file `formatted`.
fn read_formatted_list(cluster: &Path) -> Result<BTreeSet<String>> {
    let path = formatted_list_path(cluster);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Checks that the masters of several are those of the settings.
fn check_masters(hosts: &Hosts, config: &Config) -> Result<()> {
    let masters = hosts.all.iter().filter(|host| host.role == MachineRole::Master).count();
    let cluster = &config.cluster;
    for (key, addrs) in [("namenode", &cluster.namenode), ("jobtracker", &cluster.jobtracker)] {
        if masters > addrs.len() {
            return Err(Usage(format!(
                "the hosts file has {masters} masters, and cluster.{key} in fermata.toml {}: list the same machines",
                addrs.len()
            ))
            .into());
        }
        for host in hosts.all.iter().filter(|host| host.role == MachineRole::Master && addrs.len() > 1) {
            if address_of(host, addrs).is_none() {
                let Host { name, addr, .. } = host;
                return Err(Usage(format!(
                    "{name} is a master in the hosts file, and {addr} is not in cluster.{key} of fermata.toml ({addrs}): list the \
                     same machines"
                ))
                .into());
            }
        }
    }
    Ok(())
}

/// Returns the position and the address of a master in a setting.
fn address_of<'a>(host: &Host, addrs: &'a MasterAddrs) -> Option<(usize, &'a String)> {
    let is_it = |addr: &String| addr.rsplit_once(':').is_some_and(|(place, _)| place == host.addr);
    addrs.iter().enumerate().find(|(_, addr)| is_it(addr))
}

/// Returns the masters of a machine as members of their groups; none if there is one master.
fn members(host: &Host, config: &Config) -> Vec<Member> {
    let cluster = &config.cluster;
    let all = [("namenode", &cluster.namenode), ("jobtracker", &cluster.jobtracker)];
    let groups = all.into_iter().filter(|(_, addrs)| host.role == MachineRole::Master && addrs.len() > 1);
    let member = |(daemon, addrs): (&'static str, &MasterAddrs)| {
        let (at, address) = address_of(host, addrs)?;
        let others = addrs.iter().filter(|addr| *addr != address).cloned().collect();
        Some(Member { daemon, id: at + 1, address: address.clone(), others, is_founder: false })
    };
    groups.filter_map(member).collect()
}

fn ports(config: &Config) -> Result<[u16; 2]> {
    let port = |addr: &str| -> Result<u16> {
        let port = addr.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.with_context(|| format!("{addr:?} in fermata.toml is not host:port"))
    };
    Ok([port(&config.datanode.listen)?, port(&config.tasktracker.listen)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: a machine whose TaskTracker never became ready was not recorded, so its
    /// empty DataNode later counted as new. Checks that the DataNode is recorded.
    #[test]
    fn daemon_with_data_is_recorded_even_if_another_daemon_of_the_machine_has_none() {
        let space = tempfile::tempdir().unwrap();
        let host = Host { name: "n1".into(), role: MachineRole::Node, rack: "r1".into(), addr: "n1".into() };
        let dir = space.path().join("n1").display().to_string();
        fs::create_dir_all(space.path().join("n1/data/datanode")).unwrap();
        fs::write(space.path().join("n1/data/datanode/VERSION"), "cluster_id = \"c\"\n").unwrap();
        let machine = Machine {
            shell: "env HOST={host}".parse().unwrap(),
            cluster: "lab-1".into(),
            bin: format!("{dir}/bin"),
            ports: [1, 2],
            data: DataDirs::of(&Config::default()).unwrap().on_machine(&dir, "n1"),
            formatted: vec![],
            format: false,
            members: vec![],
            host: host.clone(),
            dir,
        };
        let fleet = Fleet {
            machines: vec![machine],
            hosts_file: PathBuf::new(),
            cluster: space.path().to_owned(),
            stored_flags: StoredFlags::default(),
            is_subset: false,
        };
        let recorded = || formatted_daemons(&read_formatted_list(space.path()).unwrap(), &host);
        fleet.record_formatted(&fleet.machines).unwrap();
        assert_eq!(recorded(), ["datanode"]);
        fleet.forget_formatted(&["n1"]).unwrap();
        assert!(recorded().is_empty());
        // The format of earlier builds.
        fs::write(formatted_list_path(space.path()), "n1\n").unwrap();
        assert_eq!(recorded(), ["datanode", "tasktracker"]);
    }

    #[test]
    fn first_master_forms_the_groups_only_if_no_other_one_has_data() {
        let space = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(space.path().join(name), text).unwrap();
        let list = |port| ["a", "b", "c"].map(|host| format!("\"{host}:{port}\"")).join(", ");
        let settings = format!("[cluster]\nnamenode = [{}]\njobtracker = [{}]\n", list(9400), list(9500));
        write("fermata.toml", &settings);
        write("hosts", "a master\nb master\nc master\nn node\n");
        // The stages of a start, and the machines whose masters form a group.
        let start = |with_data: &[&str], new: &[&str]| {
            let lines = with_data.iter().map(|host| format!("{host} namenode\n{host} jobtracker\n"));
            write("formatted", &lines.collect::<String>());
            let mut fleet = Fleet::of(&Reach::of(space.path())).unwrap();
            fleet.declare_new(&new.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
            let name = |machine: &&Machine| machine.host.name.clone();
            let stages = fleet.masters_to_start();
            let stages = stages.iter().map(|stage| stage.iter().map(name).collect::<String>());
            let forms = |machine: &&Machine| machine.members.iter().all(|one| one.is_founder);
            let founders =
                fleet.with_role(MachineRole::Master).into_iter().filter(forms).map(|one| name(&one));
            (stages.collect::<Vec<_>>().join(" "), founders.collect::<String>())
        };
        let expected = |stages: &str, founders: &str| (stages.to_owned(), founders.to_owned());
        assert_eq!(start(&[], &[]), expected("a bc", "a"));
        assert_eq!(start(&["a"], &[]), expected("abc", "a"));
        assert_eq!(start(&["a", "b", "c"], &[]), expected("abc", ""));
        assert_eq!(start(&["a", "b", "c"], &["a"]), expected("abc", ""), "its disk is new");
        assert_eq!(start(&["b"], &[]), expected("abc", ""), "it was never started");
        assert_eq!(start(&["a", "b", "c"], &["a", "b", "c"]), expected("a bc", "a"), "all disks are new");

        // An earlier build wrote only the machine; `n` is no master.
        let founders = |formatted: &str| {
            write("formatted", formatted);
            let fleet = Fleet::of(&Reach::of(space.path())).unwrap();
            fleet.machines.iter().flat_map(|machine| &machine.members).filter(|one| one.is_founder).count()
        };
        assert_eq!((founders("b\nn\n"), founders("n\n")), (0, 2));

        write("hosts", "a master\nd master\n");
        let refused = Fleet::of(&Reach::of(space.path())).err().unwrap().to_string();
        assert!(
            refused.contains("d is a master in the hosts file, and d is not in cluster.namenode"),
            "{refused}"
        );
    }
}
