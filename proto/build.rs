//! Compiles the .proto files with protox, so that no protoc needs to be installed.

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
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
