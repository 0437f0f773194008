//! A fake DataNode that stores blocks in memory. The first node of a pipeline writes directly into
//! the memory of its mirrors.

use crate::bulk::{FrameError, FrameKind, encode_frame, read_frame};
use crate::checksum::{self, CHUNK_BYTES};
use bytes::BytesMut;
use parking_lot::Mutex;
use proto::dfs as pb;
use std::collections::HashMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// A fault that a test injects into a fake DataNode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Misbehaviour {
    /// The node dies permanently after this many packets.
    DieAfterPackets(usize),
    /// Closes the connection once after this many packets. The node stays alive.
    HangUpOnceAfterPackets(usize),
    /// Sends no more statuses after this many packets, with the connection open.
    StallAfterPackets(usize),
    /// Fails as a mirror after this many packets.
    MirrorFailsAfterPackets(usize),
    /// Refuses writes.
    RefuseWrites,
    /// Acknowledges bytes that were never sent.
    AckTooMuch,
    /// Answers writes and reads with random bytes.
    Garbage,
    /// Sends every block with this byte changed.
    FlipByte(u64),
    /// Closes the connection at this byte of every block.
    CutAt(u64),
    /// Stops sending at this byte of every block.
    StallAt(u64),
    /// Accepts requests and never answers.
    Mute,
    /// Answers reads after this many milliseconds.
    Slow(u64),
    /// Refuses reads as if the replica did not exist.
    Missing,
    /// Offers fewer bytes than requested.
    OfferLess,
}

/// Returns the nonce of a block. It depends on the ID, so that no two blocks have the same nonce.
pub(super) fn nonce_of(block: u64) -> u64 {
    !block
}

pub(in super::super) struct Node {
    pub(super) name: String,
    pub(super) addr: String,
    pub(super) state: Mutex<NodeState>,
}

#[derive(Default)]
pub(in super::super) struct NodeState {
    pub(super) dead: bool,
    pub(super) misbehaviour: Option<Misbehaviour>,
    pub(super) blocks: HashMap<u64, Vec<u8>>,
    pub(super) partial: HashMap<u64, Vec<u8>>,
    /// The `resume_at` of each write that was set up.
    pub(super) resumed_at: Vec<u64>,
    pub(super) reads: usize,
    pub(super) keep_alives: usize,
    /// The timeout that the node reports in its statuses.
    pub(super) timeout_ms: u64,
    held_open: Vec<TcpStream>,
}

pub(super) type Nodes = Arc<Mutex<Vec<Arc<Node>>>>;

impl Node {
    pub(super) fn start(name: &str, all: Nodes) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let node = Arc::new(Self { name: name.into(), addr, state: Mutex::default() });
        let serving = node.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (node, all) = (serving.clone(), all.clone());
                // A dead node closes accepted connections.
                if !node.state.lock().dead {
                    std::thread::spawn(move || node.serve(stream, &all));
                }
            }
        });
        node
    }

    pub(super) fn uuid(&self) -> String {
        format!("uuid-of-{}", self.name)
    }

    pub(super) fn set_misbehaviour(&self, misbehaviour: Misbehaviour) {
        self.state.lock().misbehaviour = Some(misbehaviour);
    }

    fn misbehaviour(&self) -> Option<Misbehaviour> {
        self.state.lock().misbehaviour
    }

    fn serve(&self, mut stream: TcpStream, all: &Nodes) {
        while let Ok(frame) = read_frame(&mut stream, BytesMut::new()) {
            let Ok(request) = frame.expect::<pb::BulkRequest>(FrameKind::Request) else { return };
            if self.misbehaviour() == Some(Misbehaviour::Garbage) {
                let _ = stream.write_all(&[0xAB; 64]);
                return;
            }
            if self.misbehaviour() == Some(Misbehaviour::Mute) {
                self.state.lock().held_open.push(stream);
                return;
            }
            let served = match request.op {
                Some(pb::bulk_request::Op::Write(write)) if write.nonce != nonce_of(write.block_id) => {
                    refuse(&mut stream, "denied", "another nonce")
                }
                Some(pb::bulk_request::Op::Read(read)) if read.nonce != nonce_of(read.block_id) => {
                    refuse(&mut stream, "not-found", "another nonce")
                }
                Some(pb::bulk_request::Op::Write(write)) => self.write(&mut stream, &write, all),
                Some(pb::bulk_request::Op::Read(read)) => self.read(&mut stream, &read),
                _ => return,
            };
            if served.is_err() {
                return;
            }
        }
    }

    fn write(&self, stream: &mut TcpStream, write: &pb::WriteBlock, all: &Nodes) -> Result<(), FrameError> {
        if self.misbehaviour() == Some(Misbehaviour::RefuseWrites) {
            return refuse(stream, "no-space", "no folder has free space");
        }
        let block = write.block_id;
        let mut pipeline =
            Pipeline { block, nodes: Vec::new(), faults: Vec::new(), packets: 0, timeout_ms: 0 };
        pipeline.timeout_ms = self.state.lock().timeout_ms;
        pipeline.join(self.find_self(all), write.resume_at);
        for mirror in &write.mirrors {
            let found = all.lock().iter().find(|node| node.uuid() == mirror.uuid).cloned();
            pipeline.join(found.unwrap(), write.resume_at);
        }
        self.state.lock().resumed_at.push(write.resume_at);
        if let Some(content) = self.state.lock().blocks.get(&block) {
            let status = pipeline.status(content.len() as u64, true);
            return send(stream, FrameKind::Status, &status);
        }
        send(stream, FrameKind::Status, &pipeline.status(write.resume_at, false))?;
        loop {
            let frame = read_frame(stream, BytesMut::new())?;
            let packet: pb::Packet = frame.expect(FrameKind::Packet)?;
            checksum::verify(&frame.data, packet.offset, &checksum::from_bytes(&packet.checksums)).unwrap();
            assert!(
                packet.last || frame.data.len() % CHUNK_BYTES == 0,
                "an incomplete chunk before the last packet"
            );
            if frame.data.is_empty() && !packet.last {
                self.state.lock().keep_alives += 1;
                send(stream, FrameKind::Status, &pipeline.status(packet.offset, false))?;
                continue;
            }
            assert!(!frame.data.is_empty(), "an empty packet that is not a keep-alive");
            pipeline.packets += 1;
            if matches!(self.misbehaviour(), Some(Misbehaviour::StallAfterPackets(after)) if pipeline.packets > after)
            {
                self.state.lock().held_open.push(stream.try_clone()?);
                return Err(FrameError::Closed);
            }
            self.fail_if_set(pipeline.packets)?;
            pipeline.write_packet(packet.offset, &frame.data, packet.last);
            let mut acked = packet.offset + frame.data.len() as u64;
            if self.misbehaviour() == Some(Misbehaviour::AckTooMuch) {
                acked += 1 << 40;
            }
            send(stream, FrameKind::Status, &pipeline.status(acked, packet.last))?;
            if packet.last {
                return Ok(());
            }
        }
    }

    fn find_self(&self, all: &Nodes) -> Arc<Node> {
        all.lock().iter().find(|node| node.name == self.name).cloned().unwrap()
    }

    fn fail_if_set(&self, packets: usize) -> Result<(), FrameError> {
        let mut state = self.state.lock();
        match state.misbehaviour {
            Some(Misbehaviour::DieAfterPackets(after)) if packets > after => state.dead = true,
            Some(Misbehaviour::HangUpOnceAfterPackets(after)) if packets > after => state.misbehaviour = None,
            _ if state.dead => {}
            _ => return Ok(()),
        }
        Err(FrameError::Closed)
    }

    fn read(&self, stream: &mut TcpStream, read: &pb::ReadBlock) -> Result<(), FrameError> {
        let misbehaviour = self.misbehaviour();
        self.state.lock().reads += 1;
        let content = self.state.lock().blocks.get(&read.block_id).cloned();
        let Some(mut content) = content.filter(|_| misbehaviour != Some(Misbehaviour::Missing)) else {
            return refuse(stream, "not-found", "this node has no such replica");
        };
        assert_eq!(content.len() as u64, read.block_length, "the client expects another block length");
        let (start, end) = (read.offset as usize, (read.offset + read.length) as usize);
        assert!(start % CHUNK_BYTES == 0, "the requested range does not start at a chunk boundary");
        let mut reply = pb::ReadReply {
            offset: read.offset,
            length: read.length,
            chunk_size: CHUNK_BYTES as u32,
            checksums: checksum::to_bytes(&checksum::sums_of(&content[start..end])),
        };
        let mut upto = end;
        match misbehaviour {
            Some(Misbehaviour::FlipByte(at)) if (at as usize) < content.len() => content[at as usize] ^= 1,
            Some(Misbehaviour::CutAt(at) | Misbehaviour::StallAt(at)) => {
                upto = (at as usize).clamp(start, end);
            }
            Some(Misbehaviour::OfferLess) => reply.length -= 1,
            Some(Misbehaviour::Slow(ms)) => std::thread::sleep(std::time::Duration::from_millis(ms)),
            _ => {}
        }
        send(stream, FrameKind::ReadReply, &reply)?;
        stream.write_all(&content[start..upto])?;
        if upto < end {
            if matches!(misbehaviour, Some(Misbehaviour::StallAt(_))) {
                self.state.lock().held_open.push(stream.try_clone()?);
            }
            return Err(FrameError::Closed);
        }
        Ok(())
    }
}

/// The nodes of the pipeline of one write.
struct Pipeline {
    block: u64,
    nodes: Vec<Arc<Node>>,
    faults: Vec<pb::NodeFault>,
    packets: usize,
    timeout_ms: u64,
}

impl Pipeline {
    fn join(&mut self, node: Arc<Node>, resume_at: u64) {
        let mut state = node.state.lock();
        if state.dead || (state.misbehaviour == Some(Misbehaviour::RefuseWrites)) {
            return self.faults.push(fault(&node, "refused"));
        }
        let partial = state.partial.entry(self.block).or_default();
        let finished = resume_at as usize > partial.len();
        assert!(
            !finished || state.blocks.contains_key(&self.block),
            "the writer resumes beyond the partial replica"
        );
        if let Some(partial) = state.partial.get_mut(&self.block) {
            partial.truncate(resume_at as usize);
        }
        drop(state);
        self.nodes.push(node);
    }

    fn write_packet(&mut self, offset: u64, data: &[u8], last: bool) {
        let (block, packets) = (self.block, self.packets);
        let mut faults = Vec::new();
        self.nodes.retain(|node| {
            let mut state = node.state.lock();
            let fails =
                matches!(state.misbehaviour, Some(Misbehaviour::MirrorFailsAfterPackets(after)) if packets > after);
            if state.dead || fails {
                faults.push(fault(node, "disk on fire"));
                return false;
            }
            let partial = state.partial.entry(block).or_default();
            assert_eq!(partial.len() as u64, offset, "a packet is out of order");
            partial.extend_from_slice(data);
            if last {
                let content = state.partial.remove(&block).unwrap();
                state.blocks.insert(block, content);
            }
            true
        });
        self.faults.append(&mut faults);
    }

    fn status(&self, acked: u64, done: bool) -> pb::WriteStatus {
        let nodes = self.nodes.iter().map(|node| node.uuid()).collect();
        pb::WriteStatus { acked, done, nodes, faults: self.faults.clone(), timeout_ms: self.timeout_ms }
    }
}

fn fault(node: &Node, reason: &str) -> pb::NodeFault {
    pb::NodeFault { node: node.uuid(), reason: reason.into() }
}

fn refuse(stream: &mut TcpStream, kind: &str, message: &str) -> Result<(), FrameError> {
    let error = pb::BulkError { kind: kind.into(), message: message.into() };
    send(stream, FrameKind::Error, &error)
}

fn send(stream: &mut TcpStream, kind: FrameKind, body: &impl prost::Message) -> Result<(), FrameError> {
    let mut out = Vec::new();
    encode_frame(kind, body, 0, &mut out);
    Ok(stream.write_all(&out)?)
}
