//! Credentials that are good and shall not be any more: a file in the cluster's folder, which daemons read again when
//! it changes.
//!
//! ```text
//! name ann                 whoever proves to be ann, as a user, an admin, or a task of hers
//! credential 1f8a...       one certificate or token, by its fingerprint
//! ```
//!
//! The file is read by a thread of its own: a disk that hangs keeps no call waiting. Whoever is refused stays so until
//! a list that can be read says otherwise: one that is gone, empty or half written changes nothing.

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

/// Its name, beside the certificates, or beside the secret where there are none.
pub const REVOKED_FILE: &str = "revoked";
/// How often it is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const HASH_BYTES: usize = 32;
/// Makes a list of nobody something else than a file that is about to be written.
const HEADER: &str = "# Shut out, until the line is gone: mrctl cluster revoke\n";

/// What the file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations {
    /// People.
    pub names: BTreeSet<String>,
    /// Single credentials, by [`fingerprint_of_file`].
    pub credentials: BTreeSet<String>,
}

/// What somebody has shown.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Credential<'a> {
    Token(&'a str),
    Certificate(&'a CertificateDer<'a>),
}

impl Credential<'_> {
    /// What tells it from all others, and stays however its holder writes it: of a token the words that are signed, of
    /// a certificate its public key. Not the signature: that of a certificate can be written in two ways.
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

/// What tells the credential in a file that `mrctl cluster user` made from all others.
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
    /// Those in a file; none if it is not there.
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

    /// Writes them; who reads meanwhile sees the old or the new.
    pub fn write(&self, path: &Path) -> Result<(), SecurityError> {
        let names = self.names.iter().map(|name| format!("name {name}\n"));
        let credentials = self.credentials.iter().map(|one| format!("credential {one}\n"));
        let text: String = std::iter::once(HEADER.to_owned()).chain(names).chain(credentials).collect();
        let written = replace(path, text.as_bytes(), USUAL, true);
        written.map_err(|source| SecurityError::Write { path: path.into(), source })
    }

    fn refuse(&self, role: Role, name: &str, shown: Credential<'_>) -> bool {
        let person = matches!(role, Role::User | Role::Admin | Role::Task);
        // What has no fingerprint has not been verified either.
        let one = || shown.fingerprint().is_none_or(|fingerprint| self.credentials.contains(&fingerprint));
        (person && self.names.contains(name)) || (!self.credentials.is_empty() && one())
    }
}

/// What the file of a daemon said when it was last looked at.
#[derive(Debug)]
pub(crate) struct Revoked {
    all: Arc<RwLock<Arc<Revocations>>>,
}

impl Revoked {
    /// Of a closed cluster; looked at for as long as this is there.
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
        started.map_err(|error| SecurityError::Missing(format!("cannot watch what is revoked: {error}")))?;
        Ok(Self { all })
    }

    /// Whether somebody who has proved to be this, by showing that, is not to be let in.
    pub(crate) fn refuses(&self, role: Role, name: &str, shown: Credential<'_>) -> bool {
        let all = self.all.read().clone();
        all.refuse(role, name, shown)
    }
}

/// The file.
#[derive(Debug)]
struct List {
    path: PathBuf,
    /// As it was when it was read.
    stamp: Stamp,
    /// Why it could not be read since, as the log has it.
    logged_error: Option<String>,
}

/// What changes with a file: its number, when it was changed, its length.
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

    /// What it says now, if it has changed and says something.
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
                    tracing::error!(error, "what was revoked before still is");
                }
                self.logged_error = Some(error);
                None
            }
        }
    }

    /// It must be there, and hold something.
    fn read(&self) -> Result<Revocations, SecurityError> {
        let path = &self.path;
        let text = fs::read_to_string(path);
        let text = text.map_err(|source| SecurityError::Read { path: path.clone(), source })?;
        if text.is_empty() {
            let why = "is empty: a list of nobody is a line that begins with #";
            return Err(SecurityError::Content { path: path.clone(), why: why.into() });
        }
        Revocations::parse(path, &text)
    }
}

#[cfg(test)]
mod tests;
