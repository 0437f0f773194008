//! Two ends that do not agree on TLS, in words for people. It never gets better by asking again.

/// What the transport says, and what it means.
const SAYINGS: [(&str, &str); 8] = [
    ("UnknownIssuer", OTHER_CLUSTER),
    ("BadSignature", OTHER_CLUSTER),
    ("NotValidForName", "another daemon than the one that is meant answers there: look at the address"),
    ("Expired", "its certificate has expired: `mrctl cluster renew` makes new ones"),
    ("NotValidYet", "its certificate is not good yet: look at the clocks"),
    ("received fatal alert", "it does not take your certificate: that is of another cluster, or has expired"),
    ("InvalidContentType", NO_TLS),
    ("corrupt message", NO_TLS),
];

const OTHER_CLUSTER: &str =
    "it runs, and is of another cluster than your certificates: name the right settings with --config";
const NO_TLS: &str =
    "it runs, and speaks no TLS: it is of another cluster than your certificates, or of one without";

/// What to make of the transport's reason for a call that failed; None if it is not about TLS.
pub fn misfit(reason: &str) -> Option<&'static str> {
    SAYINGS.iter().find(|(saying, _)| reason.contains(saying)).map(|(_, meaning)| *meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rustls_says_is_understood() {
        use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
        let meaning = |error: Error| misfit(&error.to_string());
        assert_eq!(meaning(CertificateError::UnknownIssuer.into()), Some(OTHER_CLUSTER));
        assert_eq!(meaning(InvalidMessage::InvalidContentType.into()), Some(NO_TLS));
        let alert = meaning(Error::AlertReceived(AlertDescription::UnknownCA)).unwrap();
        assert!(alert.starts_with("it does not take your certificate"));
        assert!(meaning(CertificateError::Expired.into()).unwrap().contains("cluster renew"));
        assert!(meaning(CertificateError::NotValidForName.into()).unwrap().contains("another daemon"));
        assert_eq!(misfit("connection refused"), None);
    }
}
