//! The certificate authority of a cluster, and the files that `mrctl cluster init` makes.

use crate::{
    NameError, SecurityError,
    identity::{Role, check_name, subject},
    keys::{read_private, write_private},
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::{fs, path::Path};

/// File of the private key of the authority. It stays on the machine where the cluster was
/// initialised.
const KEY_FILE: &str = "ca.key";
const NAME_FILE: &str = "name";
/// Lifetime of the certificate of the authority, in years.
const AUTHORITY_YEARS: i16 = 20;

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] SecurityError),
}

/// Issues the certificates of one cluster.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    name: String,
    key: String,
    certificate: String,
}

/// Returns the date that is this many days after today.
fn day(from_today: i64) -> jiff::civil::Date {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    today.saturating_add(jiff::Span::new().days(from_today))
}

fn set_validity(params: &mut CertificateParams, from: jiff::civil::Date, to: jiff::civil::Date) {
    let date = |day: jiff::civil::Date| {
        rcgen::date_time_ymd(i32::from(day.year()), day.month().unsigned_abs(), day.day().unsigned_abs())
    };
    (params.not_before, params.not_after) = (date(from), date(to));
}

/// Returns the parameters of the certificate of the authority. They depend only on the name of the
/// cluster, so that the authority can be loaded again.
fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("fermata cluster {name}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

impl Authority {
    /// Creates an authority for the cluster of this name.
    pub fn new(name: &str) -> Result<Self, AuthorityError> {
        check_name(name)?;
        let key = KeyPair::generate()?;
        let mut params = authority_params(name);
        let today = day(0);
        set_validity(&mut params, day(-1), today.saturating_add(jiff::Span::new().years(AUTHORITY_YEARS)));
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self::from_parts(name, key, certificate))
    }

    fn from_parts(name: &str, key: KeyPair, certificate: String) -> Self {
        let text = key.serialize_pem();
        Self { issuer: Issuer::new(authority_params(name), key), name: name.into(), key: text, certificate }
    }

    /// Saves the private key in `folder` and the certificate in `public`.
    pub fn save(&self, folder: &Path, public: &Path) -> Result<(), AuthorityError> {
        write_private(&folder.join(KEY_FILE), self.key.as_bytes())?;
        for (path, text) in
            [(folder.join(NAME_FILE), &self.name), (public.join(crate::tls::CA_CERT_FILE), &self.certificate)]
        {
            fs::write(&path, text).map_err(|source| SecurityError::Write { path, source })?;
        }
        Ok(())
    }

    /// Loads a saved authority.
    pub fn load(folder: &Path, public: &Path) -> Result<Self, AuthorityError> {
        let read = |path: std::path::PathBuf| {
            fs::read_to_string(&path).map_err(|source| SecurityError::Read { path, source })
        };
        let key = read_private(&folder.join(KEY_FILE))?;
        let key = KeyPair::from_pem(&String::from_utf8_lossy(&key))?;
        let (name, certificate) =
            (read(folder.join(NAME_FILE))?, read(public.join(crate::tls::CA_CERT_FILE))?);
        Ok(Self::from_parts(name.trim(), key, certificate))
    }

    /// Returns the certificate of the authority, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Makes a certificate and key for daemons of this role, valid for this many days. Returns both
    /// as PEM.
    pub fn daemon(&self, role: Role, days: i64) -> Result<String, AuthorityError> {
        self.issue(vec![role.server_name(), subject(role, role.name())], true, days)
    }

    /// Makes a certificate and key for a user, valid for this many days. Returns both as PEM. With
    /// 0 days or less the certificate has already expired.
    pub fn person(&self, role: Role, name: &str, days: i64) -> Result<String, AuthorityError> {
        check_name(name)?;
        self.issue(vec![subject(role, name)], false, days)
    }

    fn issue(&self, names: Vec<String>, is_server: bool, days: i64) -> Result<String, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, names[0].clone());
        for name in names {
            params.subject_alt_names.push(SanType::DnsName(name.try_into()?));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if is_server {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        set_validity(&mut params, day(days.min(0) - 1), day(days));
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
    }
}
