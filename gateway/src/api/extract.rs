//! What handlers get from a request: the caller, the query and the body. What is wrong with them is
//! an error of the API.

use super::error::ApiError;
use crate::{caller::Caller, params::Params, refusals::Refused, serve::Peer, service::Service};
use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Query, Request},
    http::request::Parts,
};
use serde::de::DeserializeOwned;
use std::sync::Arc;

impl FromRequestParts<Arc<Service>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        let params = Params::parse(parts.uri.query());
        service.callers.identify(&parts.headers, &params).await.map_err(|denied| {
            let error = ApiError::from(denied);
            if let Some(kind) = error.refusal() {
                let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
                let (method, path) = (parts.method.as_str(), parts.uri.path());
                service.refusals.log(&Refused { kind, peer, name: "", method, path, why: error.message() });
            }
            error
        })
    }
}

/// The query of a request.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Service>> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        match Query::<T>::from_request_parts(parts, service).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(ApiError::invalid(rejection.body_text())),
        }
    }
}

/// The JSON body of a request, at most 2 MiB.
pub(super) struct Sent<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Service>> for Sent<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, service: &Arc<Service>) -> Result<Self, ApiError> {
        match Json::<T>::from_request(request, service).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(ApiError::invalid(rejection.body_text())),
        }
    }
}
