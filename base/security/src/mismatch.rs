//! Explains TLS errors between a client and a server whose settings do not match. Such errors are
//! permanent.

/// Texts in transport errors, each with the explanation of the error.
const TRANSPORT_ERRORS: [(&str, &str); 8] = [
    ("UnknownIssuer", OTHER_CLUSTER),
    ("BadSignature", OTHER_CLUSTER),
    ("NotValidForName", "another daemon listens at this address: check the address"),
    ("Expired", "the certificate of the server has expired: renew it with `mrctl cluster renew`"),
    ("NotValidYet", "the certificate of the server is not valid yet: check the clocks"),
    (
        "received fatal alert",
        "the server rejects your certificate: it belongs to another cluster, or has expired",
    ),
    ("InvalidContentType", NO_TLS),
    ("corrupt message", NO_TLS),
];

const OTHER_CLUSTER: &str = "the server belongs to another cluster than your certificates: give the right configuration with --config";
const NO_TLS: &str = "the server does not use TLS: it belongs to another cluster than your certificates, or to one without certificates";

/// Returns the explanation of a transport error; `None` if it is not a TLS error.
pub fn tls_mismatch(reason: &str) -> Option<&'static str> {
    TRANSPORT_ERRORS.iter().find(|(text, _)| reason.contains(text)).map(|(_, explanation)| *explanation)
}

/// Texts in the errors of a client without TLS if the server requires TLS.
const CLIENT_WITHOUT_TLS_ERRORS: [&str; 2] = ["frame with invalid size", "protocol error"];

/// Returns why a connection failed, for the log of a daemon: the innermost cause and its
/// explanation.
pub fn connection_failure(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    with_explanation(cause.to_string())
}

/// Returns why a call failed: the message of the server if it has answered, else the cause.
pub fn call_failure(status: &tonic::Status) -> String {
    std::error::Error::source(status).map_or_else(|| status.message().to_owned(), connection_failure)
}

/// Adds the explanation, if there is one, to the cause of an error.
fn with_explanation(cause: String) -> String {
    let plain = CLIENT_WITHOUT_TLS_ERRORS.iter().any(|text| cause.contains(text));
    let plain = plain.then_some("if the server requires TLS, set security.dir here too");
    match tls_mismatch(&cause).or(plain) {
        Some(explanation) => format!("{cause}: {explanation}"),
        None => cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rustls_errors_are_explained() {
        use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
        let explanation = |error: Error| tls_mismatch(&error.to_string());
        assert_eq!(explanation(CertificateError::UnknownIssuer.into()), Some(OTHER_CLUSTER));
        assert_eq!(explanation(InvalidMessage::InvalidContentType.into()), Some(NO_TLS));
        let alert = explanation(Error::AlertReceived(AlertDescription::UnknownCA)).unwrap();
        assert!(alert.starts_with("the server rejects your certificate"));
        assert!(explanation(CertificateError::Expired.into()).unwrap().contains("cluster renew"));
        assert!(explanation(CertificateError::NotValidForName.into()).unwrap().contains("another daemon"));
        assert_eq!(tls_mismatch("connection refused"), None);
        assert_eq!(connection_failure(&std::io::Error::other("connection refused")), "connection refused");
        let status = tonic::Status::from_error(Box::new(Error::from(CertificateError::UnknownIssuer)));
        assert!(call_failure(&status).ends_with(OTHER_CLUSTER), "{}", call_failure(&status));
        assert!(
            with_explanation("http2 error: connection error: frame with invalid size".into())
                .contains("security.dir")
        );
        assert_eq!(call_failure(&tonic::Status::unavailable("not now")), "not now");
    }
}
