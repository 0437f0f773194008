//! Certificate files, and the configurations of rustls.
//!
//! A server proves its *role* by a name that all servers of the role share: addresses change, and
//! the certificate of a DataNode must not be valid for the NameNode. A client proves its identity
//! by another name. Daemons are both, so their certificate has both names.

use crate::{
    SecurityError,
    identity::{Role, of_subject},
    keys::read_private,
};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{fs, path::Path, sync::Arc};

/// File with the certificate of the authority.
pub(crate) const AUTHORITY: &str = "ca.pem";

/// Contents of certificate files.
#[derive(Clone)]
pub(crate) struct Pem {
    /// Certificate of the authority.
    pub(crate) authority: Vec<u8>,
    /// Own certificate and key; empty if there is none.
    pub(crate) own: Vec<u8>,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem(..)")
    }
}

impl Pem {
    pub(crate) fn of_daemon(dir: &Path, role: Role) -> Result<Self, SecurityError> {
        let pem = Self::of_client(dir, role.name())?;
        let why = match pem.subject() {
            Some((found, _)) if found == role => return Ok(pem),
            Some((found, _)) => format!("is the certificate of a {found}, and this is a {role}"),
            None => "is not a certificate of a daemon: make one with `mrctl cluster init`".into(),
        };
        Err(SecurityError::Content { path: dir.join(format!("{role}.pem")), why })
    }

    pub(crate) fn of_client(dir: &Path, name: &str) -> Result<Self, SecurityError> {
        if name.is_empty() {
            let why = "the name of the certificate is missing: set security.identity, or security.token";
            return Err(SecurityError::Missing(why.into()));
        }
        let path = dir.join(format!("{name}.pem"));
        let pem = Self { own: read_private(&path)?, ..Self::authority_in(dir)? };
        // Checked here, where the path of the file is known.
        pem.chain(&path)?;
        Ok(pem)
    }

    pub(crate) fn authority_in(dir: &Path) -> Result<Self, SecurityError> {
        let path = dir.join(AUTHORITY);
        let read = fs::read(&path);
        let authority = read.map_err(|source| SecurityError::Read { path: path.clone(), source })?;
        let pem = Self { authority, own: Vec::new() };
        if pem.roots(&path)?.is_empty() {
            return Err(SecurityError::Content { path, why: "contains no certificate".into() });
        }
        Ok(pem)
    }

    /// Returns the role and name in the own certificate.
    pub(crate) fn subject(&self) -> Option<(Role, String)> {
        subject_of(&CertificateDer::from_pem_slice(&self.own).ok()?)
    }

    pub(crate) fn roots(&self, path: &Path) -> Result<Arc<RootCertStore>, SecurityError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&self.authority) {
            let certificate = certificate.map_err(|error| content(path, AUTHORITY, error))?;
            roots.add(certificate).map_err(|error| content(path, AUTHORITY, error))?;
        }
        Ok(Arc::new(roots))
    }

    fn chain(
        &self,
        path: &Path,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), SecurityError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.own).collect();
        let chain = chain.map_err(|error| content(path, "certificate", error))?;
        if chain.is_empty() {
            return Err(content(path, "certificate", "the file contains none"));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.own);
        Ok((chain, key.map_err(|error| content(path, "private key", error))?))
    }
}

fn content(path: &Path, what: &str, why: impl std::fmt::Display) -> SecurityError {
    SecurityError::Content { path: path.into(), why: format!("{what} cannot be used: {why}") }
}

/// The TLS configuration of a server. Clients without a certificate may connect, because they use
/// tokens.
#[cfg(feature = "server")]
pub(crate) fn server_config(pem: &Pem, path: &Path) -> Result<Arc<rustls::ServerConfig>, SecurityError> {
    let verifier =
        rustls::server::WebPkiClientVerifier::builder(pem.roots(path)?).allow_unauthenticated().build();
    let verifier = verifier.map_err(|error| content(path, AUTHORITY, error))?;
    let (chain, key) = pem.chain(path)?;
    let config =
        rustls::ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| content(path, "certificate", error))?))
}

/// The TLS configuration of a client.
pub(crate) fn client_config(pem: &Pem, path: &Path) -> Result<Arc<rustls::ClientConfig>, SecurityError> {
    let builder = rustls::ClientConfig::builder().with_root_certificates(pem.roots(path)?);
    if pem.own.is_empty() {
        return Ok(Arc::new(builder.with_no_client_auth()));
    }
    let (chain, key) = pem.chain(path)?;
    let config = builder.with_client_auth_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| content(path, "certificate", error))?))
}

/// Returns the role and name in a certificate, which must have been verified.
pub(crate) fn subject_of(certificate: &CertificateDer<'_>) -> Option<(Role, String)> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_dns_names().find_map(of_subject)
}
