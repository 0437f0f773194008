//! Revoked credentials: a file in the folder of the cluster, which daemons read again when it
//! changes.
//!
//! ```text
//! name ann                 the user ann, also as an admin and in tasks
//! credential 1f8a...       one certificate or token, by its fingerprint
//! ```
//!
//! A separate thread reads the file, so that a hanging disk does not delay calls. A revocation
//! stays in force until a valid list without it is read: a missing, empty or partial file changes
//! nothing.

use crate::{
    SecurityError, Token,
    identity::{Role, check_name},
    keys::{digest, from_hex},
};
use daemon::{
    config::SecurityConfig,
    files::{USUAL, replace},
};
use parking_lot::RwLock;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

/// Name of the file, next to the certificates, or next to the secret if there are none.
pub const REVOKED_FILE: &str = "revoked";
/// Interval of checks for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const HASH_BYTES: usize = 32;
/// First line of the file. It distinguishes an empty list from a file that is about to be written.
const HEADER: &str =
    "# Revoked users and credentials (mrctl cluster revoke). Remove a line to allow it again.\n";

/// Contents of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations {
    /// Revoked user names.
    pub names: BTreeSet<String>,
    /// Revoked single credentials, by [`fingerprint_of_file`].
    pub credentials: BTreeSet<String>,
}

/// A credential of a caller.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Credential<'a> {
    Token(&'a str),
    Certificate(&'a CertificateDer<'a>),
}

impl Credential<'_> {
    /// Returns a hash that identifies the credential in every encoding: of the signed part of a
    /// token, or of the public key of a certificate. The signature is not used, because that of a
    /// certificate has two encodings.
    fn fingerprint(self) -> Option<String> {
        match self {
            Self::Token(text) => Some(digest(Token::parted(text).ok()?.0.as_bytes())),
            Self::Certificate(certificate) => {
                let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
                Some(digest(&certificate.subject_public_key_info()))
            }
        }
    }
}

/// Returns the fingerprint of the credential in a file of `mrctl cluster user`.
pub fn fingerprint_of_file(path: &Path) -> Result<String, SecurityError> {
    let bytes = fs::read(path).map_err(|source| SecurityError::Read { path: path.into(), source })?;
    let text = String::from_utf8_lossy(&bytes);
    let fingerprint = match CertificateDer::from_pem_slice(&bytes) {
        Ok(certificate) => Credential::Certificate(&certificate).fingerprint(),
        Err(_) if Token::read(text.trim()).is_ok() => Credential::Token(text.trim()).fingerprint(),
        Err(_) => None,
    };
    let why = || "it is neither a certificate nor a token".to_owned();
    fingerprint.ok_or_else(|| SecurityError::Content { path: path.into(), why: why() })
}

impl Revocations {
    /// Reads a file; returns an empty list if it does not exist.
    pub fn read(path: &Path) -> Result<Self, SecurityError> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(SecurityError::Read { path: path.into(), source }),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, SecurityError> {
        let mut all = Self::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let is_hash = |text: &str| from_hex(text).is_some_and(|bytes| bytes.len() == HASH_BYTES);
            match line.split_once(' ').map(|(kind, what)| (kind, what.trim())) {
                None if line.is_empty() => {}
                Some(("name", name)) if check_name(name).is_ok() => drop(all.names.insert(name.into())),
                Some(("credential", hash)) if is_hash(hash) => drop(all.credentials.insert(hash.into())),
                _ => {
                    let why = format!("line {} is neither `name NAME` nor `credential SHA256`", at + 1);
                    return Err(SecurityError::Content { path: path.into(), why });
                }
            }
        }
        Ok(all)
    }

    /// Writes the file atomically.
    pub fn write(&self, path: &Path) -> Result<(), SecurityError> {
        let names = self.names.iter().map(|name| format!("name {name}\n"));
        let credentials = self.credentials.iter().map(|one| format!("credential {one}\n"));
        let text: String = std::iter::once(HEADER.to_owned()).chain(names).chain(credentials).collect();
        let written = replace(path, text.as_bytes(), USUAL, true);
        written.map_err(|source| SecurityError::Write { path: path.into(), source })
    }

    fn refuse(&self, role: Role, name: &str, shown: Credential<'_>) -> bool {
        let person = matches!(role, Role::User | Role::Admin | Role::Task);
        // A credential without fingerprint has not been verified either.
        let one = || shown.fingerprint().is_none_or(|fingerprint| self.credentials.contains(&fingerprint));
        (person && self.names.contains(name)) || (!self.credentials.is_empty() && one())
    }
}

/// The last valid list of a daemon.
#[derive(Debug)]
pub(crate) struct Revoked {
    all: Arc<RwLock<Arc<Revocations>>>,
}

impl Revoked {
    /// Starts to watch the list of a closed cluster, until dropped.
    pub(crate) fn new(settings: &SecurityConfig) -> Result<Self, SecurityError> {
        let (mut list, all) = List::open(settings)?;
        let all = Arc::new(RwLock::new(Arc::new(all)));
        let shown = Arc::downgrade(&all);
        let watch = move || {
            loop {
                thread::sleep(CHECK_INTERVAL);
                let Some(all) = shown.upgrade() else { return };
                if let Some(now) = list.check() {
                    *all.write() = Arc::new(now);
                }
            }
        };
        let started = thread::Builder::new().name("revoked".into()).spawn(watch);
        started.map_err(|error| {
            SecurityError::Missing(format!("cannot watch the list of revoked credentials: {error}"))
        })?;
        Ok(Self { all })
    }

    /// Whether a credential with this role and name is revoked.
    pub(crate) fn refuses(&self, role: Role, name: &str, shown: Credential<'_>) -> bool {
        let all = self.all.read().clone();
        all.refuse(role, name, shown)
    }
}

/// The watched file.
#[derive(Debug)]
struct List {
    path: PathBuf,
    /// State of the file when it was read.
    stamp: Stamp,
    /// The last logged error of reading it.
    logged_error: Option<String>,
}

/// Changes with the file: inode, time of change, length.
type Stamp = Option<(u64, i64, i64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let about = fs::metadata(path).ok()?;
    Some((about.ino(), about.ctime(), about.ctime_nsec(), about.len()))
}

impl List {
    fn open(settings: &SecurityConfig) -> Result<(Self, Revocations), SecurityError> {
        let folder = if settings.dir.as_os_str().is_empty() {
            settings.secret.parent().unwrap_or(Path::new(""))
        } else {
            &settings.dir
        };
        let path = folder.join(REVOKED_FILE);
        let stamp = stamp(&path);
        let all = Revocations::read(&path)?;
        Ok((Self { path, stamp, logged_error: None }, all))
    }

    /// Returns the new list, if the file has changed and is valid.
    fn check(&mut self) -> Option<Revocations> {
        let stamp = stamp(&self.path);
        if stamp == self.stamp {
            return None;
        }
        match self.read() {
            Ok(all) => {
                tracing::info!(names = all.names.len(), credentials = all.credentials.len(), "revoked");
                (self.stamp, self.logged_error) = (stamp, None);
                Some(all)
            }
            Err(error) => {
                let error = error.to_string();
                if self.logged_error.as_ref() != Some(&error) {
                    tracing::error!(
                        error,
                        "cannot read the list of revoked credentials: earlier revocations stay in force"
                    );
                }
                self.logged_error = Some(error);
                None
            }
        }
    }

    /// Reads the file. It must exist and not be empty.
    fn read(&self) -> Result<Revocations, SecurityError> {
        let path = &self.path;
        let text = fs::read_to_string(path);
        let text = text.map_err(|source| SecurityError::Read { path: path.clone(), source })?;
        if text.is_empty() {
            let why = "is empty: an empty list must have a line that begins with #";
            return Err(SecurityError::Content { path: path.clone(), why: why.into() });
        }
        Revocations::parse(path, &text)
    }
}

#[cfg(test)]
mod tests;
