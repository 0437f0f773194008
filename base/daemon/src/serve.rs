//! Streams files to clients, with backpressure.

use std::time::Duration;
use tokio::sync::mpsc;

/// A client that accepts no chunk for this long is treated as disconnected.
const STALL_TIMEOUT: Duration = Duration::from_mins(1);

/// Sends the chunks that `next` returns, until there are no more or the client has disconnected.
/// Each chunk is read on a blocking thread, which never waits for the client.
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
    async fn a_stalled_client_does_not_occupy_a_thread() {
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
