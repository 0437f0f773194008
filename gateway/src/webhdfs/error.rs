//! The exceptions of `WebHDFS`: names, Java classes and HTTP codes as in Hadoop, from the errors of
//! the file system client.

use crate::{caller::Denied, params::ParamError, refusals::Kind as Refusal};
use axum::{
    http::{
        StatusCode,
        header::{self, HeaderValue},
    },
    response::Response,
};
use dfs_client::{ClientError, error::Kind, path::PathError};

/// An exception: what a request is answered with if it fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exception {
    pub(super) class: Class,
    pub(super) message: String,
    /// Whether the refusal is logged, and as what.
    pub(super) refusal: Option<Refusal>,
}

/// The Java class of an exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    IllegalArgument,
    UnsupportedOperation,
    Security,
    AccessControl,
    FileNotFound,
    FileAlreadyExists,
    ParentNotDirectory,
    PathIsNotEmptyDirectory,
    LeaseExpired,
    AlreadyBeingCreated,
    QuotaExceeded,
    SafeMode,
    Standby,
    Retriable,
    /// Like `Retriable`, for a request above a limit.
    TooManyRequests,
    Io,
    Runtime,
}

impl Class {
    /// Returns the complete name of the class, and the HTTP code.
    fn name_and_code(self) -> (&'static str, StatusCode) {
        match self {
            Self::IllegalArgument => ("java.lang.IllegalArgumentException", StatusCode::BAD_REQUEST),
            Self::UnsupportedOperation => {
                ("java.lang.UnsupportedOperationException", StatusCode::BAD_REQUEST)
            }
            Self::Security => ("java.lang.SecurityException", StatusCode::UNAUTHORIZED),
            Self::AccessControl => {
                ("org.apache.hadoop.security.AccessControlException", StatusCode::FORBIDDEN)
            }
            Self::FileNotFound => ("java.io.FileNotFoundException", StatusCode::NOT_FOUND),
            Self::FileAlreadyExists => {
                ("org.apache.hadoop.fs.FileAlreadyExistsException", StatusCode::FORBIDDEN)
            }
            Self::ParentNotDirectory => {
                ("org.apache.hadoop.fs.ParentNotDirectoryException", StatusCode::FORBIDDEN)
            }
            Self::PathIsNotEmptyDirectory => {
                ("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", StatusCode::FORBIDDEN)
            }
            Self::LeaseExpired => {
                ("org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException", StatusCode::FORBIDDEN)
            }
            Self::AlreadyBeingCreated => {
                ("org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException", StatusCode::FORBIDDEN)
            }
            Self::QuotaExceeded => {
                ("org.apache.hadoop.hdfs.protocol.QuotaExceededException", StatusCode::FORBIDDEN)
            }
            Self::SafeMode => {
                ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", StatusCode::FORBIDDEN)
            }
            Self::Standby => ("org.apache.hadoop.ipc.StandbyException", StatusCode::FORBIDDEN),
            Self::Retriable => ("org.apache.hadoop.ipc.RetriableException", StatusCode::FORBIDDEN),
            Self::TooManyRequests => {
                ("org.apache.hadoop.ipc.RetriableException", StatusCode::TOO_MANY_REQUESTS)
            }
            Self::Io => ("java.io.IOException", StatusCode::FORBIDDEN),
            Self::Runtime => ("java.lang.RuntimeException", StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

impl Exception {
    pub(super) fn new(class: Class, message: impl Into<String>) -> Self {
        let refusal = match class {
            Class::Security => Some(Refusal::Authentication),
            Class::AccessControl => Some(Refusal::Permission),
            Class::TooManyRequests => Some(Refusal::Limit),
            _ => None,
        };
        Self { class, message: message.into(), refusal }
    }

    pub(super) fn illegal(message: impl Into<String>) -> Self {
        Self::new(Class::IllegalArgument, message)
    }

    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Class::UnsupportedOperation, message)
    }

    pub(super) fn io(message: impl Into<String>) -> Self {
        Self::new(Class::Io, message)
    }

    /// Returns whether this is an exception of another class than `from`, with class `to`.
    #[must_use]
    pub(super) fn with_class(self, to: Class) -> Self {
        Self::new(to, self.message)
    }

    /// Returns the answer.
    pub(super) fn answer(&self) -> Response {
        let (class, code) = self.class.name_and_code();
        let name = class.rsplit('.').next().unwrap_or(class);
        let body = serde_json::json!({
            "RemoteException": { "exception": name, "javaClassName": class, "message": self.message },
        });
        let mut answer = Response::new(body.to_string().into());
        *answer.status_mut() = code;
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if code == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"fermata\"");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        if code == StatusCode::TOO_MANY_REQUESTS {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

impl From<ClientError> for Exception {
    fn from(error: ClientError) -> Self {
        let class = match error.kind() {
            Some(Kind::Invalid) => Class::IllegalArgument,
            Some(Kind::NotFound | Kind::IsDirectory) => Class::FileNotFound,
            Some(Kind::Exists) => Class::FileAlreadyExists,
            Some(Kind::NotDirectory) => Class::ParentNotDirectory,
            Some(Kind::NotEmpty) => Class::PathIsNotEmptyDirectory,
            Some(Kind::LeaseLost) => Class::LeaseExpired,
            Some(Kind::Busy) => Class::AlreadyBeingCreated,
            Some(Kind::Quota) => Class::QuotaExceeded,
            Some(Kind::Safemode | Kind::ManualSafemode) => Class::SafeMode,
            Some(Kind::Denied) => Class::AccessControl,
            Some(Kind::NotLeader) => Class::Standby,
            Some(Kind::Unavailable | Kind::NotYetReplicated) => Class::Retriable,
            Some(Kind::NoNodes | Kind::Fenced | Kind::Refused | Kind::OlderNameNode) => Class::Io,
            None => match &error {
                ClientError::NoLeader { .. } => Class::Standby,
                ClientError::Unreachable { .. }
                | ClientError::NameNodeUnreachableFromNodes { .. }
                | ClientError::Deadline { .. }
                | ClientError::TooManyTransfers { .. } => Class::Retriable,
                ClientError::BadReply { .. } => Class::Runtime,
                _ => Class::Io,
            },
        };
        let message = match error.kind() {
            // Clients such as PyPI's hdfs compare the message with that of Hadoop.
            Some(Kind::NotFound) => format!("File does not exist: {error}"),
            _ => error.to_string(),
        };
        Self::new(class, message)
    }
}

impl From<Denied> for Exception {
    fn from(denied: Denied) -> Self {
        let class = match &denied {
            Denied::Unauthenticated(_) => Class::Security,
            Denied::Forbidden(_) => Class::AccessControl,
            Denied::Invalid(_) => Class::IllegalArgument,
            Denied::Limit(_) => Class::TooManyRequests,
            Denied::Unavailable(_) => Class::Retriable,
        };
        Self::new(class, denied.to_string())
    }
}

impl From<ParamError> for Exception {
    fn from(error: ParamError) -> Self {
        Self::illegal(error.to_string())
    }
}

impl From<PathError> for Exception {
    fn from(error: PathError) -> Self {
        Self::illegal(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dfs_client::error::Error;

    fn of(kind: Kind) -> (&'static str, u16) {
        let exception = Exception::from(ClientError::Refused(Error::new(kind, "why")));
        let (name, code) = exception.class.name_and_code();
        (name, code.as_u16())
    }

    #[test]
    fn refusals_have_the_classes_and_codes_of_hadoop() {
        assert_eq!(of(Kind::NotFound), ("java.io.FileNotFoundException", 404));
        assert_eq!(of(Kind::IsDirectory), ("java.io.FileNotFoundException", 404));
        assert_eq!(of(Kind::Denied), ("org.apache.hadoop.security.AccessControlException", 403));
        assert_eq!(of(Kind::Exists), ("org.apache.hadoop.fs.FileAlreadyExistsException", 403));
        assert_eq!(of(Kind::Invalid), ("java.lang.IllegalArgumentException", 400));
        assert_eq!(of(Kind::Safemode).0, "org.apache.hadoop.hdfs.server.namenode.SafeModeException");
        assert_eq!(of(Kind::NotLeader).0, "org.apache.hadoop.ipc.StandbyException");
        assert_eq!(of(Kind::Unavailable).0, "org.apache.hadoop.ipc.RetriableException");
        let missing = ClientError::Refused(Error::new(Kind::NotFound, "/x: no such file or folder"));
        assert_eq!(Exception::from(missing).message, "File does not exist: /x: no such file or folder");
        let none = ClientError::NoLeader { tried: "a: down".into() };
        assert_eq!(Exception::from(none).class, Class::Standby);
        let deadline =
            |kind| ClientError::Deadline { what: "x".into(), seconds: 1.0, last: "y".into(), kind };
        assert_eq!(Exception::from(deadline(None)).class, Class::Retriable);
        assert_eq!(Exception::from(deadline(Some(Kind::ManualSafemode))).class, Class::SafeMode);
    }

    #[tokio::test]
    async fn answer_has_the_json_of_hadoop() {
        let exception = Exception::from(Denied::Unauthenticated("no token".into()));
        assert_eq!(exception.refusal, Some(Refusal::Authentication));
        let answer = exception.answer();
        assert_eq!(answer.status(), 401);
        assert!(answer.headers().contains_key(header::WWW_AUTHENTICATE));
        let body = axum::body::to_bytes(answer.into_body(), 1000).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            body,
            serde_json::json!({ "RemoteException": {
                "exception": "SecurityException",
                "javaClassName": "java.lang.SecurityException",
                "message": "no token",
            }})
        );
        let limit = Exception::from(Denied::Limit("too many".into())).answer();
        assert_eq!(
            (limit.status().as_u16(), limit.headers()[header::RETRY_AFTER].as_bytes()),
            (429, &b"1"[..])
        );
    }
}
