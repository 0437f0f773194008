//! Credentials of clients: with these a daemon, a user or a task proves its identity in its calls.

use crate::{
    SecurityError,
    identity::{Role, USER_KEY},
    keys::{Keyring, read_private},
    peer::{Accounts, Endpoint},
    stream::Stream,
    tls::{self, Pem},
    token::{TOKEN_KEY, Token},
};
use daemon::config::{Config, SecurityConfig};
use rustls::pki_types::ServerName;
use std::{fs, io, net::TcpStream, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};
use tonic::{
    metadata::{Ascii, MetadataMap, MetadataValue},
    transport::{self, Certificate, ClientTlsConfig},
};

/// Lifetime of a token that is made for one call.
const CALL_LIFETIME: Duration = Duration::from_mins(10);
/// Lifetime of the token of a task, which may run long. When the job has ended, the token is
/// rejected even before it expires: see `jobs`.
const TASK_LIFETIME: Duration = Duration::from_hours(7 * 24);

/// The credentials of a client; empty in an open cluster. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Credentials(Option<Arc<CredentialSet>>);

#[derive(Debug)]
struct CredentialSet {
    name: String,
    proof: Proof,
    tls: Option<(Pem, Arc<rustls::ClientConfig>)>,
    keys: Keyring,
    /// Accounts of this machine whose programs may get a token without TLS.
    accounts: Arc<Accounts>,
}

#[derive(Debug)]
enum Proof {
    /// The certificate of the TLS session.
    Certificate,
    /// A given token.
    Token(MetadataValue<Ascii>),
    /// A new token with this role, which the client signs for each call.
    SelfSigned(Role),
}

impl Credentials {
    /// Returns the credentials of a daemon.
    pub fn of_daemon(config: &Config, role: Role) -> Result<Self, SecurityError> {
        let settings = &config.security;
        if !settings.is_closed() {
            return Ok(Self::default());
        }
        let mut keys = Keyring::default();
        if !settings.secret.as_os_str().is_empty() {
            keys = Keyring::of_secret_file(&settings.secret)?;
        }
        if settings.dir.as_os_str().is_empty() {
            let accounts = accounts(&settings.secret);
            return Ok(Self::new(role.name(), Proof::SelfSigned(role), None, keys, accounts));
        }
        if keys.is_empty() {
            keys = Keyring::of_role(&settings.dir, role)?;
        }
        let pem = Pem::of_daemon(&settings.dir, role)?;
        let client = tls::client_config(&pem, &settings.dir)?;
        let accounts = Accounts::of_file(None);
        Ok(Self::new(role.name(), Proof::Certificate, Some((pem, client)), keys, accounts))
    }

    /// Returns the credentials of a user: a certificate, a token, or the secret of the cluster,
    /// with which `user` may be any name.
    pub fn of_client(settings: &SecurityConfig, user: &str) -> Result<Self, SecurityError> {
        if !settings.is_closed() && settings.token.as_os_str().is_empty() {
            return Ok(Self::default());
        }
        let dir = &settings.dir;
        let mut pem = None;
        if !dir.as_os_str().is_empty() {
            let own = settings.token.as_os_str().is_empty() && settings.secret.as_os_str().is_empty();
            pem = Some(if own { Pem::of_client(dir, &settings.identity)? } else { Pem::authority_in(dir)? });
        }
        let tls = match pem {
            Some(pem) => {
                let client = tls::client_config(&pem, dir)?;
                Some((pem, client))
            }
            None => None,
        };
        if !settings.token.as_os_str().is_empty() {
            let (name, token) = read_token(&settings.token)?;
            let accounts = accounts(&settings.token);
            return Ok(Self::new(&name, Proof::Token(token), tls, Keyring::default(), accounts));
        }
        if !settings.secret.as_os_str().is_empty() {
            let keys = Keyring::of_secret_file(&settings.secret)?;
            crate::check_name(user).map_err(|error| SecurityError::Missing(error.to_string()))?;
            return Ok(Self::new(
                user,
                Proof::SelfSigned(Role::Admin),
                tls,
                keys,
                accounts(&settings.secret),
            ));
        }
        let name = tls.as_ref().and_then(|(pem, _)| pem.subject()).map(|(_, name)| name);
        let why = "is not a certificate of this cluster: make one with `mrctl cluster user`";
        let path = dir.join(format!("{}.pem", settings.identity));
        let name = name.ok_or_else(|| SecurityError::Content { path, why: why.into() })?;
        Ok(Self::new(&name, Proof::Certificate, tls, Keyring::default(), Accounts::of_file(None)))
    }

    /// Returns the credentials of a caller that has shown this token, for a program that forwards the
    /// calls of others and has no rights of its own. The token is not verified: the servers do that.
    pub fn of_shown_token(text: &str, settings: &SecurityConfig) -> Result<Self, SecurityError> {
        let unusable = |why: String| SecurityError::Missing(format!("the token cannot be used: {why}"));
        let name = Token::read(text).map_err(|why| unusable(why.to_string()))?.name;
        let token = text.parse().map_err(|_| unusable("it is not plain text".into()))?;
        let tls = if settings.dir.as_os_str().is_empty() {
            None
        } else {
            let pem = Pem::authority_in(&settings.dir)?;
            let client = tls::client_config(&pem, &settings.dir)?;
            Some((pem, client))
        };
        Ok(Self::new(&name, Proof::Token(token), tls, Keyring::default(), accounts(&settings.secret)))
    }

    /// Returns the credentials of a task: the token of its job, and the certificate authority of
    /// the servers if they use TLS. Without TLS, servers on this machine must run as `account`, the
    /// account of the tracker, or as root. The account of the task is not trusted, because other
    /// tasks have it too.
    pub fn of_task(token: &str, authority: &[u8], account: u32) -> Result<Self, SecurityError> {
        if token.is_empty() {
            return Ok(Self::default());
        }
        let unusable =
            |why: String| SecurityError::Missing(format!("the task's token cannot be used: {why}"));
        let name = Token::read(token).map_err(|why| unusable(why.to_string()))?.name;
        let token = token.parse().map_err(|_| unusable("it is not plain text".into()))?;
        let tls = if authority.is_empty() {
            None
        } else {
            let pem = Pem { authority: authority.to_vec(), own: Vec::new() };
            let client = tls::client_config(&pem, Path::new("the cluster's authority"))?;
            Some((pem, client))
        };
        Ok(Self::new(&name, Proof::Token(token), tls, Keyring::default(), Accounts::of_account(account)))
    }

    fn new(
        name: &str,
        proof: Proof,
        tls: Option<(Pem, Arc<rustls::ClientConfig>)>,
        keys: Keyring,
        accounts: Accounts,
    ) -> Self {
        Self(Some(Arc::new(CredentialSet {
            name: name.into(),
            proof,
            tls,
            keys,
            accounts: Arc::new(accounts),
        })))
    }

    /// Returns the name that these credentials prove; `None` in an open cluster.
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref().map(|credentials| credentials.name.as_str())
    }

    /// Returns whether the identity is proven by a given token, so that no other token can be made.
    pub fn is_token(&self) -> bool {
        self.0.as_deref().is_some_and(|credentials| matches!(credentials.proof, Proof::Token(_)))
    }

    /// Returns a token with the same identity, valid for `lifetime`, and its contents; for clients
    /// that cannot sign. If the identity is proven by a given token, returns that token, with its
    /// own expiry.
    pub fn token(&self, lifetime: Duration) -> Result<(String, Token), SecurityError> {
        let Some(credentials) = &self.0 else {
            let why = "this cluster is open: its clients need no token, only a user name";
            return Err(SecurityError::Missing(why.into()));
        };
        let made = match &credentials.proof {
            Proof::SelfSigned(role) => {
                let token = Token::new(*role, &credentials.name, None, lifetime);
                token.sign(&credentials.keys).map(|text| (text, token))
            }
            Proof::Token(text) => {
                text.to_str().ok().and_then(|text| Some((text.to_owned(), Token::read(text).ok()?)))
            }
            Proof::Certificate => None,
        };
        made.ok_or_else(|| {
            let name = &credentials.name;
            SecurityError::Missing(format!(
                "{name} is proved by a certificate, and daemons with certificates have no key that checks tokens: let \
                 an admin make a certificate for the other client (`mrctl cluster user NAME --out FOLDER --days 1`)"
            ))
        })
    }

    /// Returns the certificate of the authority of the cluster, if servers use TLS.
    pub fn authority(&self) -> &[u8] {
        self.0
            .as_deref()
            .and_then(|credentials| credentials.tls.as_ref())
            .map_or(&[], |(pem, _)| &pem.authority)
    }

    /// Returns the token for the tasks of a job; empty in an open cluster. `job` is its name from
    /// [`crate::job_name_of`].
    pub fn task_token(&self, user: &str, job: &str) -> String {
        let Some(credentials) = &self.0 else { return String::new() };
        Token::new(Role::Task, user, Some(job), TASK_LIFETIME).sign(&credentials.keys).unwrap_or_default()
    }

    /// Returns an endpoint for the server at `addr` (`host:port`), which must have this role.
    /// `None` if the address is malformed.
    pub fn endpoint(&self, addr: &str, server: Role) -> Option<Endpoint> {
        let Some((pem, _)) = self.0.as_deref().and_then(|credentials| credentials.tls.as_ref()) else {
            let endpoint = transport::Endpoint::from_shared(format!("http://{addr}")).ok()?;
            return Some(Endpoint::new(endpoint, self.accounts()));
        };
        let mut tls = ClientTlsConfig::new()
            .domain_name(server.server_name())
            .ca_certificate(Certificate::from_pem(&pem.authority));
        if !pem.own.is_empty() {
            tls = tls.identity(tonic::transport::Identity::from_pem(&pem.own, &pem.own));
        }
        let endpoint =
            transport::Endpoint::from_shared(format!("https://{addr}")).ok()?.tls_config(tls).ok()?;
        Some(Endpoint::new(endpoint, None))
    }

    /// Returns the accounts that are trusted without TLS; `None` if TLS is used or no token is
    /// sent.
    fn accounts(&self) -> Option<Arc<Accounts>> {
        self.0
            .as_deref()
            .filter(|credentials| credentials.tls.is_none())
            .map(|credentials| credentials.accounts.clone())
    }

    /// Returns whether a program of this account on this machine is trusted to be a daemon of the
    /// cluster.
    pub fn trusts(&self, account: u32) -> bool {
        match &self.0 {
            Some(credentials) => credentials.accounts.contains(account),
            None => Accounts::of_file(None).contains(account),
        }
    }

    /// Adds the identity of the caller to a call. `user` is the name that the caller claims. In a
    /// closed cluster only an admin or the JobTracker may claim another name than the proven one.
    pub fn sign(&self, call: &mut MetadataMap, user: &MetadataValue<Ascii>) {
        let Some(credentials) = &self.0 else {
            call.insert(USER_KEY, user.clone());
            return;
        };
        if user.as_encoded_bytes() != credentials.name.as_bytes() {
            call.insert(USER_KEY, user.clone());
        }
        match &credentials.proof {
            Proof::Certificate => {}
            Proof::Token(token) => drop(call.insert(TOKEN_KEY, token.clone())),
            Proof::SelfSigned(role) => {
                let token = Token::new(*role, &credentials.name, None, CALL_LIFETIME).sign(&credentials.keys);
                if let Some(token) = token.and_then(|token| token.parse().ok()) {
                    call.insert(TOKEN_KEY, token);
                }
            }
        }
    }

    /// Returns a connector for servers of this role.
    pub fn connector(&self, server: Role) -> Connector {
        let tls = self.0.as_deref().and_then(|credentials| credentials.tls.as_ref());
        let tls = tls.map(|(_, config)| {
            let name = ServerName::try_from(server.server_name()).expect("a plain name");
            (config.clone(), name)
        });
        Connector { tls, accounts: self.accounts() }
    }
}

/// Makes the client side of bulk connections, which transfer blocks and map outputs. Cheap to
/// clone.
#[derive(Debug, Clone, Default)]
pub struct Connector {
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    accounts: Option<Arc<Accounts>>,
}

impl Connector {
    /// Returns the client side of a bulk connection. `within` becomes the timeout of reads and
    /// writes, for the handshake and after it. In a closed cluster without TLS, a connection to a
    /// program of another account on this machine is refused, because blocks, map outputs and their
    /// tokens would be sent to that program.
    pub fn secure(&self, socket: TcpStream, within: Duration) -> io::Result<Stream> {
        if let Some(accounts) = &self.accounts {
            accounts.check(socket.local_addr()?, socket.peer_addr()?)?;
        }
        let Some((config, name)) = &self.tls else { return Ok(Stream::from(socket)) };
        socket.set_read_timeout(Some(within))?;
        socket.set_write_timeout(Some(within))?;
        let session =
            rustls::ClientConnection::new(config.clone(), name.clone()).map_err(io::Error::other)?;
        Stream::secured(socket, session.into())
    }
}

/// Returns the accounts that are trusted with the credential in this file, including its owner.
fn accounts(file: &Path) -> Accounts {
    Accounts::of_file(fs::metadata(file).ok().map(|about| about.uid()))
}

fn read_token(path: &Path) -> Result<(String, MetadataValue<Ascii>), SecurityError> {
    let text = read_private(path)?;
    let text = String::from_utf8_lossy(&text);
    let bad = |why: String| SecurityError::Content { path: path.into(), why };
    let token = Token::read(text.trim()).map_err(|why| bad(why.to_string()))?;
    let value = text.trim().parse().map_err(|_| bad("it is not plain text".into()))?;
    Ok((token.name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, peer::TRUST_VAR, write_private};
    use rustix::process::{Uid, geteuid};
    use std::{collections::BTreeSet, os::unix::fs::chown, process::Command};

    const ROOT: u32 = 0;
    const NOBODY: u32 = 65_534;
    /// The owner of the credential file.
    const OWNER: u32 = 54_321;
    const TRACKER: u32 = 54_322;
    /// An account that has nothing to do with the cluster.
    const OTHER: u32 = 54_323;
    const SECRET: &[u8] = b"a secret that cannot be guessed";

    /// Returns which of the accounts of these tests are trusted.
    fn trusted(credentials: &Credentials) -> BTreeSet<u32> {
        let all = [ROOT, NOBODY, OWNER, TRACKER, OTHER, geteuid().as_raw()];
        all.into_iter().filter(|account| credentials.trusts(*account)).collect()
    }

    /// Runs `act` in a thread with an account that is not root, and passes the account.
    fn as_ordinary_account(act: impl FnOnce(u32) + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if geteuid().is_root() {
                    let nobody = Uid::from_raw(NOBODY);
                    rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                }
                act(geteuid().as_raw());
            });
        });
    }

    fn token(role: Role, job: Option<&str>) -> String {
        Token::new(role, "ann", job, CALL_LIFETIME).sign(&Keyring::from_secret(SECRET)).unwrap()
    }

    fn task_credentials() -> Credentials {
        Credentials::of_task(&token(Role::Task, Some("1-1")), &[], TRACKER).unwrap()
    }

    #[test]
    fn open_cluster_trusts_root_and_own_account() {
        as_ordinary_account(|own| assert_eq!(trusted(&Credentials::default()), [ROOT, own].into()));
    }

    /// The account of a task is not trusted, because other tasks have it too.
    #[test]
    fn task_trusts_root_and_its_tracker_and_not_its_own_account() {
        as_ordinary_account(|_| assert_eq!(trusted(&task_credentials()), [ROOT, TRACKER].into()));
    }

    #[test]
    fn secret_or_token_makes_the_owner_of_its_file_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, token_file) = (dir.path().join("secret"), dir.path().join("token"));
        write_private(&secret, SECRET).unwrap();
        write_private(&token_file, token(Role::User, None).as_bytes()).unwrap();
        let own = geteuid();
        let mut owner = own.as_raw();
        if own.is_root() {
            owner = OWNER;
            for file in [&secret, &token_file] {
                chown(file, Some(owner), None).unwrap();
            }
        } else {
            skip::skip("root", "only root can make files of another account");
        }
        let by_secret = SecurityConfig { secret, ..SecurityConfig::default() };
        let by_token = SecurityConfig { token: token_file, ..SecurityConfig::default() };
        let config = Config { security: by_secret.clone(), ..Config::default() };
        for credentials in [
            Credentials::of_daemon(&config, Role::DataNode),
            Credentials::of_client(&by_secret, "ann"),
            Credentials::of_client(&by_token, "ann"),
        ] {
            assert_eq!(trusted(&credentials.unwrap()), [ROOT, own.as_raw(), owner].into());
        }
    }

    #[test]
    fn with_a_certificate_no_other_account_is_trusted_and_no_token_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let authority = Authority::new("test").unwrap();
        fs::write(at(tls::CA_CERT_FILE), authority.certificate()).unwrap();
        let role = Role::DataNode;
        let keys = Keyring::from_secret(SECRET).key_file_for(role);
        for (name, text) in [
            ("ann.pem", authority.person(Role::User, "ann", 1).unwrap()),
            ("datanode.pem", authority.daemon(role, 1).unwrap()),
            ("datanode.keys", keys),
        ] {
            write_private(&at(name), text.as_bytes()).unwrap();
            if geteuid().is_root() {
                chown(at(name), Some(OWNER), None).unwrap();
            }
        }
        let security =
            SecurityConfig { dir: dir.path().into(), identity: "ann".into(), ..SecurityConfig::default() };
        let config = Config { security: security.clone(), ..Config::default() };
        for credentials in [Credentials::of_daemon(&config, role), Credentials::of_client(&security, "ann")] {
            let credentials = credentials.unwrap();
            assert!(!credentials.authority().is_empty());
            let why = credentials.token(CALL_LIFETIME).unwrap_err().to_string();
            assert!(
                why.contains("is proved by a certificate") && why.contains("`mrctl cluster user "),
                "{why}"
            );
            assert_eq!(trusted(&credentials), [ROOT, geteuid().as_raw()].into());
        }
    }

    /// Runs this test again in a separate process, with the environment variable that names the
    /// account.
    #[test]
    fn account_in_the_variable_is_trusted_by_users_and_daemons_and_not_by_tasks() {
        let named = OTHER.to_string();
        if std::env::var(TRUST_VAR).is_ok_and(|value| value == named) {
            assert!(Credentials::default().trusts(OTHER) && !task_credentials().trusts(OTHER));
            println!("checked");
            return;
        }
        let name =
            "credentials::tests::account_in_the_variable_is_trusted_by_users_and_daemons_and_not_by_tasks";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ran = again.args(["--exact", name, "--nocapture"]).env(TRUST_VAR, named).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        assert!(String::from_utf8_lossy(&ran.stdout).contains("checked"), "{ran:?}");
    }
}
