//! Two ends that do not agree on TLS, in words for people. It never gets better by asking again.

/// What the transport says, and what it means.
const TRANSPORT_ERRORS: [(&str, &str); 8] = [
    ("UnknownIssuer", OTHER_CLUSTER),
    ("BadSignature", OTHER_CLUSTER),
    ("NotValidForName", "another daemon answers there: check the address"),
    ("Expired", "its certificate has expired: `mrctl cluster renew` makes new ones"),
    ("NotValidYet", "its certificate is not valid yet: check the clocks"),
    ("received fatal alert", "it does not take your certificate: that is of another cluster, or has expired"),
    ("InvalidContentType", NO_TLS),
    ("corrupt message", NO_TLS),
];

const OTHER_CLUSTER: &str =
    "it runs, and is of another cluster than your certificates: name the right settings with --config";
const NO_TLS: &str =
    "it runs, and speaks no TLS: it is of another cluster than your certificates, or of one without";

/// What to make of the transport's reason for a call that failed; None if it is not about TLS.
pub fn tls_mismatch(reason: &str) -> Option<&'static str> {
    TRANSPORT_ERRORS.iter().find(|(saying, _)| reason.contains(saying)).map(|(_, meaning)| *meaning)
}

/// What a server that wants TLS makes of one who speaks none.
const PLAIN: [&str; 2] = ["frame with invalid size", "protocol error"];

/// Why a connection failed, for the log of a daemon: the innermost cause, and what it means.
pub fn why(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    explained(cause.to_string())
}

/// The same of a call: in its own words if it was answered.
pub fn call_failure(status: &tonic::Status) -> String {
    std::error::Error::source(status).map_or_else(|| status.message().to_owned(), why)
}

fn explained(cause: String) -> String {
    let plain = PLAIN.iter().any(|saying| cause.contains(saying));
    let plain = plain.then_some("does it want TLS? then security.dir must be set here, too");
    match tls_mismatch(&cause).or(plain) {
        Some(meaning) => format!("{cause}: {meaning}"),
        None => cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustls_errors_are_explained() {
        use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
        let meaning = |error: Error| tls_mismatch(&error.to_string());
        assert_eq!(meaning(CertificateError::UnknownIssuer.into()), Some(OTHER_CLUSTER));
        assert_eq!(meaning(InvalidMessage::InvalidContentType.into()), Some(NO_TLS));
        let alert = meaning(Error::AlertReceived(AlertDescription::UnknownCA)).unwrap();
        assert!(alert.starts_with("it does not take your certificate"));
        assert!(meaning(CertificateError::Expired.into()).unwrap().contains("cluster renew"));
        assert!(meaning(CertificateError::NotValidForName.into()).unwrap().contains("another daemon"));
        assert_eq!(tls_mismatch("connection refused"), None);
        assert_eq!(why(&std::io::Error::other("connection refused")), "connection refused");
        let status = tonic::Status::from_error(Box::new(Error::from(CertificateError::UnknownIssuer)));
        assert!(call_failure(&status).ends_with(OTHER_CLUSTER), "{}", call_failure(&status));
        assert!(
            explained("http2 error: connection error: frame with invalid size".into())
                .contains("security.dir")
        );
        assert_eq!(call_failure(&tonic::Status::unavailable("not now")), "not now");
    }
}
