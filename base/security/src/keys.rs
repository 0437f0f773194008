//! The keys of a cluster, each for one purpose, and their files.
//!
//! A *secret file* contains any text that cannot be guessed; all keys are derived from that text. A
//! client that has the secret can act as any user or daemon. A *key file* contains only the keys
//! that a role needs: `PURPOSE HEX`, one per line. Both must be readable only by their owner.

use crate::{SecurityError, identity::Role};
use hmac::{Hmac, KeyInit, Mac};
use rustix::process::getegid;
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Minimum length of a secret. A shorter secret can be guessed.
const SECRET_BYTES_MIN: usize = 16;

/// What a key signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Tokens of daemons, users and admins, in clusters without certificates.
    Login,
    /// Tokens of tasks: signed by the JobTracker, checked by the NameNode.
    Task,
    /// Access to blocks: signed by the NameNode, checked by DataNodes.
    Block,
}

const PURPOSES: [(Purpose, &str); 3] =
    [(Purpose::Login, "login"), (Purpose::Task, "task"), (Purpose::Block, "block")];

impl Purpose {
    fn name(self) -> &'static str {
        PURPOSES.iter().find(|(purpose, _)| *purpose == self).expect("PURPOSES lists every purpose").1
    }

    /// Returns the purposes that a daemon with a certificate needs.
    fn of_role(role: Role) -> &'static [Self] {
        match role {
            Role::NameNode => &[Self::Task, Self::Block],
            Role::DataNode => &[Self::Block],
            Role::JobTracker => &[Self::Task],
            _ => &[],
        }
    }
}

/// A key. Its bytes are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    pub(crate) fn mac(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(&self.0).expect("HMAC accepts keys of any length")
    }

    /// Returns the signature of `text`.
    pub(crate) fn sign(&self, text: &[u8]) -> [u8; 32] {
        self.mac().chain_update(text).finalize().into_bytes().into()
    }

    /// Returns whether `signature`, which may be truncated, is the signature of `text`. Runs in
    /// constant time.
    pub(crate) fn verifies(&self, text: &[u8], signature: &[u8]) -> bool {
        signature.len() >= 16 && self.mac().chain_update(text).verify_truncated_left(signature).is_ok()
    }
}

/// The keys that a process has, by purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring(BTreeMap<Purpose, Key>);

impl Keyring {
    /// Derives all keys from a secret.
    pub fn from_secret(secret: &[u8]) -> Self {
        let mut root = Hmac::<Sha256>::new_from_slice(b"fermata cluster secret").expect("any length");
        root.update(secret);
        let root = Key(root.finalize().into_bytes().into());
        Self(PURPOSES.iter().map(|(purpose, name)| (*purpose, Key(root.sign(name.as_bytes())))).collect())
    }

    /// Reads a secret file, and derives all keys from it.
    pub fn of_secret_file(path: &Path) -> Result<Self, SecurityError> {
        let text = read_private(path)?;
        let secret = text.trim_ascii();
        if secret.len() < SECRET_BYTES_MIN {
            let why =
                format!("a secret of {} bytes can be guessed: use at least {SECRET_BYTES_MIN}", secret.len());
            return Err(SecurityError::Content { path: path.into(), why });
        }
        Ok(Self::from_secret(secret))
    }

    /// Reads a key file.
    pub fn of_key_file(path: &Path) -> Result<Self, SecurityError> {
        let text = read_private(path)?;
        let text = String::from_utf8_lossy(&text);
        let mut keys = BTreeMap::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let parsed = line.split_once(' ').and_then(|(name, hex)| {
                let purpose = PURPOSES.iter().find(|(_, known)| *known == name)?.0;
                Some((purpose, Key(from_hex(hex.trim())?.try_into().ok()?)))
            });
            let Some((purpose, key)) = parsed else {
                let why = format!("line {}: expected PURPOSE HEX", at + 1);
                return Err(SecurityError::Content { path: path.into(), why });
            };
            keys.insert(purpose, key);
        }
        Ok(Self(keys))
    }

    /// Reads the key file of a role that has a certificate, and checks that it has all keys of the
    /// role.
    pub fn of_role(dir: &Path, role: Role) -> Result<Self, SecurityError> {
        let path = dir.join(format!("{role}.keys"));
        let keys = Self::of_key_file(&path)?;
        match Purpose::of_role(role).iter().find(|purpose| !keys.0.contains_key(purpose)) {
            None => Ok(keys),
            Some(missing) => {
                let why = format!(
                    "has no key `{}`, which a {role} needs: copy the file again from the folder that `mrctl cluster init` created",
                    missing.name()
                );
                Err(SecurityError::Content { path, why })
            }
        }
    }

    /// Returns the contents of the key file of a role that has a certificate.
    pub fn key_file_for(&self, role: Role) -> String {
        let wanted =
            Purpose::of_role(role).iter().filter_map(|purpose| Some((purpose, self.0.get(purpose)?)));
        let lines = wanted.map(|(purpose, key)| [purpose.name(), " ", &to_hex(&key.0), "\n"].concat());
        lines.collect()
    }

    /// Returns the key for a purpose.
    pub fn get(&self, purpose: Purpose) -> Option<&Key> {
        self.0.get(&purpose)
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads a file that only its owner may read, or that root has made readable for the group of this
/// process, as Kubernetes does with secrets.
pub fn read_private(path: &Path) -> Result<Vec<u8>, SecurityError> {
    let failed = |source| SecurityError::Read { path: path.into(), source };
    let about = fs::metadata(path).map_err(failed)?;
    let mode = about.mode() & 0o777;
    if mode & 0o077 != 0 && !is_shared_by_root(mode, about.uid(), about.gid(), getegid().as_raw()) {
        return Err(SecurityError::Exposed { path: path.into(), mode });
    }
    fs::read(path).map_err(failed)
}

fn is_shared_by_root(mode: u32, owner: u32, group: u32, own_group: u32) -> bool {
    // With these modes other accounts cannot read the file, and only its owner can change it.
    let closed = matches!(mode, 0o400 | 0o440 | 0o600 | 0o640);
    closed && owner == 0 && group == own_group && own_group != 0
}

/// Creates a file that only its owner may read.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), SecurityError> {
    let failed = |source| SecurityError::Write { path: path.into(), source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    // Set the mode again, because the umask may have removed permissions.
    file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)
}

/// Returns the SHA-256 of bytes, in hex.
pub fn digest(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String grows");
        text
    })
}

/// Parses exactly what [`to_hex`] writes, so that every byte string has only one text.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| if let [high, low] = pair { Some(digit(*high)? << 4 | digit(*low)?) } else { None })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_the_secret_and_the_purpose() {
        let (one, same, other) =
            (Keyring::from_secret(b"one"), Keyring::from_secret(b"one"), Keyring::from_secret(b"other"));
        assert_eq!(one, same);
        for (purpose, _) in PURPOSES {
            assert_ne!(one.get(purpose), other.get(purpose));
        }
        assert_ne!(one.get(Purpose::Login), one.get(Purpose::Task));
        assert_ne!(one.get(Purpose::Block), one.get(Purpose::Task));
        assert!(!format!("{one:?}").contains(&to_hex(&one.get(Purpose::Task).unwrap().0)));
        assert_eq!(
            (from_hex("0a9f"), from_hex("0A9f"), from_hex("0a9")),
            (Some(vec![0x0a, 0x9f]), None, None)
        );
    }

    #[test]
    fn a_secret_that_others_can_read_or_guess_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write_private(&path, b"0123456789abcdef\n").unwrap();
        assert_eq!(Keyring::of_secret_file(&path).unwrap(), Keyring::from_secret(b"0123456789abcdef"));
        assert!(write_private(&path, b"again").is_err(), "an existing file is not overwritten");
        for mode in [0o644, 0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Keyring::of_secret_file(&path).unwrap_err().to_string();
            assert!(error.contains("others can read it") && error.contains("chmod 600"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        write_private(&path, b"short\n").unwrap();
        let error = Keyring::of_secret_file(&path).unwrap_err().to_string();
        assert!(error.ends_with("a secret of 5 bytes can be guessed: use at least 16"), "{error}");
    }

    #[test]
    fn group_readable_secret_of_root_is_accepted() {
        assert!(is_shared_by_root(0o440, 0, 10001, 10001) && is_shared_by_root(0o640, 0, 10001, 10001));
        for (mode, owner, group, own) in [
            (0o440, 5, 10001, 10001),
            (0o440, 0, 5, 10001),
            (0o444, 0, 7, 7),
            (0o460, 0, 7, 7),
            (0o440, 0, 0, 0),
        ] {
            assert!(!is_shared_by_root(mode, owner, group, own), "{mode:o} {owner} {group} {own}");
        }
    }

    #[test]
    fn a_role_gets_the_keys_it_needs_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let all = Keyring::from_secret(b"secret");
        for role in Role::DAEMONS {
            write_private(&dir.path().join(role.name()), all.key_file_for(role).as_bytes()).unwrap();
        }
        let of = |role: Role| Keyring::of_key_file(&dir.path().join(role.name())).unwrap();
        assert_eq!(of(Role::NameNode).get(Purpose::Block), all.get(Purpose::Block));
        assert_eq!(of(Role::NameNode).get(Purpose::Task), all.get(Purpose::Task));
        assert_eq!(of(Role::DataNode).get(Purpose::Task), None);
        assert_eq!(of(Role::JobTracker).get(Purpose::Block), None);
        assert!(of(Role::TaskTracker).is_empty());
        for role in Role::DAEMONS {
            assert_eq!(of(role).get(Purpose::Login), None);
        }
        let bad = dir.path().join("bad");
        write_private(&bad, b"block 12zz\n").unwrap();
        assert!(
            Keyring::of_key_file(&bad).unwrap_err().to_string().ends_with("line 1: expected PURPOSE HEX")
        );
    }
}
