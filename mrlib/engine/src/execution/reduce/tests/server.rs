//! A shuffle server for map outputs and checkpoints in local files.

use super::TOKEN;
use crate::{
    checkpoint,
    fetch::wire::{self, Request, data_header, refusal},
    segment::{Extent, Index},
};
use std::{
    collections::HashMap,
    fs::File,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};

type Files = Arc<Mutex<HashMap<String, PathBuf>>>;

pub(super) struct Server {
    pub(super) addr: String,
    files: Files,
}

impl Server {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (addr, files) = (listener.local_addr().unwrap().to_string(), Files::default());
        let weak = Arc::downgrade(&files);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, Some(files)) = (stream.unwrap(), weak.upgrade()) else { return };
                thread::spawn(move || while serve(&mut stream, &files).is_some() {});
            }
        });
        Self { addr, files }
    }

    pub(super) fn add_map(&self, attempt: &str, path: &Path) {
        self.files.lock().unwrap().insert(attempt.into(), path.into());
    }

    pub(super) fn add_checkpoint(&self, attempt: &str, dir: &Path) {
        self.add_map(attempt, dir);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread checks whether to end when a connection arrives.
        self.files = Files::default();
        drop(TcpStream::connect(&self.addr));
    }
}

fn serve(stream: &mut TcpStream, files: &Files) -> Option<()> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut body).ok()?;
    let Request { token, attempt, partition } = Request::parse(&body)?;
    assert_eq!(token, TOKEN);
    let path = files.lock().unwrap().get(attempt).cloned()?;
    let found = if attempt.contains(".r") {
        checkpoint::parts(std::slice::from_ref(&path))
            .and_then(|parts| {
                parts
                    .get(partition as usize)
                    .ok_or_else(|| checkpoint::missing_part(partition))?
                    .find(&[path])
            })
            .map_err(|error| error.to_string())
    } else {
        let extent = Index::read(&path).unwrap().extents[partition as usize];
        Ok((path, extent))
    };
    let read = |(path, extent): (PathBuf, Extent)| {
        let mut bytes = vec![0; extent.stored as usize];
        let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, extent.offset));
        read.map(|()| (extent, bytes)).map_err(|error| error.to_string())
    };
    match found.and_then(read) {
        Ok((extent, bytes)) => {
            stream.write_all(&data_header(&extent)).ok()?;
            stream.write_all(&bytes).ok()
        }
        Err(why) => stream.write_all(&refusal(wire::DAMAGED, &why)).ok(),
    }
}
