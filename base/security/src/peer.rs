//! Determines the account of the program at the other end of a local connection.
//!
//! Without TLS a server does not prove its identity, and any account can listen on the port of a
//! daemon that has ended. Before a token is sent over a plain connection to this machine, the
//! kernel is asked which account owns the socket of the peer. It must be root, or an account that
//! can read the credential anyway. The check uses the established connection, so the port cannot
//! change its owner between check and use. If the owner cannot be found, the connection is refused.
//!
//! Connections to other machines are not checked, because the kernel has no information about their
//! peers. Use certificates there.

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::{
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    thread,
    time::Duration,
};
use tokio::net::TcpStream;
use tonic::{
    codegen::http::Uri,
    transport::{self, Channel},
};
use tower_service::Service;

/// Environment variable with one more account, by name or user ID, that is trusted like the account
/// of this process.
pub const TRUST_VAR: &str = "FERMATA_TRUST_OWNER";

/// Files with the sockets of this network namespace. They are read if the kernel cannot be queried
/// about a single socket. The second file does not exist if IPv6 is disabled.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// Code for the state of a listening socket in [`TABLES`].
const LISTEN: &str = "0A";
/// Number of attempts to find the owner of a connection.
const TABLE_READS: u32 = 10;
/// Delay between two attempts to find the owner of a connection.
const TABLE_READ_DELAY: Duration = Duration::from_millis(20);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Returns the user ID of the account in [`TRUST_VAR`].
pub fn trusted_owner() -> Option<u32> {
    let name = std::env::var(TRUST_VAR).ok().filter(|name| !name.is_empty())?;
    name.parse().ok().or_else(|| Some(daemon::account::find(&name)?.0))
}

/// User IDs of the accounts whose programs may get a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accounts(Vec<u32>);

impl Accounts {
    /// Returns the accounts for a credential in a file of `owner`: that account, the account of
    /// this process, root, and the account in [`TRUST_VAR`].
    pub(crate) fn of_file(owner: Option<u32>) -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self([0, own].into_iter().chain(owner).chain(trusted_owner()).collect())
    }

    /// Returns this account and root.
    pub(crate) fn of_account(account: u32) -> Self {
        Self(vec![0, account])
    }

    pub(crate) fn contains(&self, account: u32) -> bool {
        self.0.contains(&account)
    }

    /// Refuses a connection to a program on this machine that runs as another account. Blocks.
    pub(crate) fn check(&self, local_addr: SocketAddr, peer_addr: SocketAddr) -> io::Result<()> {
        let (local_addr, peer_addr) = (canonical(local_addr), canonical(peer_addr));
        if !peer_addr.ip().is_loopback() && peer_addr.ip() != local_addr.ip() {
            return Ok(());
        }
        let mut found = Owner::Listening(Vec::new());
        for at in 0..TABLE_READS {
            if at > 0 {
                thread::sleep(TABLE_READ_DELAY);
            }
            found =
                query_kernel(local_addr, peer_addr).map_or_else(|| read_tables(local_addr, peer_addr), Ok)?;
            match &found {
                Owner::Accepted(owner) if self.0.contains(owner) => return Ok(()),
                Owner::Accepted(_) => break,
                Owner::Listening(owners) => {
                    if !owners.is_empty() && owners.iter().all(|owner| self.0.contains(owner)) {
                        return Ok(());
                    }
                }
            }
        }
        let other = match &found {
            Owner::Accepted(owner) => Some(owner),
            Owner::Listening(owners) => owners.iter().find(|owner| !self.0.contains(owner)),
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, self.refusal(peer_addr, other.copied())))
    }

    fn refusal(&self, peer_addr: SocketAddr, other: Option<u32>) -> String {
        let Some(other) = other else {
            return format!(
                "cannot determine which account the program at {peer_addr} belongs to (it is not in /proc/net/tcp): no token is sent \
                 to it; use a cluster with certificates"
            );
        };
        let (whose, own) = (daemon::account::name_of(other), daemon::account::name_of(self.0[1]));
        format!(
            "the program at {peer_addr} belongs to {whose}, not to {own}: no token is sent to it; start the cluster again (`mrctl \
             up` takes other ports), or set {TRUST_VAR}={other} if that account runs your cluster"
        )
    }
}

/// User ID of the owner of the socket of the peer, according to the kernel.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// A process has accepted the connection.
    Accepted(u32),
    /// No process has accepted the connection yet; these accounts listen on the port. Older kernels
    /// report root as the owner of such a connection.
    Listening(Vec<u32>),
}

fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Queries the kernel about the listener and the socket of the peer. Returns `None` if it does not
/// answer, for example in a sandbox. The listener is queried first: a connection that is not
/// accepted after that still belongs to that listener.
fn query_kernel(local_addr: SocketAddr, peer_addr: SocketAddr) -> Option<Owner> {
    let any = if peer_addr.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    let listener = query_socket(peer_addr, SocketAddr::new(any, 0)).filter(|found| found.listens);
    let peer = query_socket(peer_addr, local_addr)?;
    if !peer.listens && peer.inode != 0 {
        return Some(Owner::Accepted(peer.owner));
    }
    listener.map(|found| Owner::Listening(vec![found.owner]))
}

/// What the kernel reports about a socket.
struct SocketInfo {
    listens: bool,
    owner: u32,
    /// Inode of the socket; 0 if no process has it.
    inode: u32,
}

/// Queries the kernel about a TCP socket by its addresses, with one request of `sock_diag(7)`.
fn query_socket(local: SocketAddr, remote: SocketAddr) -> Option<SocketInfo> {
    const BY_FAMILY: u16 = 20;
    const REQUEST: u16 = 1;
    const TCP: u8 = 6;
    const LISTEN: u8 = 10;
    let (raw, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = socket_with(AddressFamily::NETLINK, raw, flags, Some(netlink::SOCK_DIAG)).ok()?;
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut body = vec![family.as_raw() as u8, TCP, 0, 0];
    // The mask selects sockets in any state.
    body.extend(u32::MAX.to_ne_bytes());
    body.extend([local, remote].map(|addr| addr.port().to_be_bytes()).concat());
    for addr in [local, remote] {
        match addr.ip() {
            IpAddr::V4(ip) => body.extend([&ip.octets()[..], &[0; 12]].concat()),
            IpAddr::V6(ip) => body.extend(ip.octets()),
        }
    }
    // These values select any interface and any cookie.
    body.extend(0_u32.to_ne_bytes());
    body.extend(u64::MAX.to_ne_bytes());
    let mut request = (16 + body.len() as u32).to_ne_bytes().to_vec();
    request.extend([BY_FAMILY, REQUEST].map(u16::to_ne_bytes).concat());
    request.extend([0; 8]);
    request.extend(body);
    send(&socket, &request, SendFlags::empty()).ok()?;
    let mut answer = [0; 1024];
    let (_, length) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
    let answer = answer.get(..length)?;
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    // If the answer is an error, it has another message type.
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let state = *answer.get(17)?;
    (kind == BY_FAMILY).then_some(SocketInfo {
        listens: state == LISTEN,
        owner: number(80)?,
        inode: number(84)?,
    })
}

/// Searches for the owner of the peer in the files with all sockets. The second file is not read if
/// the first contains the connection.
fn read_tables(local_addr: SocketAddr, peer_addr: SocketAddr) -> io::Result<Owner> {
    let mut all = String::new();
    for path in TABLES {
        match fs::read_to_string(path) {
            Ok(text) => all.push_str(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && path == TABLES[1] => {}
            Err(error) => {
                let why = format!(
                    "cannot determine the owner of the program that would get the token: {path}: {error}"
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        }
        if let found @ Owner::Accepted(_) = find_owner(&all, local_addr, peer_addr) {
            return Ok(found);
        }
    }
    Ok(find_owner(&all, local_addr, peer_addr))
}

/// Parses an address such as `0100007F:2710`: 32-bit integers in native byte order, and a port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

/// Searches for the owner of the peer of a connection from `local_addr` to `peer_addr` in `tables`,
/// the contents of these files.
fn find_owner(tables: &str, local_addr: SocketAddr, peer_addr: SocketAddr) -> Owner {
    let mut listening = Vec::new();
    for line in tables.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, _, _, _, uid, _, inode, ..] = fields[..] else { continue };
        let (Some(local), Some(remote), Ok(uid)) = (parse_address(local), parse_address(remote), uid.parse())
        else {
            continue;
        };
        if state == LISTEN {
            let covers = local.ip().is_unspecified() || local.ip() == peer_addr.ip();
            if covers && local.port() == peer_addr.port() {
                listening.push(uid);
            }
        } else if (local, remote) == (peer_addr, local_addr) && inode != "0" {
            return Owner::Accepted(uid);
        }
    }
    Owner::Listening(listening)
}

/// A tonic endpoint. Before a local server gets a token without TLS, the account of the server is
/// checked.
#[derive(Clone)]
pub struct Endpoint {
    inner: transport::Endpoint,
    accounts: Option<Arc<Accounts>>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.inner.uri())
    }
}

impl Endpoint {
    pub(crate) fn new(inner: transport::Endpoint, accounts: Option<Arc<Accounts>>) -> Self {
        Self { inner, accounts }
    }

    /// Changes settings of the endpoint.
    #[must_use]
    pub fn with(self, set: impl FnOnce(transport::Endpoint) -> transport::Endpoint) -> Self {
        Self { inner: set(self.inner), ..self }
    }

    /// Connects immediately. The future is boxed, so that only this crate compiles the connection.
    pub fn connect(&self) -> Pin<Box<dyn Future<Output = Result<Channel, transport::Error>> + Send + '_>> {
        Box::pin(async {
            match self.checked_connector() {
                Some(connector) => self.inner.connect_with_connector(connector).await,
                None => self.inner.connect().await,
            }
        })
    }

    /// Returns a channel that connects at its first call.
    pub fn connect_lazy(&self) -> Channel {
        match self.checked_connector() {
            Some(connector) => self.inner.connect_with_connector_lazy(connector),
            None => self.inner.connect_lazy(),
        }
    }

    /// Returns the connector that checks the account of the server; `None` if no check is needed.
    fn checked_connector(&self) -> Option<CheckedConnector> {
        let accounts = self.accounts.clone()?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(self.inner.get_tcp_nodelay());
        http.set_keepalive(self.inner.get_tcp_keepalive());
        http.set_connect_timeout(self.inner.get_connect_timeout());
        Some(CheckedConnector { http, accounts })
    }
}

/// Connects, then checks the account of the server.
#[derive(Clone)]
struct CheckedConnector {
    http: HttpConnector,
    accounts: Arc<Accounts>,
}

impl Service<Uri> for CheckedConnector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, accounts) = (self.http.call(uri), self.accounts.clone());
        Box::pin(async move {
            let stream = connecting.await?;
            let (local_addr, peer_addr) = (stream.inner().local_addr()?, stream.inner().peer_addr()?);
            tokio::task::spawn_blocking(move || accounts.check(local_addr, peer_addr)).await??;
            Ok(stream)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skip::skip;
    use std::net::TcpListener;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn line(local: &str, remote: &str, state: &str, uid: u32, inode: u32) -> String {
        format!("0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {uid:5} 0 {inode} 1\n")
    }

    fn found(lines: &[String]) -> Owner {
        let (local_addr, peer_addr) =
            ("127.0.0.1:40000".parse().unwrap(), "127.0.0.1:10000".parse().unwrap());
        find_owner(&format!("{HEAD}{}", lines.concat()), local_addr, peer_addr)
    }

    /// Returns 127.0.0.1 as the kernel of this machine prints it.
    fn loopback() -> String {
        format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]))
    }

    /// Returns 127.0.0.1 as an IPv6 address, as the kernel of this machine prints it.
    fn mapped_loopback() -> String {
        format!("{:08X}{:08X}{:08X}{}", 0, 0, u32::from_ne_bytes([0, 0, 0xff, 0xff]), loopback())
    }

    #[test]
    fn owner_of_an_accepted_connection_is_found_in_both_tables() {
        let (v4, v6) = (loopback(), mapped_loopback());
        // The socket of this client, and a connection of another client to the same server.
        let ours = line(&format!("{v4}:9C40"), &format!("{v4}:2710"), "01", 5, 9);
        let other = line(&format!("{v4}:2710"), &format!("{v4}:9C41"), "01", 6, 9);
        for at in [v4, v6] {
            let peer = line(&format!("{at}:2710"), &format!("{at}:9C40"), "01", 77, 9);
            assert_eq!(found(&[ours.clone(), other.clone(), peer]), Owner::Accepted(77));
        }
        assert_eq!(found(&[ours, other]), Owner::Listening(vec![]));
    }

    #[test]
    fn connection_that_is_not_accepted_belongs_to_the_listener() {
        let v4 = loopback();
        // Older kernels report root as its owner.
        let queued = line(&format!("{v4}:2710"), &format!("{v4}:9C40"), "01", 0, 0);
        for at in [v4.clone(), "0".repeat(8), "0".repeat(32), mapped_loopback()] {
            let none = format!("{}:0000", "0".repeat(at.len()));
            let listener = line(&format!("{at}:2710"), &none, LISTEN, 77, 3);
            let elsewhere = line(&format!("{at}:2711"), &none, LISTEN, 78, 3);
            assert_eq!(found(&[listener, elsewhere, queued.clone()]), Owner::Listening(vec![77]), "{at}");
        }
    }

    #[test]
    fn program_of_another_account_on_this_machine_is_refused() {
        let own = rustix::process::geteuid().as_raw();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                skip("IPv6", format_args!("this machine has no {at}"));
                continue;
            };
            let peer_addr = listener.local_addr().unwrap();
            let stream = std::net::TcpStream::connect(peer_addr).unwrap();
            let local_addr = stream.local_addr().unwrap();
            let others = Accounts(vec![own + 1, own + 1]);
            for accepted in [false, true] {
                let _theirs = accepted.then(|| listener.accept().unwrap());
                Accounts::of_account(own).check(local_addr, peer_addr).unwrap();
                let refused = others.check(local_addr, peer_addr).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
                let line = refused.to_string();
                assert!(line.contains("belongs to") && line.contains(TRUST_VAR), "{line}");
            }
        }
        // A socket that the kernel does not list has no trusted owner.
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let refused = Accounts::of_account(own).check("127.0.0.1:2".parse().unwrap(), nowhere).unwrap_err();
        assert!(refused.to_string().contains("cannot determine which account"), "{refused}");
        // Connections to other machines are not checked.
        let (local_addr, peer_addr) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:1".parse().unwrap());
        Accounts::of_account(own).check(local_addr, peer_addr).unwrap();
    }

    #[test]
    fn netlink_and_the_files_in_proc_give_the_same_owner() {
        for at in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                skip("IPv6", format_args!("this machine has no {at}"));
                continue;
            };
            // The connection always uses IPv4, which a listener on all IPv6 addresses accepts too.
            let peer_addr =
                SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), listener.local_addr().unwrap().port());
            let Ok(stream) = std::net::TcpStream::connect(peer_addr) else {
                skip("IPv6", format_args!("{at} does not take IPv4 here"));
                continue;
            };
            let local_addr = stream.local_addr().unwrap();
            let Some(waiting) = query_kernel(local_addr, peer_addr) else {
                return skip("sock_diag", "the owners of sockets cannot be queried here");
            };
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(waiting, Owner::Listening(vec![own]));
            assert_eq!(read_tables(local_addr, peer_addr).unwrap(), waiting);
            let _theirs = listener.accept().unwrap();
            assert_eq!(query_kernel(local_addr, peer_addr), Some(Owner::Accepted(own)));
            assert_eq!(read_tables(local_addr, peer_addr).unwrap(), Owner::Accepted(own));
        }
    }

    #[tokio::test]
    async fn connecting_to_a_program_of_another_account_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inner = transport::Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap()));
        let own = rustix::process::geteuid().as_raw();
        let accounts = Accounts(vec![own + 1, own + 1]);
        let endpoint = Endpoint::new(inner.unwrap(), Some(Arc::new(accounts)));
        let refused = endpoint.connect().await.unwrap_err();
        assert!(crate::connection_failure(&refused).contains("no token is sent to it"), "{refused:?}");
    }
}
