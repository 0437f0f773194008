//! The code in `src/generated` is what the .proto files give. It is committed, so that a build
//! compiles neither a protobuf parser nor a code generator.
//!
//! After a change of a .proto file: `FERMATA_BLESS=1 cargo test -p fermata-proto`.

use std::{fs, path::Path};

const FILES: [&str; 4] = [
    "fermata/dfs/v1/namenode.proto",
    "fermata/dfs/v1/datanode.proto",
    "fermata/mr/v1/jobtracker.proto",
    "fermata/mr/v1/task.proto",
];

#[test]
fn the_generated_code_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fresh = tempfile::tempdir().unwrap();
    let descriptors = protox::compile(FILES, [root]).unwrap();
    tonic_prost_build::configure().out_dir(&fresh).compile_fds(descriptors).unwrap();
    for name in ["fermata.dfs.v1.rs", "fermata.mr.v1.rs"] {
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
