//! `mrctl cluster renew`: replaces certificates before they expire, with the same authority.

use crate::output::{self, Usage};
use anyhow::{Context, Result, bail};
use daemon::files::{PRIVATE, replace};
use security::{Authority, Role};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Create new certificates for the daemons and the admin
///
/// The authority of the cluster signs them, so daemons with old and with new certificates work
/// together while `mrctl cluster upgrade` installs the new ones, one machine after another.
/// Certificates of users are created by `mrctl cluster user`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  mrctl cluster renew --cluster mycluster
  mrctl cluster upgrade --cluster mycluster")]
pub(crate) struct Renew {
    /// Folder of the cluster, as created by `mrctl cluster init`
    #[arg(long, value_name = "DIR", default_value = ".")]
    cluster: PathBuf,
    /// Validity of the certificates, in days
    #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(i64).range(1..=7300))]
    days: i64,
}

pub(crate) fn run(args: &Renew) -> Result<ExitCode> {
    let (own, public) = (args.cluster.join("ca"), args.cluster.join("security"));
    if !own.is_dir() {
        bail!(Usage(format!("{} has no ca: there are no certificates to renew", args.cluster.display())));
    }
    let authority = Authority::load(&own, &public)?;
    for role in Role::DAEMONS {
        replace_file(&public.join(format!("{role}.pem")), &authority.daemon(role, args.days)?)?;
    }
    replace_file(&public.join("admin.pem"), &authority.person(Role::Admin, "admin", args.days)?)?;
    let days = output::count(args.days.unsigned_abs(), "day");
    output::line(format!("created new certificates in {}, valid for {days}", public.display()))?;
    let cluster = output::shell(&args.cluster);
    output::line(format!("  to install them: mrctl cluster upgrade --cluster {cluster}"))?;
    Ok(ExitCode::SUCCESS)
}

fn replace_file(path: &Path, text: &str) -> Result<()> {
    let put = replace(path, text.as_bytes(), PRIVATE, true);
    put.with_context(|| format!("cannot replace {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::config::{Config, SecurityConfig};
    use security::Guard;
    use std::fs;

    #[test]
    fn renewed_certificates_have_the_same_authority_and_keys() {
        let dir = tempfile::tempdir().unwrap();
        clusters::certificates::certify(dir.path(), "lab", "0123456789abcdef", 1).unwrap();
        let file = |name: &str| fs::read(dir.path().join("security").join(name)).unwrap();
        let (ca, before, keys) = (file("ca.pem"), file("datanode.pem"), file("datanode.keys"));
        for _ in 0..2 {
            run(&Renew { cluster: dir.path().into(), days: 30 }).unwrap();
        }
        assert_ne!(file("datanode.pem"), before);
        assert_eq!((file("ca.pem"), file("datanode.keys")), (ca, keys));
        let security = SecurityConfig { dir: dir.path().join("security"), ..SecurityConfig::default() };
        let config = Config { security, ..Config::default() };
        for role in Role::DAEMONS {
            Guard::new(&config, role).unwrap();
        }
        // The error for a certificate of another role, or for missing keys, names the file.
        let copy = |from: &str, to: &str| {
            let at = |name: &str| dir.path().join("security").join(name);
            fs::remove_file(at(to)).unwrap();
            fs::copy(at(from), at(to)).unwrap();
        };
        copy("datanode.keys", "namenode.keys");
        let error = Guard::new(&config, Role::NameNode).unwrap_err().to_string();
        assert!(error.contains("namenode.keys") && error.contains("no key `task`"), "{error}");
        copy("datanode.pem", "namenode.pem");
        let error = Guard::new(&config, Role::NameNode).unwrap_err().to_string();
        assert!(error.contains("namenode.pem: is the certificate of a datanode"), "{error}");
        fs::write(dir.path().join("security/datanode.pem"), "rubbish").unwrap();
        let error = Guard::new(&config, Role::DataNode).unwrap_err().to_string();
        assert!(error.contains("datanode.pem"), "{error}");
    }
}
