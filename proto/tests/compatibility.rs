//! Checks that messages of earlier builds can be decoded, so that they are refused with a message
//! that names both versions.

use fermata_proto::dfs::HeartbeatRequest;
use prost::Message as _;

#[test]
fn heartbeat_of_protocol_2_is_decoded() {
    // Field 3 `seq` is 1, field 4 `capacity` is 5, field 8 `failed_volumes` is 1.
    let heartbeat = HeartbeatRequest::decode([0x18, 1, 0x20, 5, 0x40, 1].as_slice()).unwrap();
    assert_eq!(heartbeat, HeartbeatRequest { seq: 1, ..HeartbeatRequest::default() });
}
