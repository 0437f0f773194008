//! `mrctl cluster revoke`: revokes valid credentials.

use super::machines::on_each;
use crate::output::{self, Usage};
use anyhow::Result;
use clusters::{
    certificates::is_reserved,
    remote::{Fleet, Machine, Package, Reach, revoked_list},
};
use security::{Revocations, check_name, fingerprint_of_file};
use std::{path::PathBuf, process::ExitCode};

/// Revoke a user, or one certificate or token
///
/// The command writes the file `revoked` beside the certificates of the cluster, and copies it to
/// the machines if `mrctl cluster up` has started them. Daemons read it every second. To do this by
/// hand, copy the file to the folder of security.dir on every machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster revoke ann --cluster mycluster        all credentials of ann
  mrctl cluster revoke --credential ann.pem --cluster mycluster    only this one
  mrctl cluster revoke ann --undo --cluster mycluster")]
pub(crate) struct Revoke {
    /// Name of the user: revokes certificates and tokens of this name, and the tasks of its jobs
    #[arg(required_unless_present = "credential", conflicts_with = "credential")]
    name: Option<String>,
    /// File of one certificate or token to revoke
    #[arg(long, value_name = "FILE")]
    credential: Option<PathBuf>,
    /// Undo the revocation: accept this user or credential again
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) fn run(args: &Revoke) -> Result<ExitCode> {
    let cluster = &args.reach.cluster;
    let package = Package::of(cluster)?;
    let list = revoked_list(cluster);
    let file = cluster.join(&list);
    let mut all = Revocations::read(&file)?;
    let (kind, what, shown) = match (&args.name, &args.credential) {
        (Some(name), _) => {
            check_name(name).map_err(|error| Usage(error.to_string()))?;
            if is_reserved(name, true) && !args.undo {
                let cure = "to exclude a daemon, give the others new keys (`mrctl cluster renew --help`)";
                return Err(Usage(format!("{name} is a reserved name, not a user: {cure}")).into());
            }
            (&mut all.names, name.clone(), name.clone())
        }
        (None, Some(path)) => (&mut all.credentials, fingerprint_of_file(path)?, path.display().to_string()),
        (None, None) => return Err(Usage("give a name, or --credential FILE".into()).into()),
    };
    let changed = if args.undo { kind.remove(&what) } else { kind.insert(what) };
    all.write(&file)?;
    let done = match (args.undo, changed) {
        (false, true) => "is revoked",
        (false, false) => "was already revoked",
        (true, true) => "is accepted again",
        (true, false) => "was not revoked",
    };
    output::line(format!("{shown} {done}: {}", file.display()))?;
    if !cluster.join("launch.json").is_file() {
        output::line(format!("copy it to {} on every machine", list.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let fleet = Fleet::of(&args.reach)?;
    let send = |machine: &Machine| machine.copy_files(std::slice::from_ref(&list), &package);
    let (_, failed) = on_each(&fleet.machines, send, |_, ()| "updated".to_owned());
    if failed > 0 {
        eprintln!(
            "mrctl: {failed} of the machines have no copy yet: fix the cause and run the same command again"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
