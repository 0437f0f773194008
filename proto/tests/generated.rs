//! Checks that the code in `src/generated` matches the .proto files. The generated code is
//! committed, so that a build compiles neither a protobuf parser nor a code generator.
//!
//! To update the code after a change of a .proto file, run `FERMATA_BLESS=1 cargo test -p
//! fermata-proto`.

use std::{fs, path::Path};

const FILES: [&str; 6] = [
    "fermata/dfs/v1/namenode.proto",
    "fermata/dfs/v1/datanode.proto",
    "fermata/mr/v1/jobtracker.proto",
    "fermata/mr/v1/task.proto",
    "fermata/master/v1/master.proto",
    "fermata/raft/v1/peer.proto",
];

/// Messages that contain a token. `src/lib.rs` implements `Debug` for them, without the token.
const WITH_TOKEN: [&str; 5] = [
    "fermata.dfs.v1.BulkRequest",
    "fermata.dfs.v1.CopyBlock",
    "fermata.dfs.v1.LocatedBlock",
    "fermata.mr.v1.CopyFiles",
    "fermata.mr.v1.TaskSpec",
];

#[test]
fn generated_code_matches_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fresh = tempfile::tempdir().unwrap();
    let descriptors = protox::compile(FILES, [root]).unwrap();
    tonic_prost_build::configure()
        .out_dir(&fresh)
        .skip_debug(WITH_TOKEN)
        .type_attribute("fermata.dfs.v1.BulkRequest.op", "#[derive(Debug)]")
        .type_attribute("fermata.mr.v1.TaskSpec.input", "#[derive(Debug)]")
        .compile_fds(descriptors)
        .unwrap();
    for name in ["fermata.dfs.v1.rs", "fermata.mr.v1.rs", "fermata.master.v1.rs", "fermata.raft.v1.rs"] {
        let expected = fs::read_to_string(fresh.path().join(name)).unwrap();
        let committed = root.join("src/generated").join(name);
        if std::env::var_os("FERMATA_BLESS").is_some() {
            fs::write(&committed, expected).unwrap();
            continue;
        }
        assert!(
            fs::read_to_string(&committed).unwrap() == expected,
            "{} does not match the .proto files: run FERMATA_BLESS=1 cargo test -p fermata-proto",
            committed.display()
        );
    }
}

#[test]
fn tokens_are_not_printed() {
    use fermata_proto::{dfs, mr};
    let token = b"secret".to_vec();
    let texts = [
        format!("{:?}", dfs::BulkRequest { token: token.clone(), ..Default::default() }),
        format!("{:?}", dfs::CopyBlock { token: token.clone(), ..Default::default() }),
        format!("{:?}", dfs::LocatedBlock { token: token.clone(), ..Default::default() }),
        format!("{:?}", mr::CopyFiles { shuffle_token: token.clone(), ..Default::default() }),
        format!("{:?}", mr::TaskSpec { shuffle_token: token.clone(), ..Default::default() }),
        format!("{:?}", mr::TaskSpec { token: "secret".into(), ..Default::default() }),
    ];
    for text in texts {
        assert!(!text.contains("secret") && !text.contains(&format!("{token:?}")), "{text}");
    }
}
