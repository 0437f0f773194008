//! How every daemon serves gRPC: the limits on a connection, and files that are read no faster than they are taken.

use std::time::Duration;
use tokio::sync::mpsc;
use tonic::transport::Server;

/// Calls that a client may have under way on one connection; its HTTP/2 library holds others back.
const STREAMS_MAX: u32 = 128;
/// Bytes of one request body, and of all on one connection, that HTTP/2 holds while nobody reads them.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;
/// Metadata of one call, decoded: names and tokens are short.
const HEADER_BYTES_MAX: u32 = 8 << 10;
/// Calls that a client may cancel before they are looked at; then its connection ends (rapid reset, CVE-2023-44487).
const RESETS_MAX: usize = 20;
/// A client that is gone without a word is noticed after about this long.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// A server with the limits of the house; services are added to it.
pub fn builder() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE))
}

/// A reader that takes nothing for this long has gone away.
const PATIENCE: Duration = Duration::from_mins(1);

/// Sends what `next` gives until there is no more, or nobody takes it. Each piece is read by a thread that may wait for a
/// disk; none waits for the reader.
pub async fn pour<T: Send + 'static>(
    to: mpsc::Sender<T>,
    mut next: impl FnMut() -> Option<T> + Send + 'static,
) {
    loop {
        let reading = tokio::task::spawn_blocking(move || (next(), next));
        let Ok((Some(piece), rest)) = reading.await else { return };
        next = rest;
        if !matches!(tokio::time::timeout(PATIENCE, to.send(piece)).await, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_that_takes_nothing_holds_no_thread() {
        let readers: Vec<_> = (0..600)
            .map(|_| mpsc::channel(1))
            .map(|(to, from)| {
                let mut left = 5;
                tokio::spawn(pour(to, move || {
                    left -= 1;
                    (left > 0).then_some(left)
                }));
                from
            })
            .collect();
        // There are 512 such threads at the most.
        let other = tokio::task::spawn_blocking(|| "done");
        assert_eq!(tokio::time::timeout(Duration::from_secs(20), other).await.unwrap().unwrap(), "done");
        for mut reader in readers {
            let mut got = Vec::new();
            while let Some(piece) = reader.recv().await {
                got.push(piece);
            }
            assert_eq!(got, [4, 3, 2, 1]);
        }
    }
}
