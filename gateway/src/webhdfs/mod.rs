//! `WebHDFS` at `/webhdfs/v1`, as Hadoop 3 specifies it, so that its clients work unchanged.
//!
//! A request has a path, an operation `op` and other parameters. Operations on data are redirected
//! first: the answer to the first request names the address of the second, which has `data=true` and
//! the data. Both are served by this gateway; it never sends a request to an address that it was
//! given. With `noredirect=true` the address is in the body instead.
//!
//! Operations on what the file system does not have (access control lists, extended attributes,
//! snapshots, symbolic links, storage policies, erasure coding, truncation) are refused with
//! `UnsupportedOperationException`.

mod answers;
mod data;
mod error;
mod namespace;
mod operation;

use crate::{caller::Caller, params::Params, refusals::Refused, serve::Peer, service::Service};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{
        StatusCode, Uri,
        header::{self, HeaderValue},
    },
    response::Response,
    routing::any,
};
use dfs_client::path::DfsPath;
use error::{Class, Exception};
use operation::Op;
use percent_encoding::percent_decode_str;
use std::sync::Arc;

const PREFIX: &str = "/webhdfs/v1";
/// Marks the second request of an operation on data.
const DATA: &str = "data";

type Answer = Result<Response, Exception>;

/// A request of an identified caller.
struct Call {
    service: Arc<Service>,
    caller: Caller,
    path: DfsPath,
    params: Params,
    uri: Uri,
    /// The name of this gateway, as the client knows it.
    host: String,
}

/// Returns the router of `WebHDFS`.
pub(crate) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/webhdfs/v1", any(serve))
        .route("/webhdfs/v1/", any(serve))
        .route("/webhdfs/v1/{*path}", any(serve))
        .with_state(service)
}

async fn serve(State(service): State<Arc<Service>>, request: Request) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let mut name = String::new();
    let answer = Box::pin(call(service.clone(), request, &mut name)).await;
    answer.unwrap_or_else(|exception| {
        if let Some(kind) = exception.refusal {
            let (method, path, why) = (method.as_str(), uri.path(), exception.message.as_str());
            service.refusals.log(&Refused { kind, peer, name: &name, method, path, why });
        } else if exception.class == Class::Runtime {
            tracing::error!(path = uri.path(), why = exception.message, "a request failed");
        }
        exception.answer()
    })
}

/// Answers a request. Sets `name` to the name of the caller when it is known.
async fn call(service: Arc<Service>, request: Request, name: &mut String) -> Answer {
    let (head, body) = request.into_parts();
    let params = Params::parse(head.uri.query());
    let caller = service.callers.identify(&head.headers, &params).await?;
    name.clone_from(&caller.name);
    let op = operation::find(head.method.as_str(), params.required("op")?)?;
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let path = path_of(&head.uri)?;
    let call = Call { service, caller, path, params, host: host.to_owned(), uri: head.uri };
    if op.has_data() && call.params.flag(DATA)? != Some(true) {
        return call.redirect(op).await;
    }
    call.dispatch(op, body).await
}

/// Returns the path in the file system.
fn path_of(uri: &Uri) -> Result<DfsPath, Exception> {
    let encoded = uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let text = percent_decode_str(encoded).decode_utf8();
    let text = text.map_err(|_| Exception::illegal("Invalid path: it is not UTF-8"))?;
    let text = if text.is_empty() { "/" } else { &*text };
    DfsPath::parse(text).map_err(|error| Exception::illegal(format!("Invalid path name: {error}")))
}

impl Call {
    async fn dispatch(self, op: Op, body: Body) -> Answer {
        match op {
            Op::Open => self.open().await,
            Op::GetFileStatus => self.get_file_status().await,
            Op::ListStatus => self.list_status().await,
            Op::ListStatusBatch => self.list_status_batch().await,
            Op::GetContentSummary => self.get_content_summary().await,
            Op::GetQuotaUsage => self.get_quota_usage().await,
            Op::GetFileChecksum => self.get_file_checksum().await,
            Op::GetHomeDirectory => Ok(self.get_home_directory()),
            Op::GetTrashRoot => Ok(self.get_trash_root()),
            Op::GetTrashRoots => self.get_trash_roots().await,
            Op::CheckAccess => self.check_access().await,
            Op::GetServerDefaults => Ok(self.get_server_defaults()),
            Op::GetFileBlockLocations => self.get_file_block_locations().await,
            Op::GetStatus => self.get_status().await,
            Op::GetDelegationToken => Ok(self.get_delegation_token()),
            Op::RenewDelegationToken => self.renew_delegation_token(),
            Op::Create => self.create(body).await,
            Op::Append => self.append(body).await,
            Op::Mkdirs => self.mkdirs().await,
            Op::Rename => self.rename().await,
            Op::Delete => self.delete().await,
            Op::SetPermission => self.set_permission().await,
            Op::SetOwner => self.set_owner().await,
            Op::SetReplication => self.set_replication().await,
            Op::SetTimes => self.set_times().await,
            Op::SetQuota => self.set_quota().await,
            Op::Concat => self.concat().await,
        }
    }

    /// Names the address of the second request. What would refuse it anyway is refused here, before
    /// the client sends data.
    async fn redirect(&self, op: Op) -> Answer {
        match op {
            Op::Create => self.check_create().await?,
            Op::Append => self.check_append().await?,
            _ => {}
        }
        let noredirect = self.params.flag("noredirect")?.unwrap_or(false);
        let location = location(&self.host, &self.uri);
        if noredirect {
            return Ok(json(&serde_json::json!({ "Location": location })));
        }
        let location = HeaderValue::from_str(&location)
            .map_err(|_| Exception::illegal("the Host header is not a host name"))?;
        let mut answer = empty(StatusCode::TEMPORARY_REDIRECT);
        answer.headers_mut().insert(header::LOCATION, location);
        Ok(answer)
    }
}

/// Returns the address of the second request of an operation on data: the same as that of the first,
/// including a token in the query, which the client would not add again.
fn location(host: &str, uri: &Uri) -> String {
    let is_kept = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        !name.eq_ignore_ascii_case("noredirect") && !name.eq_ignore_ascii_case(DATA)
    };
    let pairs: Vec<&str> = uri.query().unwrap_or_default().split('&').filter(is_kept).collect();
    format!("http://{host}{}?{}&{DATA}=true", uri.path(), pairs.join("&"))
}

fn empty(status: StatusCode) -> Response {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    answer
}

fn json(value: &serde_json::Value) -> Response {
    let mut answer = Response::new(value.to_string().into());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn boolean(value: bool) -> Response {
    json(&serde_json::json!({ "boolean": value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn path_is_decoded_once() {
        let path = |text: &str| path_of(&uri(text)).map(|path| path.to_string());
        assert_eq!(path("/webhdfs/v1?op=X").as_deref(), Ok("/"));
        assert_eq!(path("/webhdfs/v1/?op=X").as_deref(), Ok("/"));
        assert_eq!(path("/webhdfs/v1//a//b/").as_deref(), Ok("/a/b"));
        assert_eq!(path("/webhdfs/v1/a%20b+c/%C3%A4%2525").as_deref(), Ok("/a b+c/ä%25"));
        assert_eq!(path("/webhdfs/v1/a%2Fb").as_deref(), Ok("/a/b"));
        for bad in ["/webhdfs/v1/%FF", "/webhdfs/v1/a/../b", "/webhdfs/v1/%2E%2E/x", "/webhdfs/v1/a%00b"] {
            assert_eq!(path(bad).unwrap_err().class, Class::IllegalArgument, "{bad}");
        }
    }

    #[test]
    fn second_address_has_the_same_parameters() {
        let first = uri("/webhdfs/v1/a%20b?op=CREATE&NoRedirect=true&delegation=f1%3Ax&data=false");
        assert_eq!(
            location("127.0.0.1:81", &first),
            "http://127.0.0.1:81/webhdfs/v1/a%20b?op=CREATE&delegation=f1%3Ax&data=true"
        );
    }
}
