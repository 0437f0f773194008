//! Security tests: which calls, files and jobs each role may access, and which ports a default
//! cluster opens.

mod confined;
mod direct_requests;
mod expiry;
mod gate;
mod idle_connections;
mod one_machine;
mod overload;
mod owners;
mod paths;
mod paused;
mod ports;

use daemon::config::SecurityConfig;
use fermata_tests::{Cluster, QUICK, Up, binaries};
use security::{Authority, Credentials, Keyring, Role, Token, write_private};
use std::{fs, os::unix::fs::MetadataExt, path::PathBuf, process::Command, time::Duration};

/// Returns the account of this process, which also runs its clusters.
fn own_account() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}

/// A cluster that requires authentication, and the credential files of its operator.
pub(super) struct Lab {
    pub(super) cluster: Cluster,
    folder: tempfile::TempDir,
    tls: bool,
}

/// Whether a credential is valid, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Validity {
    Valid,
    OfAnotherCluster,
    Expired,
}

impl Lab {
    /// Starts a cluster with certificates, or only with a secret. `more` is added to
    /// `fermata.toml`.
    pub(super) fn up(tls: bool, more: &str) -> Self {
        Self::up_with(tls, QUICK, more)
    }

    /// Like [`Self::up`], with other base settings.
    fn up_with(tls: bool, settings: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ours", "theirs"] {
            let mut init = Command::new(binaries().join("mrctl"));
            init.args(["cluster", "init"]).arg(folder.path().join(name));
            if !tls {
                init.arg("--no-tls");
            }
            let ran = init.output().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        }
        let at = folder.path().join("ours");
        let security = if tls {
            format!("dir = \"{}\"\nidentity = \"admin\"", at.join("security").display())
        } else {
            format!("secret = \"{}\"", at.join("secret").display())
        };
        let settings = format!("{settings}\n[security]\n{security}\n{more}");
        let cluster = Cluster::up(Up { nodes: 2, settings: &settings, ..Up::default() });
        Self { cluster, folder, tls }
    }

    fn path(&self, cluster: &str) -> PathBuf {
        self.folder.path().join(cluster)
    }

    /// Creates credentials for a role and name.
    pub(super) fn credentials(&self, role: Role, name: &str, validity: Validity) -> Credentials {
        let of = if validity == Validity::OfAnotherCluster { "theirs" } else { "ours" };
        let dir = tempfile::tempdir_in(self.folder.path()).unwrap().keep();
        let mut settings = SecurityConfig::default();
        if self.tls {
            let authority =
                Authority::load(&self.path(of).join("ca"), &self.path(of).join("security")).unwrap();
            let days = if validity == Validity::Expired { -1 } else { 1 };
            let own = authority.person(role, name, days).unwrap();
            write_private(&dir.join(format!("{name}.pem")), own.as_bytes()).unwrap();
            // Every client trusts our servers, so that only the servers can refuse.
            fs::copy(self.path("ours/security/ca.pem"), dir.join("ca.pem")).unwrap();
            (settings.dir, settings.identity) = (dir, name.into());
        } else {
            let keys = Keyring::of_secret_file(&self.path(of).join("secret")).unwrap();
            let lifetime = Duration::from_secs(if validity == Validity::Expired { 0 } else { 3600 });
            let job = (role == Role::Task).then_some("job_1");
            let token = Token::new(role, name, job, lifetime).sign(&keys).unwrap();
            settings.token = dir.join("token");
            write_private(&settings.token, token.as_bytes()).unwrap();
        }
        Credentials::of_client(&settings, name).unwrap()
    }

    /// Creates credentials of a client that has only the certificate of the authority, if there is
    /// one. With TLS they also contain a token signed by an unknown key.
    pub(super) fn nobody(&self) -> Credentials {
        if self.tls { self.other_client() } else { Credentials::default() }
    }

    /// Creates credentials with a token signed by an unknown key.
    pub(super) fn other_client(&self) -> Credentials {
        let token = Token { role: Role::Task, name: "x".into(), job: None, expires: u64::MAX };
        let token = token.sign(&Keyring::from_secret(b"nobody's")).unwrap();
        let authority =
            if self.tls { fs::read(self.path("ours/security/ca.pem")).unwrap() } else { Vec::new() };
        Credentials::of_task(&token, &authority, own_account()).unwrap()
    }

    /// Creates the credentials of a task of `user` in the job named `job`.
    pub(super) fn task(&self, user: &str, job: &str) -> Credentials {
        let keys = Keyring::of_secret_file(&self.path("ours/secret")).unwrap();
        let token = Token::new(Role::Task, user, Some(job), Duration::from_hours(1)).sign(&keys).unwrap();
        Credentials::of_task(&token, &[], own_account()).unwrap()
    }

    /// Returns a configuration with which `mrctl` acts as this user.
    pub(super) fn config_of(&self, name: &str, admin: bool) -> String {
        let out = self.path(&format!("of-{name}"));
        if !out.exists() {
            let mut make = Command::new(binaries().join("mrctl"));
            make.args(["cluster", "user", name, "--cluster"]).arg(self.path("ours")).arg("--out").arg(&out);
            if admin {
                make.arg("--admin");
            }
            let ran = make.output().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            let real = fs::read_to_string(self.cluster.path(".fermata/fermata.toml")).unwrap();
            let real: toml::Table = real.parse().unwrap();
            let file = out.join("fermata.toml");
            let mut own: toml::Table = fs::read_to_string(&file).unwrap().parse().unwrap();
            own["cluster"]["namenode"] = real["cluster"]["namenode"].clone();
            own["cluster"]["jobtracker"] = real["cluster"]["jobtracker"].clone();
            fs::write(&file, own.to_string()).unwrap();
        }
        out.join("fermata.toml").display().to_string()
    }

    /// Runs `mrctl` as this user.
    pub(super) fn run(&self, user: &str, args: &[&str]) -> fermata_tests::Ran {
        let config = self.config_of(user, user == "root-of-all");
        self.cluster.try_mrctl(&[&["--config", &config], args].concat())
    }

    /// Like [`Self::run`], but checks that the command succeeds. Returns its output.
    #[track_caller]
    pub(super) fn done(&self, user: &str, args: &[&str]) -> String {
        let ran = self.run(user, args);
        assert_eq!(ran.code, 0, "{user}: mrctl {args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Like [`Self::run`], but checks that the command is refused with one line.
    #[track_caller]
    pub(super) fn denied(&self, user: &str, args: &[&str]) {
        let ran = self.run(user, args);
        assert!(
            ran.code != 0 && ran.stderr.contains("may not"),
            "{user}: mrctl {args:?}: {}{}",
            ran.stdout,
            ran.stderr
        );
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }

    /// Returns the addresses of the masters.
    pub(super) fn masters(&self) -> (String, String) {
        let text = fs::read_to_string(self.cluster.path(".fermata/fermata.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let of = |key: &str| table["cluster"][key].as_str().unwrap().to_owned();
        (of("namenode"), of("jobtracker"))
    }
}
