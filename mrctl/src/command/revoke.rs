//! `mrctl cluster revoke`: credentials that are good and shall not be any more.

use super::{cluster::is_reserved, machines::on_each};
use crate::{
    output::{self, Usage},
    remote::{Fleet, Machine, Package, Reach, revoked_list},
};
use anyhow::Result;
use security::{Revocations, check_name, fingerprint_of_file};
use std::{path::PathBuf, process::ExitCode};

/// Shut out a user, or one certificate or token
///
/// Written to the file `revoked` beside the cluster's certificates, and copied to the machines of a cluster that `mrctl cluster
/// up` started. Daemons look at it every second. By hand: copy it to the folder that security.dir names on every machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster revoke ann --cluster lab        all that proves to be ann
  mrctl cluster revoke --credential ann.pem --cluster lab    this one alone
  mrctl cluster revoke ann --undo --cluster lab")]
pub(crate) struct Revoke {
    /// Who: certificates and tokens of this name, and tasks of its jobs
    #[arg(required_unless_present = "credential", conflicts_with = "credential")]
    name: Option<String>,
    /// One certificate or token, by its file
    #[arg(long, value_name = "FILE")]
    credential: Option<PathBuf>,
    /// Let it in again
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
                let cure = "to shut a daemon out, give the others new keys (`mrctl cluster renew --help`)";
                return Err(
                    Usage(format!("{name} is a name of the cluster's own, not of a person: {cure}")).into()
                );
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
        (false, false) => "was revoked already",
        (true, true) => "is let in again",
        (true, false) => "was not revoked",
    };
    output::line(format!("{shown} {done}: {}", file.display()))?;
    if !cluster.join("launch.json").is_file() {
        output::line(format!("copy it to {} of every machine, beside what is there", list.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let fleet = Fleet::of(&args.reach)?;
    let send = |machine: &Machine| machine.take(std::slice::from_ref(&list), &package);
    let (_, failed) = on_each(&fleet.machines, send, |_, ()| "told".to_owned());
    if failed > 0 {
        eprintln!(
            "mrctl: {failed} of the machines do not know it yet: fix that and run the same command again"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
