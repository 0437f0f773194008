//! Common settings of gRPC servers: limits of connections, and streaming of files with
//! backpressure.

use std::time::Duration;
use tokio::sync::mpsc;
use tonic::transport::Server;

/// Maximum number of concurrent calls per connection; the HTTP/2 library of the client delays
/// further ones.
const STREAMS_MAX: u32 = 128;
/// Bytes of one request body, and of all on one connection, that HTTP/2 buffers until they are
/// read.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;
/// Maximum decoded size of the metadata of a call; names and tokens are short.
const HEADER_BYTES_MAX: u32 = 8 << 10;
/// Maximum number of calls that a client may cancel before they are processed; then its connection
/// is closed (rapid reset, CVE-2023-44487).
const RESETS_MAX: usize = 20;
/// A client that has disappeared is detected after about this time.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Returns a server with these limits; the caller adds services.
pub fn builder() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE))
}

/// A reader that takes nothing for this long is treated as gone.
const STALL_TIMEOUT: Duration = Duration::from_mins(1);

/// Sends chunks from `next` until there are no more, or the reader is gone. Each chunk is read by a
/// blocking thread, which never waits for the reader.
pub async fn stream_chunks<T: Send + 'static>(
    to: mpsc::Sender<T>,
    mut next: impl FnMut() -> Option<T> + Send + 'static,
) {
    loop {
        let reading = tokio::task::spawn_blocking(move || (next(), next));
        let Ok((Some(piece), rest)) = reading.await else { return };
        next = rest;
        if !matches!(tokio::time::timeout(STALL_TIMEOUT, to.send(piece)).await, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stalled_reader_releases_its_thread() {
        let readers: Vec<_> = (0..600)
            .map(|_| mpsc::channel(1))
            .map(|(to, from)| {
                let mut left = 5;
                tokio::spawn(stream_chunks(to, move || {
                    left -= 1;
                    (left > 0).then_some(left)
                }));
                from
            })
            .collect();
        // Tokio has at most 512 blocking threads.
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
