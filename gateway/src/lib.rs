//! Read-only pages on loopback, with the data that the masters return for one user. `mrctl web`
//! serves them.
//!
//! It is a client like all other commands, with the same calls and credentials, so a page shows
//! only what its user may see. It has no pages that change the cluster, and it listens only on
//! loopback.

mod answer;
mod chart;
mod guard;
mod page;

use answer::WebServer;
use anyhow::{Context, Result};
use guard::Guard;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::{
    event::{PollFd, PollFlags, poll},
    termios::tcgetpgrp,
};
use std::{io, net::Ipv4Addr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use view::{
    output,
    status_cache::{Masters, StatusCache},
};

/// The largest number of parallel connections; further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// Timeouts for the head of a request, and for the complete response.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);
/// Limits for the request line and headers.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// Serves the pages on this port of 127.0.0.1 (0: any free port) until `stop`. Prints the address.
///
/// In a closed cluster the address contains a token, because other accounts of this machine could
/// open it too. The token is valid once. Enter on standard input prints a new address.
pub async fn run(port: u16, masters: Box<dyn Masters>, stop: impl Future<Output = ()>) -> Result<()> {
    let name = masters.proved_name()?;
    let listener = listen(port).await?;
    let port = listener.local_addr().context("cannot determine the port")?.port();
    let guard = Guard::new(port, name.is_some());
    output::line(guard.address())?;
    let fresh = if guard.is_closed() { " (it is valid once); Enter prints a new one," } else { ";" };
    eprintln!("mrctl: open this address in a browser{fresh} Ctrl-C ends it");
    let server = Arc::new(WebServer { guard, status_cache: StatusCache::new(masters, name) });
    if server.guard.is_closed() {
        let server = server.clone();
        std::thread::spawn(move || print_at_enter(&server));
    }
    tokio::select! {
        () = serve(&listener, &server) => {}
        () = stop => {}
    }
    Ok(())
}

/// Prints a new address for each line on standard input, until it ends.
fn print_at_enter(server: &WebServer) {
    let mut line = String::new();
    while await_line() {
        line.clear();
        match io::stdin().read_line(&mut line) {
            Ok(1..) if output::line(server.guard.address()).is_ok() => {}
            _ => return,
        }
    }
}

/// Waits until standard input has data. If mrctl runs in the background of a terminal, it does not
/// read: that would stop the process.
fn await_line() -> bool {
    let stdin = rustix::stdio::stdin();
    loop {
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
        }
        let foreground = tcgetpgrp(stdin).map_or(true, |group| group == rustix::process::getpgrp());
        if foreground {
            return true;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

async fn listen(port: u16) -> Result<TcpListener> {
    let place = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(place).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "port {port} of 127.0.0.1 is in use: name another with --port, or use --port 0 for any free port"
        ),
        _ => anyhow::Error::new(error).context(format!("cannot listen on 127.0.0.1:{port}")),
    })
}

async fn serve(listener: &TcpListener, server: &Arc<WebServer>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // There may be too few file descriptors for a moment.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let server = server.clone();
        tokio::spawn(async move {
            let _permit = permit;
            // Clients that disconnect or are too slow are no error.
            let _ = tokio::time::timeout(RESPONSE_TIMEOUT, connection(stream, server)).await;
        });
    }
}

/// Serves one request per connection: a new connection is cheap on loopback, and no client can
/// block others for long.
async fn connection(stream: TcpStream, server: Arc<WebServer>) -> hyper::Result<()> {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request| {
        let server = server.clone();
        async move { Ok::<_, std::convert::Infallible>(server.answer(&request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}
