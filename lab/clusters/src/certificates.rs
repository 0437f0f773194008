//! Creates the certificates and keys of a new closed cluster.

use anyhow::{Context, Result};
use security::{Authority, Keyring, Role, write_private};
use std::{fs, os::unix::fs::DirBuilderExt, path::Path};

/// Creates a folder that only its owner can use.
pub fn make_folder(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot create folder {}", path.display()))
}

/// Creates the folders `ca` and `security` in `dir`, with a new certificate authority and the
/// certificate and keys of each role.
pub fn certify(dir: &Path, name: &str, secret: &str, days: i64) -> Result<()> {
    let (own, public) = (dir.join("ca"), dir.join("security"));
    make_folder(&own)?;
    make_folder(&public)?;
    let authority = Authority::new(name)?;
    authority.save(&own, &public)?;
    let keys = Keyring::from_secret(secret.as_bytes());
    for role in Role::DAEMONS {
        write_private(&public.join(format!("{role}.pem")), authority.daemon(role, days)?.as_bytes())?;
        write_private(&public.join(format!("{role}.keys")), keys.key_file_for(role).as_bytes())?;
    }
    let admin = authority.person(Role::Admin, "admin", days)?;
    Ok(write_private(&public.join("admin.pem"), admin.as_bytes())?)
}

/// Returns whether a user may not have this name: daemons are identified by the name of their role,
/// `fermata` and `root` own files, and only an admin may be called `admin`.
pub fn is_reserved(name: &str, admin: bool) -> bool {
    let of_cluster =
        ["fermata", "root"].contains(&name) || Role::DAEMONS.iter().any(|role| role.name() == name);
    of_cluster || (name == "admin" && !admin)
}
