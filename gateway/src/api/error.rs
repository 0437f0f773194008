//! Errors of the API: an HTTP code, and a JSON object with a code for programs and a message.

use crate::{caller::Denied, refusals::Kind as Refusal};
use axum::{
    Json,
    http::{
        StatusCode,
        header::{self, HeaderValue},
    },
    response::{IntoResponse, Response},
};
use dfs_client::{ClientError, error::Kind};
use serde::Serialize;
use utoipa::ToSchema;

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ErrorReply {
    error: ErrorInfo,
}

impl ErrorReply {
    pub(super) fn of(error: ApiError) -> Self {
        Self { error: error.info }
    }
}

#[derive(Debug, Clone, Serialize, ToSchema)]
struct ErrorInfo {
    /// `invalid`, `unauthenticated`, `denied`, `not_found`, `conflict`, `limit`, `unavailable` or
    /// `internal`.
    code: &'static str,
    /// One line for people.
    message: String,
}

/// Why a call failed.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    info: ErrorInfo,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let code = match status {
            StatusCode::BAD_REQUEST => "invalid",
            StatusCode::UNAUTHORIZED => "unauthenticated",
            StatusCode::FORBIDDEN => "denied",
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::CONFLICT => "conflict",
            StatusCode::TOO_MANY_REQUESTS => "limit",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable",
            _ => "internal",
        };
        Self { status, info: ErrorInfo { code, message: message.into() } }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// Returns as what kind the refusal is logged; None if it is not.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match self.status {
            StatusCode::UNAUTHORIZED => Some(Refusal::Authentication),
            StatusCode::FORBIDDEN => Some(Refusal::Permission),
            StatusCode::TOO_MANY_REQUESTS => Some(Refusal::Limit),
            _ => None,
        }
    }

    pub(super) fn message(&self) -> &str {
        &self.info.message
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut answer = (self.status, Json(ErrorReply::of(self.clone()))).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"fermata\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // The layer that logs refusals finds the error here.
        answer.extensions_mut().insert(self);
        answer
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        let status = match &denied {
            Denied::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Denied::Forbidden(_) => StatusCode::FORBIDDEN,
            Denied::Invalid(_) => StatusCode::BAD_REQUEST,
            Denied::Limit(_) => StatusCode::TOO_MANY_REQUESTS,
            Denied::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, denied.to_string())
    }
}

impl From<client::Error> for ApiError {
    fn from(error: client::Error) -> Self {
        use client::Error;
        let status = match &error {
            Error::Status { code, .. } if !error.is_transient() => status_of(*code as i32),
            Error::Invalid(_) | Error::NotAJob(_) | Error::Sample(_) => StatusCode::BAD_REQUEST,
            _ if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

/// Returns the HTTP code for the number of a gRPC code.
fn status_of(code: i32) -> StatusCode {
    match code {
        3 | 11 => StatusCode::BAD_REQUEST,
        5 => StatusCode::NOT_FOUND,
        7 => StatusCode::FORBIDDEN,
        16 => StatusCode::UNAUTHORIZED,
        6 | 9 | 10 => StatusCode::CONFLICT,
        8 => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<ClientError> for ApiError {
    fn from(error: ClientError) -> Self {
        let status = match error.kind() {
            _ if error.is_unavailable() => StatusCode::SERVICE_UNAVAILABLE,
            Some(Kind::Invalid) => StatusCode::BAD_REQUEST,
            Some(Kind::NotFound) => StatusCode::NOT_FOUND,
            Some(Kind::Denied) => StatusCode::FORBIDDEN,
            Some(Kind::Unavailable | Kind::NotLeader | Kind::NotYetReplicated) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Some(_) => StatusCode::CONFLICT,
            None => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}
