//! Fuzzes what the DataNode reads from peers and from its checksum files.

#![no_main]

use bytes::BytesMut;
use fermata_dfs::{bulk::read_frame, checksum::Checksums, ids::BlockId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut stream = input;
    let mut spare = BytesMut::new();
    while let Ok(frame) = read_frame(&mut stream, spare) {
        spare = frame.data;
    }
    // The block id is inside the file: take it from there, so that the reader gets beyond it.
    let id = input.get(8..16).map_or(0, |id| u64::from_le_bytes(std::array::from_fn(|i| id[i])));
    if let Ok(sums) = Checksums::decode(input, BlockId(id)) {
        assert_eq!(sums.encode(), input, "what is accepted is what was written");
    }
});
