//! Compiles the .proto files with protox, so that no protoc needs to be installed.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FILES: [&str; 4] = [
        "fermata/dfs/v1/namenode.proto",
        "fermata/dfs/v1/datanode.proto",
        "fermata/mr/v1/jobtracker.proto",
        "fermata/mr/v1/task.proto",
    ];
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
