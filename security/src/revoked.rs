//! Credentials that are good and shall not be any more: a file in the cluster's folder, which daemons read again when it
//! changes.
//!
//! ```text
//! name ann                 whoever proves to be ann, as a user, an admin, or a task of hers
//! credential 1f8a...       one certificate or token, by its SHA-256
//! ```

use crate::{
    SecurityError,
    identity::{Role, check_name},
    keys::to_hex,
};
use daemon::config::SecurityConfig;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

/// Its name, beside the certificates, or beside the secret where there are none.
pub const REVOKED_FILE: &str = "revoked";
/// How often it is looked at, at the most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const HASH_HEX: usize = 64;

/// What the file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations {
    /// People.
    pub names: BTreeSet<String>,
    /// Single credentials, by [`fingerprint`].
    pub credentials: BTreeSet<String>,
}

/// What tells a credential from all others: of a certificate's bytes, or of a token's text.
pub fn fingerprint(credential: &[u8]) -> String {
    to_hex(&Sha256::digest(credential))
}

/// The same, of a file that `mrctl cluster user` made.
pub fn fingerprint_of_file(path: &Path) -> Result<String, SecurityError> {
    let bytes = fs::read(path).map_err(|source| SecurityError::Read { path: path.into(), source })?;
    if let Ok(certificate) = CertificateDer::from_pem_slice(&bytes) {
        return Ok(fingerprint(&certificate));
    }
    let text = String::from_utf8_lossy(&bytes);
    let why = || "it is neither a certificate nor a token".to_owned();
    let token = crate::Token::read(text.trim());
    token.map_err(|_| SecurityError::Content { path: path.into(), why: why() })?;
    Ok(fingerprint(text.trim().as_bytes()))
}

impl Revocations {
    /// Those in a file; none if it is not there.
    pub fn read(path: &Path) -> Result<Self, SecurityError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(SecurityError::Read { path: path.into(), source }),
        };
        let mut all = Self::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            match line.split_once(' ').map(|(kind, what)| (kind, what.trim())) {
                None if line.is_empty() => {}
                Some(("name", name)) if check_name(name).is_ok() => drop(all.names.insert(name.into())),
                Some(("credential", hash)) if hash.len() == HASH_HEX => {
                    all.credentials.insert(hash.into());
                }
                _ => {
                    let why = format!("line {} is neither `name NAME` nor `credential SHA256`", at + 1);
                    return Err(SecurityError::Content { path: path.into(), why });
                }
            }
        }
        Ok(all)
    }

    /// Writes them; who reads meanwhile sees the old or the new.
    pub fn write(&self, path: &Path) -> Result<(), SecurityError> {
        let names = self.names.iter().map(|name| format!("name {name}\n"));
        let text: String =
            names.chain(self.credentials.iter().map(|one| format!("credential {one}\n"))).collect();
        let aside = path.with_extension("new");
        let written = fs::write(&aside, text).and_then(|()| fs::rename(&aside, path));
        written.map_err(|source| SecurityError::Write { path: path.into(), source })
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.credentials.is_empty()
    }

    fn refuse(&self, role: Role, name: &str, shown: &[u8]) -> bool {
        let person = matches!(role, Role::User | Role::Admin | Role::Task);
        (person && self.names.contains(name))
            || (!self.credentials.is_empty() && self.credentials.contains(&fingerprint(shown)))
    }
}

/// The file of a daemon, as it stands.
#[derive(Debug)]
pub(crate) struct Revoked {
    path: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    looked: Instant,
    stamp: Stamp,
    all: Revocations,
}

/// What changes with a file.
type Stamp = Option<(SystemTime, u64)>;

fn stamp(path: &Path) -> Stamp {
    let about = fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len()))
}

impl Revoked {
    /// Of a closed cluster.
    pub(crate) fn new(settings: &SecurityConfig) -> Result<Self, SecurityError> {
        let folder = if settings.dir.as_os_str().is_empty() {
            settings.secret.parent().unwrap_or(Path::new("")).to_owned()
        } else {
            settings.dir.clone()
        };
        let path = folder.join(REVOKED_FILE);
        let stamp = stamp(&path);
        let all = Revocations::read(&path)?;
        Ok(Self { path, kept: Mutex::new(Kept { looked: Instant::now(), stamp, all }) })
    }

    /// Whether somebody who has proved to be this, by showing that, is not to be let in.
    pub(crate) fn refuses(&self, role: Role, name: &str, shown: &[u8]) -> bool {
        let mut kept = self.kept.lock();
        if kept.looked.elapsed() >= LOOK_EVERY {
            self.look(&mut kept);
        }
        !kept.all.is_empty() && kept.all.refuse(role, name, shown)
    }

    /// One that cannot be read, or half of one, changes nothing: what was refused stays so.
    fn look(&self, kept: &mut Kept) {
        kept.looked = Instant::now();
        let stamp = stamp(&self.path);
        if stamp == kept.stamp {
            return;
        }
        match Revocations::read(&self.path) {
            Ok(all) => {
                tracing::info!(names = all.names.len(), credentials = all.credentials.len(), "revoked");
                (kept.all, kept.stamp) = (all, stamp);
            }
            Err(error) => tracing::error!(%error, "what was revoked before still is"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_single_credentials_are_refused_as_long_as_they_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let settings = SecurityConfig { dir: dir.path().into(), ..SecurityConfig::default() };
        let path = dir.path().join(REVOKED_FILE);
        let revoked = Revoked::new(&settings).unwrap();
        let refuses = |role, name, shown: &[u8]| {
            // As after a while.
            revoked.look(&mut revoked.kept.lock());
            revoked.refuses(role, name, shown)
        };
        assert!(!refuses(Role::User, "ann", b"hers"));
        let mut all = Revocations::default();
        all.names.insert("ann".into());
        all.credentials.insert(fingerprint(b"bob's lost one"));
        all.write(&path).unwrap();
        assert_eq!(Revocations::read(&path).unwrap(), all);
        for role in [Role::User, Role::Admin, Role::Task] {
            assert!(refuses(role, "ann", b"hers"));
        }
        // A daemon has its role's name, whatever people are called.
        assert!(!refuses(Role::DataNode, "ann", b"its own"));
        assert!(refuses(Role::User, "bob", b"bob's lost one") && !refuses(Role::User, "bob", b"his new one"));
        fs::write(&path, "name ann\nnonsense\n").unwrap();
        assert!(refuses(Role::User, "ann", b"hers") && refuses(Role::User, "bob", b"bob's lost one"));
        assert!(Revoked::new(&settings).unwrap_err().to_string().contains("line 2 is neither"));
        fs::write(&path, "# nobody any more\n").unwrap();
        assert!(!refuses(Role::User, "ann", b"hers"));
        fs::remove_file(&path).unwrap();
        assert!(!refuses(Role::User, "ann", b"hers"));
    }
}
