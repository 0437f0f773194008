//! Tokens: text signed with a key of the cluster.
//!
//! A [`Token`] is an identity: `f1:ROLE:NAME:JOB:EXPIRES:SIGNATURE`, readable but not modifiable. A
//! [`BlockToken`] gives its holder access to one block for some time. A partition token gives a
//! reduce access to one partition of the map outputs of a job.

use crate::{
    identity::{Role, check_name},
    keys::{Key, Keyring, Purpose, from_hex, to_hex},
};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Returns the name of a job in tokens of its tasks. `scope` identifies the journal of the
/// JobTracker.
pub fn job_name_of(scope: &str, job: u64) -> String {
    format!("{scope}/{job}")
}

/// Metadata key of tokens.
pub const TOKEN_KEY: &str = "fermata-token";

const VERSION: &str = "f1";
/// Stands for the job in the text of a token that has no job.
const NO_JOB: &str = "-";

/// Why a token is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text is not a token.
    #[error("the token cannot be read")]
    Malformed,
    /// The token is signed with a different key, or was changed.
    #[error("the token was not issued by this cluster, or was changed")]
    Foreign,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// This daemon has no key for such tokens.
    #[error("this daemon does not accept tokens for that role")]
    NoKey,
}

/// Returns the seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// An identity that is valid for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Role of the holder.
    pub role: Role,
    /// Name of the holder.
    pub name: String,
    /// Name of the job; set only in task tokens.
    pub job: Option<String>,
    /// Expiry in seconds since the Unix epoch.
    pub expires: u64,
}

impl Token {
    /// Returns a token that is valid for `lifetime` from now.
    pub fn new(role: Role, name: &str, job: Option<&str>, lifetime: Duration) -> Self {
        Self { role, name: name.into(), job: job.map(str::to_owned), expires: now() + lifetime.as_secs() }
    }

    fn purpose(role: Role) -> Purpose {
        if role == Role::Task { Purpose::Task } else { Purpose::Login }
    }

    /// Returns the token as signed text; `None` if `keys` has no key for its role.
    pub fn sign(&self, keys: &Keyring) -> Option<String> {
        let key = keys.get(Self::purpose(self.role))?;
        let job = self.job.as_deref().unwrap_or(NO_JOB);
        let signed_bytes = format!("{VERSION}:{}:{}:{job}:{}", self.role, self.name, self.expires);
        let signature = to_hex(&key.sign(signed_bytes.as_bytes()));
        Some(format!("{signed_bytes}:{signature}"))
    }

    /// Parses a token without verifying its signature.
    pub fn read(text: &str) -> Result<Self, TokenError> {
        let mut signed_bytes = text.split(':');
        let mut next = || signed_bytes.next().ok_or(TokenError::Malformed);
        let (version, role, name, job, expires, _signature) =
            (next()?, next()?, next()?, next()?, next()?, next()?);
        let role: Role = role.parse().map_err(|()| TokenError::Malformed)?;
        let expires = expires.parse().map_err(|_| TokenError::Malformed)?;
        if version != VERSION || signed_bytes.next().is_some() || check_name(name).is_err() {
            return Err(TokenError::Malformed);
        }
        let job = (job != NO_JOB).then(|| job.to_owned());
        Ok(Self { role, name: name.into(), job, expires })
    }

    /// Splits a token into the signed part and the signature.
    pub(crate) fn split_signature(text: &str) -> Result<(&str, &str), TokenError> {
        text.rsplit_once(':').ok_or(TokenError::Malformed)
    }

    /// Parses and verifies a token.
    pub fn verify(text: &str, keys: &Keyring) -> Result<Self, TokenError> {
        let token = Self::read(text)?;
        let key = keys.get(Self::purpose(token.role)).ok_or(TokenError::NoKey)?;
        let (signed_bytes, signature) = Self::split_signature(text)?;
        let signature = from_hex(signature).filter(|bytes| bytes.len() == 32).ok_or(TokenError::Malformed)?;
        if !key.verifies(signed_bytes.as_bytes(), &signature) {
            return Err(TokenError::Foreign);
        }
        if token.expires <= now() { Err(TokenError::Expired) } else { Ok(token) }
    }
}

/// What a block token permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading the block.
    Read,
    /// Writing a replica of a block that is not closed.
    Write,
    /// Writing a replica of a closed block, as a copy that the NameNode has ordered. Only DataNodes
    /// get such tokens.
    Copy,
}

const SEAL_BYTES: usize = 16;
const BLOCK_TOKEN_BYTES: usize = 8 + 8 + SEAL_BYTES;
/// Lifetime of a token for reading. A reader that needs more time asks the NameNode again.
const READ_LIFETIME: Duration = Duration::from_hours(12);
/// Lifetime of a token for writing. The token is checked only when a pipeline is set up.
const WRITE_LIFETIME: Duration = Duration::from_hours(2);

/// Gives access to one block. Contains the time of expiry, the maximum bytes to write, and a
/// signature. Empty in an open cluster.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockToken(Option<[u8; BLOCK_TOKEN_BYTES]>);

/// Hides the bytes, because a reader of a log could use the token.
impl fmt::Debug for BlockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockToken(..)")
    }
}

impl BlockToken {
    /// Returns the encoded token.
    pub fn to_bytes(self) -> Vec<u8> {
        self.0.map_or_else(Vec::new, |bytes| bytes.to_vec())
    }

    /// Decodes a token. Bytes of a different length give an empty token, which a closed cluster
    /// refuses.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.try_into().ok())
    }
}

/// Signs and checks block tokens; without a key, access to blocks is not restricted.
#[derive(Debug, Clone, Default)]
pub struct BlockKey(Option<Key>);

impl BlockKey {
    /// Uses this key for access to blocks; with `None` access is not restricted.
    pub fn new(key: Option<Key>) -> Self {
        Self(key)
    }

    /// Returns the bytes that are signed. They are shorter than those of [`Self::seal`], so that
    /// neither signature can be used as the other.
    fn signed_bytes((block, nonce): (u64, u64), access: Access, expires: [u8; 8], max: [u8; 8]) -> [u8; 33] {
        let mut signed_bytes = [0; 33];
        signed_bytes[..8].copy_from_slice(&block.to_le_bytes());
        signed_bytes[8..16].copy_from_slice(&nonce.to_le_bytes());
        signed_bytes[16..24].copy_from_slice(&expires);
        signed_bytes[24..32].copy_from_slice(&max);
        signed_bytes[32] = access as u8;
        signed_bytes
    }

    /// Returns a token for reading `block`.
    pub fn read_token(&self, block: u64, nonce: u64) -> BlockToken {
        self.sign((block, nonce), Access::Read, now() + READ_LIFETIME.as_secs(), 0)
    }

    /// Returns a token for writing at most `max` bytes of `block`.
    pub fn write_token(&self, block: u64, nonce: u64, max: u64) -> BlockToken {
        self.sign((block, nonce), Access::Write, now() + WRITE_LIFETIME.as_secs(), max)
    }

    /// Returns a token for copying `block`, of `length` bytes, to another DataNode.
    pub fn copy_token(&self, block: u64, nonce: u64, length: u64) -> BlockToken {
        self.sign((block, nonce), Access::Copy, now() + WRITE_LIFETIME.as_secs(), length)
    }

    fn sign(&self, block: (u64, u64), access: Access, expires: u64, max: u64) -> BlockToken {
        let Some(key) = &self.0 else { return BlockToken(None) };
        let (expires, max) = (expires.to_le_bytes(), max.to_le_bytes());
        let mut bytes = [0; BLOCK_TOKEN_BYTES];
        bytes[..8].copy_from_slice(&expires);
        bytes[8..16].copy_from_slice(&max);
        bytes[16..]
            .copy_from_slice(&key.sign(&Self::signed_bytes(block, access, expires, max))[..SEAL_BYTES]);
        BlockToken(Some(bytes))
    }

    /// Checks that the token permits this access to `block` with this nonce. Returns the maximum
    /// number of bytes to write.
    pub fn check(
        &self,
        token: BlockToken,
        block: u64,
        nonce: u64,
        access: Access,
    ) -> Result<u64, TokenError> {
        let Some(key) = &self.0 else { return Ok(u64::MAX) };
        let bytes = token.0.ok_or(TokenError::Malformed)?;
        let expires: [u8; 8] = std::array::from_fn(|at| bytes[at]);
        let max: [u8; 8] = std::array::from_fn(|at| bytes[8 + at]);
        if !key.verifies(&Self::signed_bytes((block, nonce), access, expires, max), &bytes[16..]) {
            return Err(TokenError::Foreign);
        }
        if u64::from_le_bytes(expires) <= now() {
            return Err(TokenError::Expired);
        }
        Ok(u64::from_le_bytes(max))
    }

    /// Returns a proof (a seal) of the NameNode that a DataNode has this address, so that other
    /// DataNodes may connect to it. Empty in an open cluster.
    pub fn seal(&self, addr: &str) -> Vec<u8> {
        self.0.as_ref().map_or_else(Vec::new, |key| key.sign(&Self::seal_input(addr))[..SEAL_BYTES].to_vec())
    }

    /// Returns whether the NameNode has made this seal for this address.
    pub fn is_sealed(&self, addr: &str, seal: &[u8]) -> bool {
        self.0
            .as_ref()
            .is_none_or(|key| seal.len() == SEAL_BYTES && key.verifies(&Self::seal_input(addr), seal))
    }

    /// Returns the bytes that a seal signs. They are always longer than the signed bytes of a
    /// token.
    fn seal_input(addr: &str) -> Vec<u8> {
        [b"the address of a DataNode: ", addr.as_bytes()].concat()
    }
}

fn partition_mac(job_secret: &[u8], job: &str, partition: u32) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(job_secret).expect("HMAC accepts keys of any length");
    mac.chain_update(partition.to_le_bytes()).chain_update(job)
}

/// Returns the token with which the reduce of `partition` fetches its map outputs and the
/// checkpoints of its earlier attempts.
pub fn partition_token(job_secret: &[u8], job: &str, partition: u32) -> Vec<u8> {
    partition_mac(job_secret, job, partition).finalize().into_bytes().to_vec()
}

/// Returns whether the token is valid for this partition. Runs in constant time.
pub fn is_partition_token_valid(token: &[u8], job_secret: &[u8], job: &str, partition: u32) -> bool {
    partition_mac(job_secret, job, partition).verify_slice(token).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour() -> Duration {
        Duration::from_hours(1)
    }

    #[test]
    fn a_signed_token_is_accepted_only_by_its_own_cluster_until_it_expires() {
        let keys = Keyring::from_secret(b"ours");
        for role in Role::ALL {
            let token = Token::new(role, "ann", (role == Role::Task).then_some("job_7"), hour());
            let text = token.sign(&keys).unwrap();
            assert_eq!(Token::verify(&text, &keys), Ok(token));
            assert_eq!(Token::verify(&text, &Keyring::from_secret(b"theirs")), Err(TokenError::Foreign));
            assert_eq!(Token::verify(&text, &Keyring::default()), Err(TokenError::NoKey));
        }
        let old = Token { expires: now() - 1, ..Token::new(Role::User, "ann", None, hour()) };
        assert_eq!(Token::verify(&old.sign(&keys).unwrap(), &keys), Err(TokenError::Expired));
    }

    #[test]
    fn debug_text_of_a_block_token_does_not_contain_its_bytes() {
        let key = BlockKey::new(Keyring::from_secret(b"ours").get(Purpose::Block).cloned());
        let token = key.copy_token(1, 2, 3);
        assert_ne!(token, BlockToken::default());
        assert_eq!(format!("{token:?}"), "BlockToken(..)");
    }

    #[test]
    fn altered_token_is_rejected() {
        let keys = Keyring::from_secret(b"ours");
        let text = Token::new(Role::User, "ann", None, hour()).sign(&keys).unwrap();
        let changed = [
            text.replace(":user:", ":admin:"),
            text.replace(":ann:", ":bob:"),
            text.replace(":-:", ":job_1:"),
            // The token of a task is signed with a different key.
            text.replace(":user:", ":task:"),
        ];
        for bad in changed {
            assert_eq!(Token::verify(&bad, &keys), Err(TokenError::Foreign), "{bad}");
        }
        for at in 0..text.len() {
            assert!(Token::verify(&text[..at], &keys).is_err(), "cut at {at}");
        }
        for bad in ["", ":", "f1:user:ann:-:1:", "f1:user:../x:-:99999999999:00", "f0:user:ann:-:9:00"] {
            assert!(Token::verify(bad, &keys).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_block_token_is_valid_for_one_block_one_access_and_some_time() {
        let key = |secret: &[u8]| BlockKey::new(Keyring::from_secret(secret).get(Purpose::Block).cloned());
        let (ours, theirs) = (key(b"ours"), key(b"theirs"));
        let token = BlockToken::from_bytes(&ours.read_token(7, 1).to_bytes());
        assert_eq!(ours.check(token, 7, 1, Access::Read), Ok(0));
        assert_eq!(ours.check(token, 8, 1, Access::Read), Err(TokenError::Foreign));
        assert_eq!(ours.check(token, 7, 2, Access::Read), Err(TokenError::Foreign), "another nonce");
        assert_eq!(ours.check(token, 7, 1, Access::Write), Err(TokenError::Foreign));
        assert_eq!(theirs.check(token, 7, 1, Access::Read), Err(TokenError::Foreign));
        assert_eq!(ours.check(BlockToken::default(), 7, 1, Access::Read), Err(TokenError::Malformed));
        let old = ours.sign((7, 1), Access::Read, now() - 1, 0);
        assert_eq!(ours.check(old, 7, 1, Access::Read), Err(TokenError::Expired));
        let mut later = old.to_bytes();
        later[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(ours.check(BlockToken::from_bytes(&later), 7, 1, Access::Read), Err(TokenError::Foreign));
        // A token for writing contains the maximum length.
        let token = ours.write_token(7, 1, 1000);
        assert_eq!(ours.check(token, 7, 1, Access::Write), Ok(1000));
        assert_eq!(ours.check(token, 7, 1, Access::Copy), Err(TokenError::Foreign));
        assert_eq!(ours.check(ours.copy_token(7, 1, 1000), 7, 1, Access::Copy), Ok(1000));
        assert_eq!(ours.check(ours.copy_token(7, 1, 1000), 7, 1, Access::Write), Err(TokenError::Foreign));
        let mut more = token.to_bytes();
        more[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(ours.check(BlockToken::from_bytes(&more), 7, 1, Access::Write), Err(TokenError::Foreign));
        // Without a key, access is not restricted.
        assert_eq!(BlockKey::default().check(BlockToken::default(), 7, 1, Access::Write), Ok(u64::MAX));
        // Only the NameNode can issue the proof of an address.
        let seal = ours.seal("n1:9401");
        assert!(ours.is_sealed("n1:9401", &seal));
        assert!(!ours.is_sealed("n1:22", &seal) && !theirs.is_sealed("n1:9401", &seal));
        assert!(!ours.is_sealed("n1:9401", b"") && !ours.is_sealed("n1:9401", &seal[1..]));
        assert!(BlockKey::default().is_sealed("anywhere:1", b""));
    }

    #[test]
    fn a_partition_token_is_valid_for_one_job_and_one_partition() {
        let token = partition_token(b"secret", "job_1", 3);
        assert!(is_partition_token_valid(&token, b"secret", "job_1", 3));
        assert!(!is_partition_token_valid(&token, b"secret", "job_1", 4));
        assert!(!is_partition_token_valid(&token, b"secret", "job_13", 3));
        assert!(!is_partition_token_valid(&token, b"other", "job_1", 3));
        assert!(!is_partition_token_valid(b"", b"secret", "job_1", 3));
        assert!(token.len() <= 255);
    }
}
