//! Starts and stops the daemon `gateway`: locks its folder, listens, serves, and stops.

use crate::{
    api,
    guard::is_own_host,
    refusals::{Kind, Refused},
    serve::{ConnectionLimits, Peer, serve},
    service::Service,
    webhdfs,
};
use axum::{
    Router,
    extract::{Request, State},
    http::{
        HeaderMap, StatusCode, Uri,
        header::{self, HeaderValue},
        uri::Authority,
    },
    middleware::{self, Next},
    response::Response,
};
use daemon::{
    config::Config,
    lifecycle::{DaemonArgs, stop_signal},
    listen::ListenError,
    lock::{FolderLock, LockError},
};
use std::{io, sync::Arc, time::Duration};
use tokio::net::TcpListener;

/// The largest head of a request. CONCAT names its sources in the query.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Timeout for the head of a request, and how long a connection without a request is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a gateway ended.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Another process uses the folder.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The address is not available.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The cluster uses certificates.
    #[error(
        "security.dir = {0:?}: the gateway cannot serve a cluster with certificates yet, because it cannot pass on the \
         certificate of a caller; it serves clusters with a secret (`mrctl up`, `mrctl cluster init --no-tls`) and open ones"
    )]
    Certificates(std::path::PathBuf),
    /// An error of the operating system.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Runs a gateway until a signal stops it.
pub async fn run(config: &Config, args: &DaemonArgs) -> Result<(), GatewayError> {
    if !config.security.dir.as_os_str().is_empty() {
        return Err(GatewayError::Certificates(config.security.dir.clone()));
    }
    let listener = daemon::listen::bind(&config.gateway.listen, config)?;
    let _lock = FolderLock::acquire(&config.gateway.dir, "gateway")?;
    let listener = TcpListener::from_std(listener)?;
    let addr = listener.local_addr()?;
    let limits = ConnectionLimits {
        connections_max: config.gateway.connections_max,
        head_bytes_max: HEAD_BYTES_MAX,
        head_timeout: HEAD_TIMEOUT,
        keep_alive: true,
        connection_timeout: None,
    };
    let service = Arc::new(Service::new(config, addr));
    args.write_ready(&addr.to_string())?;
    let access = if config.security.is_closed() { "closed" } else { "open" };
    tracing::info!(%addr, access, "gateway serves");
    tokio::select! {
        () = serve(&listener, router(service), limits) => {}
        () = stop_signal() => {}
    }
    tracing::info!("gateway stops");
    Ok(())
}

fn router(service: Arc<Service>) -> Router {
    Router::new()
        .merge(webhdfs::router(service.clone()))
        .merge(api::router(service.clone()))
        .fallback(async || {
            plain(StatusCode::NOT_FOUND, "there is nothing here: use /webhdfs/v1 or /api/v1\n")
        })
        .layer(middleware::from_fn_with_state(service, check_origin))
}

/// Refuses requests that a browser sends for a page of another server, which may be a page of an
/// attacker. On loopback, the host name must be one of this machine, because another name may
/// resolve to 127.0.0.1 (DNS rebinding).
async fn check_origin(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    if let Some(why) = foreign(request.headers(), request.uri(), service.loopback_port) {
        let (method, path) = (request.method().as_str(), request.uri().path());
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
        let refused = Refused { kind: Kind::Origin, peer, name: "", method, path, why };
        service.refusals.log(&refused);
        return plain(StatusCode::FORBIDDEN, &format!("{why}\n"));
    }
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    answer
}

/// Returns why a request is refused as one of another origin; None if it is accepted.
fn foreign(headers: &HeaderMap, uri: &Uri, loopback_port: Option<u16>) -> Option<&'static str> {
    let mut hosts = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let host = hosts.next();
    if host.is_none() || hosts.next().is_some() {
        return Some("the request must have one Host header");
    }
    if let Some(port) = loopback_port {
        let named = host.into_iter().chain(uri.authority().map(Authority::as_str));
        if !named.into_iter().all(|name| is_own_host(name, port)) {
            return Some("this gateway answers only for 127.0.0.1 and localhost, at its own port");
        }
    }
    let own = |origin: &str| origin.split_once("://").is_some_and(|(_, name)| Some(name) == host);
    let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    let site = headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or_default());
    let is_foreign = origin.is_some_and(|origin| !own(origin))
        || site.is_some_and(|site| !matches!(site, "same-origin" | "none"));
    is_foreign.then_some("pages of other servers may not send requests to the gateway")
}

pub(crate) fn plain(status: StatusCode, text: &str) -> Response {
    let mut answer = Response::new(text.to_owned().into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(headers: &[(&'static str, &str)], loopback_port: Option<u16>) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        foreign(&map, &Uri::from_static("/webhdfs/v1/?op=LISTSTATUS"), loopback_port).is_some()
    }

    #[test]
    fn requests_of_foreign_pages_are_refused() {
        let host = ("host", "127.0.0.1:81");
        assert!(!refused(&[host], Some(81)));
        assert!(!refused(&[host, ("origin", "http://127.0.0.1:81")], Some(81)));
        assert!(!refused(&[host, ("sec-fetch-site", "none")], Some(81)));
        for bad in [
            &[("host", "evil.example:81")][..],
            &[("host", "127.0.0.1:82")],
            &[],
            &[host, ("host", "evil:81")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "null")],
            &[host, ("sec-fetch-site", "cross-site")],
        ] {
            assert!(refused(bad, Some(81)), "{bad:?}");
        }
        // Other machines know the gateway by any name.
        assert!(!refused(&[("host", "node1:9870")], None));
        assert!(refused(&[("host", "node1:9870"), ("origin", "http://evil.example")], None));
    }
}
