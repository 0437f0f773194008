//! The operations on data: OPEN, CREATE, APPEND, GETFILECHECKSUM. Data is streamed: neither a file
//! nor a block is ever in memory as a whole, and a client that does not read stops the reader.

use super::{
    Answer, Call,
    error::{Class, Exception},
    json,
};
use axum::{
    body::{Body, Bytes},
    http::{
        StatusCode,
        header::{self, HeaderValue},
    },
    response::Response,
};
use dfs_client::{
    Attributes, ClientError, FileReader, FileWriter, PutOptions, PutSource, error::Kind, path::DfsPath,
};
use std::{io, pin::Pin, time::Duration};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tokio_util::io::StreamReader;

/// A client that neither sends nor accepts a byte for this long is treated as disconnected.
const STALL_TIMEOUT: Duration = Duration::from_mins(2);
/// The permission to write, as a number.
const WRITE: u32 = 2;
/// Number of pieces that wait for a client.
const QUEUED_PIECES_MAX: usize = 4;

impl Call {
    pub(super) async fn open(self) -> Answer {
        let offset = self.params.number::<u64>("offset")?.unwrap_or(0);
        let length = self.params.number::<u64>("length")?;
        let path = self.path.clone();
        let mut reader = self.caller.files.open(&path).await?;
        let total = reader.len();
        if offset > total {
            return Err(Exception::io(format!(
                "Offset={offset} out of the range [0, {total}); OPEN, path={path}"
            )));
        }
        let length = length.unwrap_or(u64::MAX).min(total - offset);
        reader.select(offset, length);
        // The first bytes are read before the answer begins, so that a file that cannot be read is an
        // exception.
        let first = reader.next().await?;
        let (pieces, receiver) = mpsc::channel(QUEUED_PIECES_MAX);
        tokio::spawn(async move {
            send_all(reader, first, &pieces, &path).await;
            // The request counts until all of it was sent.
            drop(self);
        });
        let mut answer = Response::new(Body::from_stream(ReceiverStream::new(receiver)));
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        Ok(answer)
    }

    pub(super) async fn create(self, body: Body) -> Answer {
        let overwrite = self.overwrite()?;
        let replication = self.params.number::<u32>("replication")?;
        let block_size = self.params.number::<u64>("blocksize")?;
        for (name, number) in [("replication", replication.map(u64::from)), ("blocksize", block_size)] {
            if number == Some(0) {
                return Err(Exception::illegal(format!(
                    "Invalid value for webhdfs parameter \"{name}\": 0 is not positive"
                )));
            }
        }
        let mode = self.params.mode("permission")?;
        let make_parents = self.params.flag("createparent")?.unwrap_or(true);
        let options = PutOptions { replication, block_size, overwrite, make_parents, mode };
        let source = PutSource::Reader(Box::new(StreamReader::new(incoming(body))));
        let put = self.caller.files.put(source, &self.path, options, &()).await;
        put.map_err(|error| match error.kind() {
            Some(Kind::IsDirectory) => Exception::from(error).with_class(Class::FileAlreadyExists),
            _ => error.into(),
        })?;
        if mode == Some(0) {
            // In a request of the file system, 0 stands for the default.
            let attributes = Attributes { mode, ..Attributes::default() };
            self.caller.files.set_attributes(&self.path, attributes).await?;
        }
        let mut answer = super::empty(StatusCode::CREATED);
        let location =
            format!("webhdfs://{}{}", self.host, self.uri.path().trim_start_matches(super::PREFIX));
        if let Ok(location) = HeaderValue::from_str(&location) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
        Ok(answer)
    }

    /// Refuses a CREATE that cannot succeed.
    pub(super) async fn check_create(&self) -> Result<(), Exception> {
        let overwrite = self.overwrite()?;
        match self.caller.files.stat_for_create(&self.path, 0).await {
            Ok(found) if found.is_dir || !overwrite => {
                let what = if found.is_dir { "is a folder" } else { "already exists: set overwrite=true" };
                Err(Exception::new(Class::FileAlreadyExists, format!("{} {what}", self.path)))
            }
            Err(error) if !error.is(Kind::NotFound) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Refuses an APPEND that cannot succeed.
    pub(super) async fn check_append(&self) -> Result<(), Exception> {
        if self.caller.files.check_access(&self.path, WRITE).await?.is_dir {
            return Err(Exception::new(Class::FileNotFound, format!("Path is not a file: {}", self.path)));
        }
        Ok(())
    }

    /// Returns whether an existing file is replaced.
    fn overwrite(&self) -> Result<bool, Exception> {
        let mut overwrite = self.params.flag("overwrite")?.unwrap_or(false);
        for flag in self.params.text("createflag").unwrap_or_default().split(',') {
            match flag.trim().to_ascii_lowercase().as_str() {
                "" | "create" | "sync_block" | "new_block" => {}
                "overwrite" => overwrite = true,
                other => {
                    return Err(Exception::illegal(format!(
                        "Invalid value for webhdfs parameter \"createflag\": {other:?}: use create or overwrite"
                    )));
                }
            }
        }
        Ok(overwrite)
    }

    pub(super) async fn append(self, body: Body) -> Answer {
        let mut writer = self.caller.files.append(&self.path).await?;
        match write_all(&mut writer, body, &self.path).await {
            Ok(()) => {
                writer.close().await?;
                Ok(super::empty(StatusCode::OK))
            }
            Err(error) => {
                // If this fails, the NameNode closes the file when its lease expires.
                let _ = writer.abort().await;
                Err(error.into())
            }
        }
    }

    /// Computes the CRC32C of all bytes of the file. Hadoop calls it `COMPOSITE-CRC32C`; it depends
    /// neither on blocks nor on the cluster.
    pub(super) async fn get_file_checksum(&self) -> Answer {
        let mut reader = self.caller.files.open(&self.path).await?;
        let mut sum = 0;
        while let Some(bytes) = reader.next().await? {
            sum = crc32c::crc32c_append(sum, &bytes);
        }
        Ok(json(&serde_json::json!({ "FileChecksum": {
            "algorithm": "COMPOSITE-CRC32C",
            "bytes": format!("{sum:08x}"),
            "length": 4,
        }})))
    }
}

/// Sends the rest of a file to a client. If it cannot be read, the connection is closed early, which
/// the client notices because it knows the length.
async fn send_all(
    mut reader: FileReader,
    first: Option<Bytes>,
    pieces: &mpsc::Sender<io::Result<Bytes>>,
    path: &DfsPath,
) {
    let mut piece = Ok(first);
    loop {
        let sent = match piece {
            Ok(Some(bytes)) => tokio::time::timeout(STALL_TIMEOUT, pieces.send(Ok(bytes))).await,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%path, %error, "a file could not be read to its end");
                let _ = pieces.send(Err(io::Error::other(error))).await;
                return;
            }
        };
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
        piece = reader.next().await;
    }
}

/// Returns the pieces of a request body, or an error if the client is silent for too long.
fn incoming(body: Body) -> Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>> {
    let pieces = body.into_data_stream().timeout(STALL_TIMEOUT);
    Box::pin(pieces.map(|piece| match piece {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client has sent nothing for too long")),
    }))
}

async fn write_all(writer: &mut FileWriter, body: Body, path: &DfsPath) -> Result<(), ClientError> {
    let mut pieces = incoming(body);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|source| ClientError::Input { path: path.clone(), source })?;
        writer.write(&piece).await?;
    }
    Ok(())
}
