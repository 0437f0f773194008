//! `mrctl cluster`: the folder that a cluster of many machines begins with, and credentials for those who use it.
//!
//! ```text
//! DIR/fermata.toml       for all daemons, and for the admin
//! DIR/hosts              which machine does what
//! DIR/formatted          the machines whose data folders have been created (`mrctl cluster up`)
//! DIR/id                 marks the folders on machines as this cluster's
//! DIR/secret             all keys of the cluster follow from it; stays here (without TLS: goes to all machines)
//! DIR/ca/                the authority's own key; stays here
//! DIR/security/          ca.pem, and for each role ROLE.pem and ROLE.keys; admin.pem; revoked
//! ```
//!
//! Secrets are written once, readable by their owner alone, and never written over.

use super::{cluster_status, machines, membership, renew, revoke};
use crate::{
    cluster::check_scheduler,
    output::{self, Usage},
    remote::{Host, Hosts, Part, check_addr, check_host, revoked_list, write_mark},
};
use anyhow::{Context, Result, bail};
use daemon::config::Config;
use security::{Authority, Keyring, Revocations, Role, Token, check_name, write_private};
use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// What there is to do.
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

/// Make a cluster's folder: configuration, authority, certificates, hosts
///
/// Nothing is started and nothing is copied: `mrctl cluster up` does that. By hand, each machine needs fermata.toml and, of
/// the folder security, ca.pem and the files of the roles that it plays; docs/operate/security.md says which.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster init lab --master node1 --node node2 --node node3
  mrctl cluster init lab --master node1 --node node2 --no-tls   a shared secret
  mrctl cluster init lab --master node1 --node node2 --scheduler fair \\
      --map-slots 8 --reduce-slots 4
  mrctl cluster init lab --master node1 --node node2 --settings disks.toml")]
pub(crate) struct Init {
    /// Folder to make
    dir: PathBuf,
    /// Its name, in certificates [default: the folder's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Machine of the namenode and the jobtracker, and its address if that is not its name
    #[arg(long, value_name = "HOST[=ADDR]", default_value = "127.0.0.1", value_parser = machine)]
    master: Host,
    /// A machine with a datanode and a tasktracker, and the rack it stands in; may be given again
    #[arg(long, value_name = "HOST[=ADDR][@RACK]", value_parser = machine)]
    node: Vec<Host>,
    /// No certificates: daemons and clients share a secret, and nothing is encrypted
    #[arg(long)]
    no_tls: bool,
    /// Days that certificates of daemons last
    #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(i64).range(1..=7300))]
    days: i64,
    /// Scheduling policy; `mrctl schedulers` lists them
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Maps that each node runs at a time
    #[arg(long, value_name = "N")]
    map_slots: Option<u32>,
    /// Reduces that each node runs at a time
    #[arg(long, value_name = "N")]
    reduce_slots: Option<u32>,
    /// A fermata.toml with further settings, which are copied into the cluster's
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
}

/// Make credentials for a user
///
/// Writes a folder with a fermata.toml that finds them: the user copies it, and gives it to mrctl by --config.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster user ann --cluster lab --out ann-lab
  mrctl --config ann-lab/fermata.toml fs ls /")]
pub(crate) struct User {
    /// Whose
    name: String,
    /// The cluster's folder, as made by `mrctl cluster init`
    #[arg(long, value_name = "DIR")]
    cluster: PathBuf,
    /// Folder to make
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// One who may do everything
    #[arg(long)]
    admin: bool,
    /// Days that they last
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(i64).range(1..=7300))]
    days: i64,
}

pub(crate) async fn run(command: ClusterCommand) -> Result<ExitCode> {
    match command {
        ClusterCommand::Init(args) => init(&args),
        ClusterCommand::User(args) => user(&args),
        ClusterCommand::Revoke(args) => revoke::run(&args),
        ClusterCommand::Renew(args) => renew::run(&args),
        ClusterCommand::Up(args) => machines::up(&args),
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

fn make_folder(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot make folder {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn is_taken(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn init(args: &Init) -> Result<ExitCode> {
    let dir = &args.dir;
    if is_taken(dir)? {
        bail!("{} is not empty: a cluster is made once; choose another folder", dir.display());
    }
    let of_folder = || dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = args.name.clone().unwrap_or_else(of_folder);
    check_name(&name).map_err(|error| Usage(format!("cluster {error}")))?;
    // Before anything is made.
    let machines = hosts(args);
    Hosts::parse(&machines).map_err(|(_, why)| Usage(why))?;
    let settings = settings(args)?;
    make_folder(dir)?;
    write_mark(dir, &name)?;
    let secret = uuid::Uuid::new_v4().simple().to_string() + &uuid::Uuid::new_v4().simple().to_string();
    write_private(&dir.join("secret"), format!("{secret}\n").as_bytes())?;
    if !args.no_tls {
        certify(dir, &name, &secret, args.days)?;
    }
    write(&dir.join("hosts"), &machines)?;
    write(&dir.join("fermata.toml"), &settings)?;
    output::line(format!("made the cluster {name} in {}", dir.display()))?;
    let how = if args.no_tls {
        "a secret that daemons and clients share; what goes over the network can be read there"
    } else {
        "certificates of its own authority; TLS on every connection"
    };
    output::line(format!("  who calls is proved by {how}"))?;
    output::line(format!("  settings: {}", dir.join("fermata.toml").display()))?;
    output::line(format!("  start it: mrctl cluster up --cluster {}", output::shell(dir)))?;
    output::line(format!(
        "  more users: mrctl cluster user NAME --cluster {} --out FOLDER",
        output::shell(dir)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the folders `ca` and `security` in `dir`, with an authority of the cluster's own and what each role needs.
pub(crate) fn certify(dir: &Path, name: &str, secret: &str, days: i64) -> Result<()> {
    let (own, public) = (dir.join("ca"), dir.join("security"));
    make_folder(&own)?;
    make_folder(&public)?;
    let authority = Authority::new(name)?;
    authority.save(&own, &public)?;
    let keys = Keyring::from_secret(secret.as_bytes());
    for role in Role::DAEMONS {
        write_private(&public.join(format!("{role}.pem")), authority.daemon(role, days)?.as_bytes())?;
        write_private(&public.join(format!("{role}.keys")), keys.file_for(role).as_bytes())?;
    }
    let admin = authority.person(Role::Admin, "admin", days)?;
    Ok(write_private(&public.join("admin.pem"), admin.as_bytes())?)
}

fn machine(text: &str) -> Result<Host, String> {
    let (place, rack) = text.split_once('@').unwrap_or((text, "default"));
    let (name, addr) = place.split_once('=').unwrap_or((place, place));
    for word in [name, rack] {
        check_host(word)?;
    }
    check_addr(addr)?;
    Ok(Host { name: name.into(), part: Part::Node, rack: rack.into(), addr: addr.into() })
}

fn hosts(args: &Init) -> String {
    let about = "# HOST ROLE [rack=NAME] [addr=ADDRESS], where ROLE is master (namenode, jobtracker) or node (datanode, \
                 tasktracker)\n";
    let master = Host { part: Part::Master, ..args.master.clone() };
    [about.to_owned()].into_iter().chain([&master].into_iter().chain(&args.node).map(Host::line)).collect()
}

/// What `init` decides by itself, and no file may set.
const FIXED: [&str; 5] =
    ["cluster.namenode", "cluster.jobtracker", "security.dir", "security.identity", "security.secret"];

/// The settings of the cluster: its own, those of the file, those of flags.
fn settings(args: &Init) -> Result<String> {
    let usage = |error: daemon::config::ConfigError| Usage(error.to_string());
    let mut text = own_settings(args);
    if let Some(file) = &args.settings {
        let more = fs::read_to_string(file)
            .map_err(|error| Usage(format!("cannot read {}: {error}", file.display())))?;
        text = Config::merge(&text, &more, file, &FIXED).map_err(usage)?;
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
    Ok(text + GROUPS)
}

const GROUPS: &str = "\n# The users in each group; the NameNode goes by them.\n# [security.groups]\n# research = [\"ann\", \"bob\"]\n";

/// Only what differs from the defaults. On one machine loopback will do.
fn own_settings(args: &Init) -> String {
    let master = &args.master.addr;
    let alone = master == "127.0.0.1" && args.node.is_empty();
    let any = if alone { "127.0.0.1" } else { "0.0.0.0" };
    let security =
        if args.no_tls { "secret = \"secret\"" } else { "dir = \"security\"\nidentity = \"admin\"" };
    format!(
        "[cluster]\nnamenode = \"{master}:9400\"\njobtracker = \"{master}:9500\"\n\n\
         [namenode]\nlisten = \"{any}:9400\"\n\n[datanode]\nlisten = \"{any}:9401\"\n\n\
         [jobtracker]\nlisten = \"{any}:9500\"\n\n[tasktracker]\nlisten = \"{any}:9501\"\n\n\
         [security]\n{security}\n"
    )
}

/// Names that things of the cluster's own belong to: daemons by their role, the file system's first owner, the first admin.
pub(super) fn is_reserved(name: &str, admin: bool) -> bool {
    let of_cluster =
        ["fermata", "root"].contains(&name) || Role::DAEMONS.iter().any(|role| role.name() == name);
    of_cluster || (name == "admin" && !admin)
}

fn user(args: &User) -> Result<ExitCode> {
    check_name(&args.name).map_err(|error| Usage(error.to_string()))?;
    if is_reserved(&args.name, args.admin) {
        bail!(Usage(format!("{} is not for people: files of the cluster's own belong to it", args.name)));
    }
    let file = args.cluster.join("fermata.toml");
    crate::trust::folder(&args.cluster)?;
    let config = Config::load(Some(&file))?;
    if is_taken(&args.out)? {
        bail!("{} is not empty: choose another folder", args.out.display());
    }
    if Revocations::read(&args.cluster.join(revoked_list(&args.cluster)))?.names.contains(&args.name) {
        bail!(
            "{0} is revoked: choose another name, or let {0} in again with mrctl cluster revoke {0} --undo",
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
        "made credentials of {role} {name} in {}, for {}",
        args.out.display(),
        output::count(args.days.unsigned_abs(), "day")
    ))?;
    Ok(ExitCode::SUCCESS)
}
