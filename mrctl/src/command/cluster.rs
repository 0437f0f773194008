//! `mrctl cluster`: creates the folder of a cluster on several machines, and credentials for its
//! users.
//!
//! ```text
//! DIR/fermata.toml       settings for all daemons, and for the admin
//! DIR/hosts              the machines and their roles
//! DIR/formatted          which daemons have stored data on each machine (`mrctl cluster up`)
//! DIR/id                 identifies the folders of this cluster on the machines
//! DIR/secret             all keys of the cluster derive from it; copied only without TLS
//! DIR/ca/                the private key of the certificate authority; not copied
//! DIR/security/          ca.pem; ROLE.pem and ROLE.keys for each role; admin.pem; revoked
//! ```
//!
//! Secrets are written once, readable only by their owner, and never overwritten.

use super::{cluster_status, machines, membership, renew, revoke};
use crate::output::{self, Usage};
use anyhow::{Context, Result, bail};
use clusters::{
    certificates::{certify, is_reserved, make_folder},
    local::check_scheduler,
    remote::{Host, Hosts, MachineRole, check_addr, check_host, revoked_list, write_cluster_id},
};
use daemon::config::Config;
use security::{Authority, Keyring, Revocations, Role, Token, check_name, write_private};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ClusterCommand {
    Init(Init),
    User(User),
    Revoke(revoke::Revoke),
    Renew(renew::Renew),
    Up(machines::Up),
    Status(cluster_status::Status),
    Down(machines::Down),
    Restart(machines::Restart),
    Logs(machines::Logs),
    Add(membership::Add),
    Drain(membership::Drain),
    Remove(membership::Remove),
    Upgrade(machines::Upgrade),
}

/// Create the folder of a cluster: configuration, certificates, hosts file
///
/// This starts and copies nothing: `mrctl cluster up` does that. To install a machine by hand, copy
/// fermata.toml and, from the folder security, ca.pem and the files of the roles of the machine
/// (docs/operate/security.md lists them).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster init mycluster --master node1 --node node2 --node node3
  mrctl cluster init mycluster --master m --node n1 --no-tls     a shared secret
  mrctl cluster init mycluster --master m1 --master m2 --master m3 \\
      --node n1 --node n2
  mrctl cluster init mycluster --master node1 --node node2 --scheduler fair \\
      --map-slots 8 --reduce-slots 4
  mrctl cluster init mycluster --master node1 --node node2 --settings disks.toml")]
pub(crate) struct Init {
    /// Folder to create
    dir: PathBuf,
    /// Name of the cluster, used in certificates [default: the name of the folder]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Machine of a namenode and a jobtracker, with its address if that differs from its name; given
    /// 3 or 5 times, the cluster survives the loss of 1 or 2 of them
    #[arg(long, value_name = "HOST[=ADDR]", default_value = "127.0.0.1", value_parser = parse_machine)]
    master: Vec<Host>,
    /// Machine with a datanode and a tasktracker, with its rack; may be repeated
    #[arg(long, value_name = "HOST[=ADDR][@RACK]", value_parser = parse_machine)]
    node: Vec<Host>,
    /// No certificates: daemons and clients share a secret, and connections are not encrypted
    #[arg(long)]
    no_tls: bool,
    /// Validity of the certificates of daemons, in days
    #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(i64).range(1..=7300))]
    days: i64,
    /// Scheduling policy; `mrctl schedulers` lists them
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Map slots of each node
    #[arg(long, value_name = "N")]
    map_slots: Option<u32>,
    /// Reduce slots of each node
    #[arg(long, value_name = "N")]
    reduce_slots: Option<u32>,
    /// File with further settings, in the format of fermata.toml
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
}

/// Create credentials for a user
///
/// Creates a folder with the credentials and a fermata.toml that refers to them. The user copies
/// the folder and passes the file to mrctl with --config.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster user ann --cluster mycluster --out ann-mycluster
  mrctl --config ann-mycluster/fermata.toml fs ls /")]
pub(crate) struct User {
    /// Name of the user
    name: String,
    /// Folder of the cluster, as created by `mrctl cluster init`
    #[arg(long, value_name = "DIR")]
    cluster: PathBuf,
    /// Folder to create
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Give the user the rights of an admin
    #[arg(long)]
    admin: bool,
    /// Validity of the credentials, in days
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(i64).range(1..=7300))]
    days: i64,
}

pub(crate) async fn run(command: ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Init(args) => init(&args),
        ClusterCommand::User(args) => user(&args),
        ClusterCommand::Revoke(args) => revoke::run(&args),
        ClusterCommand::Renew(args) => renew::run(&args),
        ClusterCommand::Up(args) => machines::up(&args).await,
        ClusterCommand::Status(args) => cluster_status::status(&args).await,
        ClusterCommand::Down(args) => machines::down(&args),
        ClusterCommand::Restart(args) => machines::restart(&args).await,
        ClusterCommand::Logs(args) => machines::logs(&args),
        ClusterCommand::Add(args) => membership::add(&args),
        ClusterCommand::Drain(args) => membership::drain(args).await,
        ClusterCommand::Remove(args) => membership::remove(&args),
        ClusterCommand::Upgrade(args) => machines::upgrade(&args).await,
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn folder_has_entries(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn init(args: &Init) -> Result<ExitCode> {
    let dir = &args.dir;
    if folder_has_entries(dir)? {
        bail!("{} is not empty: choose another folder for the new cluster", dir.display());
    }
    let of_folder = || dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = args.name.clone().unwrap_or_else(of_folder);
    check_name(&name).map_err(|error| Usage(format!("cluster {error}")))?;
    // Check all arguments before anything is created.
    check_masters(&args.master)?;
    let machines = hosts_text(args);
    Hosts::parse(&machines).map_err(|(_, why)| Usage(why))?;
    let settings = settings(args)?;
    make_folder(dir)?;
    write_cluster_id(dir, &name)?;
    let secret = uuid::Uuid::new_v4().simple().to_string() + &uuid::Uuid::new_v4().simple().to_string();
    write_private(&dir.join("secret"), format!("{secret}\n").as_bytes())?;
    if !args.no_tls {
        certify(dir, &name, &secret, args.days)?;
    }
    write(&dir.join("hosts"), &machines)?;
    write(&dir.join("fermata.toml"), &settings)?;
    output::line(format!("created cluster {name} in {}", dir.display()))?;
    let how = if args.no_tls {
        "a secret that daemons and clients share; network traffic is not encrypted"
    } else {
        "certificates from its own authority; TLS on every connection"
    };
    output::line(format!("  callers are authenticated by {how}"))?;
    output::line(format!("  settings: {}", dir.join("fermata.toml").display()))?;
    output::line(format!("  to start it: mrctl cluster up --cluster {}", output::shell(dir)))?;
    output::line(format!(
        "  to add a user: mrctl cluster user NAME --cluster {} --out FOLDER",
        output::shell(dir)
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn parse_machine(text: &str) -> Result<Host, String> {
    let (place, rack) = text.split_once('@').unwrap_or((text, "default"));
    let (name, addr) = place.split_once('=').unwrap_or((place, place));
    for word in [name, rack] {
        check_host(word)?;
    }
    check_addr(addr)?;
    Ok(Host { name: name.into(), role: MachineRole::Node, rack: rack.into(), addr: addr.into() })
}

fn hosts_text(args: &Init) -> String {
    let about = "# HOST ROLE [rack=NAME] [addr=ADDRESS], where ROLE is master (namenode, jobtracker) or node (datanode, \
                 tasktracker)\n";
    let masters = args.master.iter().map(|host| Host { role: MachineRole::Master, ..host.clone() });
    let machines = masters.chain(args.node.iter().cloned());
    [about.to_owned()].into_iter().chain(machines.map(|host| host.line())).collect()
}

fn check_masters(masters: &[Host]) -> Result<()> {
    if ![1, 3, 5].contains(&masters.len()) {
        bail!(Usage(format!(
            "{} masters: give --master 1, 3 or 5 times, because an even number survives no more losses",
            masters.len()
        )));
    }
    for (at, host) in masters.iter().enumerate() {
        if let Some(other) = masters[..at].iter().find(|other| other.addr == host.addr) {
            bail!(Usage(format!("masters {} and {} have the address {}", other.name, host.name, host.addr)));
        }
    }
    Ok(())
}

/// Settings that `init` computes. The file of `--settings` must not contain them.
const FIXED_SETTINGS: [&str; 5] =
    ["cluster.namenode", "cluster.jobtracker", "security.dir", "security.identity", "security.secret"];

/// Returns the text of `fermata.toml`: the settings of `init`, overridden by the file of
/// `--settings`, overridden by flags.
fn settings(args: &Init) -> Result<String> {
    let usage = |error: daemon::config::ConfigError| Usage(error.to_string());
    let mut text = settings_of_init(args);
    if let Some(file) = &args.settings {
        let more = fs::read_to_string(file)
            .map_err(|error| Usage(format!("cannot read {}: {error}", file.display())))?;
        text = Config::merge(&text, &more, file, &FIXED_SETTINGS).map_err(usage)?;
    }
    let number =
        |key: &str, value: Option<u32>| value.map_or(String::new(), |value| format!("{key} = {value}\n"));
    let slots = number("map_slots", args.map_slots) + &number("reduce_slots", args.reduce_slots);
    let name = args.scheduler.as_ref().map_or(String::new(), |name| format!("name = {name:?}\n"));
    if !(slots.is_empty() && name.is_empty()) {
        let flags = format!("[tasktracker]\n{slots}[scheduler]\n{name}");
        text = Config::merge(&text, &flags, Path::new("--scheduler"), &[]).map_err(usage)?;
    }
    let config = Config::parse(&text, &args.dir.join("fermata.toml")).map_err(usage)?;
    check_scheduler(&config.scheduler).map_err(usage)?;
    Ok(text + GROUPS_EXAMPLE)
}

const GROUPS_EXAMPLE: &str = "\n# The users of each group, for file permissions.\n# [security.groups]\n# research = [\"ann\", \"bob\"]\n";

/// Returns the settings that `init` computes from its arguments. A cluster on one machine listens
/// on loopback only.
fn settings_of_init(args: &Init) -> String {
    let masters = |port| {
        let all: Vec<String> = args.master.iter().map(|host| format!("\"{}:{port}\"", host.addr)).collect();
        if all.len() == 1 { all.concat() } else { format!("[{}]", all.join(", ")) }
    };
    let (namenode, jobtracker) = (masters(9400), masters(9500));
    let alone = args.master.iter().all(|host| host.addr == "127.0.0.1") && args.node.is_empty();
    let any = if alone { "127.0.0.1" } else { "0.0.0.0" };
    let security =
        if args.no_tls { "secret = \"secret\"" } else { "dir = \"security\"\nidentity = \"admin\"" };
    format!(
        "[cluster]\nnamenode = {namenode}\njobtracker = {jobtracker}\n\n\
         [namenode]\nlisten = \"{any}:9400\"\n\n[datanode]\nlisten = \"{any}:9401\"\n\n\
         [jobtracker]\nlisten = \"{any}:9500\"\n\n[tasktracker]\nlisten = \"{any}:9501\"\n\n\
         [security]\n{security}\n"
    )
}

fn user(args: &User) -> Result<ExitCode> {
    check_name(&args.name).map_err(|error| Usage(error.to_string()))?;
    if is_reserved(&args.name, args.admin) {
        bail!(Usage(format!(
            "{} is a reserved name: it identifies a part of the cluster; choose another name",
            args.name
        )));
    }
    let file = args.cluster.join("fermata.toml");
    clusters::trust::check_folder(&args.cluster)?;
    let config = Config::load(Some(&file))?;
    if folder_has_entries(&args.out)? {
        bail!("{} is not empty: choose another folder", args.out.display());
    }
    if Revocations::read(&args.cluster.join(revoked_list(&args.cluster)))?.names.contains(&args.name) {
        bail!(
            "{0} is revoked: choose another name, or undo that with `mrctl cluster revoke {0} --undo`",
            args.name
        );
    }
    make_folder(&args.out)?;
    let role = if args.admin { Role::Admin } else { Role::User };
    let name = &args.name;
    let (ca, public) = (args.cluster.join("ca"), args.cluster.join("security"));
    let security = if ca.is_dir() {
        let authority = Authority::load(&ca, &public)?;
        write_private(
            &args.out.join(format!("{name}.pem")),
            authority.person(role, name, args.days)?.as_bytes(),
        )?;
        write(&args.out.join("ca.pem"), authority.certificate())?;
        format!("dir = \".\"\nidentity = \"{name}\"")
    } else {
        let keys = Keyring::of_secret_file(&args.cluster.join("secret"))?;
        let lifetime = Duration::from_hours(24 * args.days.unsigned_abs());
        let token =
            Token::new(role, name, None, lifetime).sign(&keys).context("the secret signs no tokens")?;
        write_private(&args.out.join(format!("{name}.token")), format!("{token}\n").as_bytes())?;
        format!("token = \"{name}.token\"")
    };
    let cluster = &config.cluster;
    let text = format!(
        "[cluster]\nnamenode = \"{}\"\njobtracker = \"{}\"\n\n[security]\n{security}\n",
        cluster.namenode, cluster.jobtracker
    );
    write(&args.out.join("fermata.toml"), &text)?;
    output::line(format!(
        "created credentials of {role} {name} in {}, valid for {}",
        args.out.display(),
        output::count(args.days.unsigned_abs(), "day")
    ))?;
    Ok(ExitCode::SUCCESS)
}
