//! Reads certificate files, and makes the configurations of rustls.
//!
//! A server proves its *role* by a host name that all servers of the role share: addresses change,
//! and the certificate of a DataNode must not be valid for the NameNode. A client proves its
//! identity by another name. Daemons are servers and clients, so their certificates have both
//! names.

use crate::{
    SecurityError,
    identity::{Role, parse_subject},
    keys::read_private,
};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{fs, path::Path, sync::Arc};

/// Name of the file with the certificate of the cluster's authority.
pub(crate) const CA_CERT_FILE: &str = "ca.pem";

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
        // Check the certificate here, because errors should contain the path of the file.
        pem.chain(&path)?;
        Ok(pem)
    }

    pub(crate) fn authority_in(dir: &Path) -> Result<Self, SecurityError> {
        let path = dir.join(CA_CERT_FILE);
        let read = fs::read(&path);
        let authority = read.map_err(|source| SecurityError::Read { path: path.clone(), source })?;
        let pem = Self { authority, own: Vec::new() };
        if pem.roots(&path)?.is_empty() {
            return Err(SecurityError::Content { path, why: "contains no certificate".into() });
        }
        Ok(pem)
    }

    /// Returns the role and name in this process's own certificate.
    pub(crate) fn subject(&self) -> Option<(Role, String)> {
        subject_of(&CertificateDer::from_pem_slice(&self.own).ok()?)
    }

    pub(crate) fn roots(&self, path: &Path) -> Result<Arc<RootCertStore>, SecurityError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&self.authority) {
            let certificate = certificate.map_err(|error| content_error(path, CA_CERT_FILE, error))?;
            roots.add(certificate).map_err(|error| content_error(path, CA_CERT_FILE, error))?;
        }
        Ok(Arc::new(roots))
    }

    fn chain(
        &self,
        path: &Path,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), SecurityError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.own).collect();
        let chain = chain.map_err(|error| content_error(path, "certificate", error))?;
        if chain.is_empty() {
            return Err(content_error(path, "certificate", "the file contains none"));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.own);
        Ok((chain, key.map_err(|error| content_error(path, "private key", error))?))
    }
}

fn content_error(path: &Path, what: &str, why: impl std::fmt::Display) -> SecurityError {
    SecurityError::Content { path: path.into(), why: format!("{what} cannot be used: {why}") }
}

/// Returns the TLS configuration of a server. Clients without a certificate may connect, because
/// they may use tokens.
#[cfg(feature = "server")]
pub(crate) fn server_config(pem: &Pem, path: &Path) -> Result<Arc<rustls::ServerConfig>, SecurityError> {
    let verifier =
        rustls::server::WebPkiClientVerifier::builder(pem.roots(path)?).allow_unauthenticated().build();
    let verifier = verifier.map_err(|error| content_error(path, CA_CERT_FILE, error))?;
    let (chain, key) = pem.chain(path)?;
    let config =
        rustls::ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| content_error(path, "certificate", error))?))
}

/// Returns the TLS configuration of a client.
pub(crate) fn client_config(pem: &Pem, path: &Path) -> Result<Arc<rustls::ClientConfig>, SecurityError> {
    let builder = rustls::ClientConfig::builder().with_root_certificates(pem.roots(path)?);
    if pem.own.is_empty() {
        return Ok(Arc::new(builder.with_no_client_auth()));
    }
    let (chain, key) = pem.chain(path)?;
    let config = builder.with_client_auth_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| content_error(path, "certificate", error))?))
}

/// Returns the role and name in a certificate, which must have been verified.
pub(crate) fn subject_of(certificate: &CertificateDer<'_>) -> Option<(Role, String)> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_dns_names().find_map(parse_subject)
}
