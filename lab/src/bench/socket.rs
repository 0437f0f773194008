//! The baseline for reads: a file in the page cache, sent through a local TCP socket with
//! `sendfile` and read into a buffer, without checksums.

use anyhow::{Context, Result, ensure};
use std::{
    fs::File,
    io::Read,
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

const BUFFER: usize = 1 << 20;

/// Sends the file at `path` through a socket and returns the time until all bytes have arrived.
pub(crate) fn transfer(path: &Path) -> Result<Duration> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let length = file.metadata().context("cannot stat the source")?.len();
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
    let addr = listener.local_addr().context("cannot determine the address of the listener")?;
    let reader = thread::spawn(move || -> std::io::Result<u64> {
        let mut stream = TcpStream::connect(addr)?;
        let mut buffer = vec![0; BUFFER];
        let mut total = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(total),
                read => total += read as u64,
            }
        }
    });
    let (stream, _) = listener.accept().context("cannot accept on loopback")?;
    let since = Instant::now();
    let mut offset = 0;
    while offset < length {
        let sent = rustix::fs::sendfile(&stream, &file, Some(&mut offset), BUFFER).context("sendfile")?;
        ensure!(sent > 0, "{} became shorter while it was sent", path.display());
    }
    drop(stream);
    let arrived = reader.join().ok().context("the reading thread panicked")?.context("cannot read")?;
    ensure!(arrived == length, "{arrived} of {length} bytes arrived");
    Ok(since.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, vec![7; 3 * BUFFER + 1]).unwrap();
        transfer(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        transfer(&path).unwrap();
    }
}
