//! Revoked credentials: a list in a file, which daemons read again when it changes.
//!
//! ```text
//! name ann                 the user ann, also as an admin and in tasks
//! credential 1f8a...       one certificate or token, by its fingerprint
//! ```
//!
//! A separate thread reads the file, so that a disk that hangs does not delay calls. A revocation
//! stays in force until a valid list without it is read: if the file is missing, empty or invalid,
//! the last valid list applies.

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

/// Name of the file. It is in the folder of the certificates, or of the secret if there are no
/// certificates.
pub const REVOKED_FILE: &str = "revoked";
/// Interval at which the file is checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const HASH_BYTES: usize = 32;
/// First line of the file. It distinguishes an empty list from a file that is being written.
const HEADER: &str =
    "# Revoked users and credentials (mrctl cluster revoke). Remove a line to allow it again.\n";

/// The list of revoked users and credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations {
    /// Revoked user names.
    pub names: BTreeSet<String>,
    /// Fingerprints of revoked credentials, as [`fingerprint_of_file`] returns them.
    pub credentials: BTreeSet<String>,
}

/// A credential of a caller.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Credential<'a> {
    Token(&'a str),
    Certificate(&'a CertificateDer<'a>),
}

impl Credential<'_> {
    /// Returns a hash that identifies the credential independently of its encoding: the hash of the
    /// signed part of a token, or of the public key of a certificate. The signature is not
    /// included, because the same signature of a certificate can be encoded in two ways.
    fn fingerprint(self) -> Option<String> {
        match self {
            Self::Token(text) => Some(digest(Token::split_signature(text).ok()?.0.as_bytes())),
            Self::Certificate(certificate) => {
                let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
                Some(digest(&certificate.subject_public_key_info()))
            }
        }
    }
}

/// Returns the fingerprint of the credential in a file that `mrctl cluster user` has made.
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
    /// Reads a list from a file; returns an empty list if the file does not exist.
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

    /// Writes the list to a file atomically.
    pub fn write(&self, path: &Path) -> Result<(), SecurityError> {
        let names = self.names.iter().map(|name| format!("name {name}\n"));
        let credentials = self.credentials.iter().map(|one| format!("credential {one}\n"));
        let text: String = std::iter::once(HEADER.to_owned()).chain(names).chain(credentials).collect();
        let written = replace(path, text.as_bytes(), USUAL, true);
        written.map_err(|source| SecurityError::Write { path: path.into(), source })
    }

    /// Returns whether a credential with this role and name is revoked.
    fn contains(&self, role: Role, name: &str, credential: Credential<'_>) -> bool {
        let is_user = matches!(role, Role::User | Role::Admin | Role::Task);
        // A credential without a fingerprint is malformed, and therefore refused.
        let is_listed =
            || credential.fingerprint().is_none_or(|fingerprint| self.credentials.contains(&fingerprint));
        (is_user && self.names.contains(name)) || (!self.credentials.is_empty() && is_listed())
    }
}

/// The last valid list that a daemon has read.
#[derive(Debug)]
pub(crate) struct Revoked {
    current: Arc<RwLock<Arc<Revocations>>>,
}

impl Revoked {
    /// Reads the list, and starts a thread that reads it again when it changes, until this value is
    /// dropped.
    pub(crate) fn new(settings: &SecurityConfig) -> Result<Self, SecurityError> {
        let (mut list, all) = RevokedFile::open(settings)?;
        let all = Arc::new(RwLock::new(Arc::new(all)));
        let weak = Arc::downgrade(&all);
        let watch = move || {
            loop {
                thread::sleep(CHECK_INTERVAL);
                let Some(all) = weak.upgrade() else { return };
                if let Some(now) = list.read_if_changed() {
                    *all.write() = Arc::new(now);
                }
            }
        };
        let started = thread::Builder::new().name("revoked".into()).spawn(watch);
        started.map_err(|error| {
            SecurityError::Missing(format!("cannot watch the list of revoked credentials: {error}"))
        })?;
        Ok(Self { current: all })
    }

    /// Returns whether a credential with this role and name is revoked.
    pub(crate) fn contains(&self, role: Role, name: &str, credential: Credential<'_>) -> bool {
        let all = self.current.read().clone();
        all.contains(role, name, credential)
    }
}

/// The file with the list, which is checked for changes.
#[derive(Debug)]
struct RevokedFile {
    path: PathBuf,
    /// Stamp of the file when it was last read.
    stamp: FileStamp,
    /// The last error of reading the file, which was logged.
    logged_error: Option<String>,
}

/// Properties that change when the file changes: inode, seconds and nanoseconds of the last change,
/// length. `None` if the file cannot be found.
type FileStamp = Option<(u64, i64, i64, u64)>;

fn file_stamp(path: &Path) -> FileStamp {
    let about = fs::metadata(path).ok()?;
    Some((about.ino(), about.ctime(), about.ctime_nsec(), about.len()))
}

impl RevokedFile {
    fn open(settings: &SecurityConfig) -> Result<(Self, Revocations), SecurityError> {
        let folder = if settings.dir.as_os_str().is_empty() {
            settings.secret.parent().unwrap_or(Path::new(""))
        } else {
            &settings.dir
        };
        let path = folder.join(REVOKED_FILE);
        let stamp = file_stamp(&path);
        let all = Revocations::read(&path)?;
        Ok((Self { path, stamp, logged_error: None }, all))
    }

    /// Reads the file again if it has changed. Returns the new list if it is valid.
    fn read_if_changed(&mut self) -> Option<Revocations> {
        let stamp = file_stamp(&self.path);
        if stamp == self.stamp {
            return None;
        }
        match self.read() {
            Ok(all) => {
                tracing::info!(
                    names = all.names.len(),
                    credentials = all.credentials.len(),
                    "read the list of revoked credentials"
                );
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

    /// Reads the list. The file must exist and must not be empty.
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
