//! Tests of lists that change, disappear and reappear, and of credentials in other encodings.

use super::*;
use crate::{Authority, Guard, Keyring, tls::Pem};
use daemon::config::Config;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use std::{
    io::Read,
    net::{TcpListener, TcpStream},
};

fn token(name: &str, hours: u64) -> String {
    let keys = Keyring::from_secret(b"ours");
    Token::new(Role::User, name, None, Duration::from_hours(hours)).sign(&keys).unwrap()
}

fn fingerprint_of(text: &str) -> String {
    Credential::Token(text).fingerprint().unwrap()
}

#[test]
fn listed_users_and_credentials_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let settings = SecurityConfig { dir: dir.path().into(), ..SecurityConfig::default() };
    let path = dir.path().join(REVOKED_FILE);
    let (mut list, mut now) = RevokedFile::open(&settings).unwrap();
    let (hers, lost, new) = (token("ann", 1), token("bob", 1), token("bob", 2));
    let mut refuses = |role, name, shown: &str| {
        now = list.read_if_changed().unwrap_or_else(|| now.clone());
        now.contains(role, name, Credential::Token(shown))
    };
    assert!(!refuses(Role::User, "ann", &hers));
    let mut all = Revocations::default();
    all.names.insert("ann".into());
    all.credentials.insert(fingerprint_of(&lost));
    all.write(&path).unwrap();
    assert_eq!(Revocations::read(&path).unwrap(), all);
    for role in [Role::User, Role::Admin, Role::Task] {
        assert!(refuses(role, "ann", &hers));
    }
    // Revoked user names do not apply to daemons.
    assert!(!refuses(Role::DataNode, "ann", &hers));
    assert!(refuses(Role::User, "bob", &lost) && !refuses(Role::User, "bob", &new));
    fs::write(&path, "name ann\nnonsense\n").unwrap();
    assert!(refuses(Role::User, "ann", &hers) && refuses(Role::User, "bob", &lost));
    assert!(RevokedFile::open(&settings).unwrap_err().to_string().contains("line 2 is neither"));
    // Revocations stay in force while the file is missing.
    fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        assert!(refuses(Role::User, "ann", &hers) && refuses(Role::User, "bob", &lost));
    }
    fs::write(&path, "").unwrap();
    assert!(refuses(Role::User, "ann", &hers) && refuses(Role::User, "bob", &lost));
    fs::write(&path, "name bob\n").unwrap();
    assert!(!refuses(Role::User, "ann", &hers) && refuses(Role::User, "bob", &new));
    // An empty list is valid.
    Revocations::default().write(&path).unwrap();
    assert!(!refuses(Role::User, "bob", &new));
}

/// Checks that the separate thread reads a changed list.
#[test]
fn a_changed_list_is_read_in_the_background() {
    let dir = tempfile::tempdir().unwrap();
    let settings = SecurityConfig { dir: dir.path().into(), ..SecurityConfig::default() };
    let revoked = Revoked::new(&settings).unwrap();
    let hers = token("ann", 1);
    assert!(!revoked.contains(Role::User, "ann", Credential::Token(&hers)));
    Revocations { names: ["ann".into()].into(), ..Revocations::default() }
        .write(&dir.path().join(REVOKED_FILE))
        .unwrap();
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    while !revoked.contains(Role::User, "ann", Credential::Token(&hers)) {
        assert!(std::time::Instant::now() < deadline, "the list was not read");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_token_in_another_encoding_has_the_same_fingerprint_or_is_invalid() {
    let text = token("ann", 1);
    let (words, signature) = Token::split_signature(&text).unwrap();
    let other = format!("{words}:{}", signature.to_uppercase());
    assert_ne!(other, text);
    assert_eq!(fingerprint_of(&other), fingerprint_of(&text));
    assert_eq!(Token::verify(&other, &Keyring::from_secret(b"ours")), Err(crate::TokenError::Malformed));
    assert_ne!(fingerprint_of(&token("ann", 2)), fingerprint_of(&text));
}

/// Parses a DER element. Returns its tag, its contents, and the bytes after it.
fn parse_element(bytes: &[u8]) -> (u8, &[u8], &[u8]) {
    let (length, head) = match bytes[1] {
        short @ ..=0x7f => (usize::from(short), 2),
        0x81 => (usize::from(bytes[2]), 3),
        0x82 => (usize::from(bytes[2]) << 8 | usize::from(bytes[3]), 4),
        long => panic!("a length of {long:#x}"),
    };
    (bytes[0], &bytes[head..head + length], &bytes[head + length..])
}

/// Encodes a DER element with this tag and these contents.
fn encode_element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let table = parts.concat();
    let length = table.len();
    let head = match length {
        ..0x80 => vec![tag, length as u8],
        0x80..0x100 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head, table].concat()
}

/// The order of the curve P-256.
const ORDER: [u8; 32] = [
    0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa,
    0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
];

/// Returns the order of the curve minus this number, as a DER integer.
fn order_minus(number: &[u8]) -> Vec<u8> {
    let mut left = ORDER;
    let mut borrow = 0;
    for at in 0..32 {
        let digit = if at < number.len() { i32::from(number[number.len() - 1 - at]) } else { 0 };
        let rest = i32::from(left[31 - at]) - digit - borrow;
        borrow = i32::from(rest < 0);
        left[31 - at] = rest.rem_euclid(256) as u8;
    }
    let zeros = left.iter().take_while(|digit| **digit == 0).count();
    let sign: &[u8] = if left[zeros] >= 0x80 { &[0] } else { &[] };
    encode_element(2, &[sign, &left[zeros..]])
}

/// Returns the same certificate with another valid signature: (r, n - s) instead of (r, s).
fn with_other_signature(certificate: &CertificateDer<'_>) -> CertificateDer<'static> {
    let (_, all, _) = parse_element(certificate);
    let (_, _, after_signed) = parse_element(all);
    let (_, _, signature) = parse_element(after_signed);
    let signed = &all[..all.len() - signature.len()];
    let (_, bits, _) = parse_element(signature);
    let (_, numbers, _) = parse_element(&bits[1..]);
    let (_, _, second) = parse_element(numbers);
    let first = &numbers[..numbers.len() - second.len()];
    let (_, s, _) = parse_element(second);
    let numbers = encode_element(0x30, &[first, &order_minus(s)]);
    let signature = encode_element(3, &[&[0], &numbers]);
    encode_element(0x30, &[signed, &signature]).into()
}

/// Uses a real connection, because the test depends on which encodings TLS accepts.
#[test]
fn certificate_with_another_signature_encoding_is_revoked_too() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("test").unwrap();
    let file =
        |name: &str, text: &str| crate::write_private(&dir.path().join(name), text.as_bytes()).unwrap();
    file("ca.pem", authority.certificate());
    file("datanode.pem", &authority.daemon(Role::DataNode, 1).unwrap());
    let keys = Keyring::from_secret(b"ours");
    file("datanode.keys", &keys.key_file_for(Role::DataNode));
    let ann = authority.person(Role::User, "ann", 1).unwrap();
    file("ann.pem", &ann);
    let mut config = Config::default();
    config.security.dir = dir.path().into();
    let enters = |guard: &Guard, chain: CertificateDer<'static>| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let roots = Pem { authority: authority.certificate().into(), own: Vec::new() };
        let roots = roots.roots(dir.path()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(ann.as_bytes()).unwrap();
        let client = rustls::ClientConfig::builder().with_root_certificates(roots);
        let client = Arc::new(client.with_client_auth_cert(vec![chain], key).unwrap());
        let name = ServerName::try_from(Role::DataNode.server_name()).unwrap();
        let calling = thread::spawn(move || {
            let session = rustls::ClientConnection::new(client, name).unwrap();
            // The server may close the connection before the client has sent everything.
            crate::Stream::secured(near, session.into()).map(|stream| (&stream).read(&mut [0]))
        });
        let entered = guard.accept(far).map(drop).map_err(|error| error.to_string());
        drop(calling.join());
        entered
    };
    let own = CertificateDer::from_pem_slice(ann.as_bytes()).unwrap();
    let other = with_other_signature(&own);
    assert_ne!(own, other);
    let guard = Guard::new(&config, Role::DataNode).unwrap();
    for good in [own.clone(), other.clone()] {
        assert_eq!(enters(&guard, good), Ok(()));
    }
    let mut all = Revocations::default();
    all.credentials.insert(fingerprint_of_file(&dir.path().join("ann.pem")).unwrap());
    all.write(&dir.path().join(REVOKED_FILE)).unwrap();
    let guard = Guard::new(&config, Role::DataNode).unwrap();
    for bad in [own, other] {
        assert_eq!(enters(&guard, bad), Err("its certificate has been revoked".into()));
    }
}
