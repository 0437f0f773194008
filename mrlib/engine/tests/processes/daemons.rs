//! A file system whose daemons run in this process.

use daemon::{Bytes, MasterAddrs, Period, config::Config, lifecycle::DaemonArgs};
use dfs::datanode::DataNode;
use std::time::Duration;

pub(crate) const BLOCK_BYTES: u64 = 64 << 10;

/// A NameNode and DataNodes. Every block is on all DataNodes.
pub(crate) struct Daemons {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) config: Config,
    _nodes: Vec<DataNode>,
}

impl Daemons {
    pub(crate) async fn start(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::default();
        config.namenode.listen = "127.0.0.1:0".into();
        config.namenode.dir = folder.path().join("names");
        config.namenode.replication = names.len() as u32;
        config.namenode.block_size = Bytes(BLOCK_BYTES);
        config.namenode.block_size_min = Bytes(1024);
        config.namenode.heartbeat = Period::millis(100);
        let ready = folder.path().join("ready");
        let args = DaemonArgs {
            config: None,
            print_config: false,
            log_format: daemon::logging::LogFormat::Human,
            log_max: Bytes(0),
            ready_file: Some(ready.clone()),
            insecure: false,
            security: daemon::SecurityArgs::default(),
        };
        let served = config.clone();
        tokio::spawn(
            async move { dfs::namenode::run(&served, &args, dfs::namenode::Recovery::Refuse).await },
        );
        config.cluster.namenode = loop {
            match std::fs::read_to_string(&ready) {
                Ok(text) if !text.trim().is_empty() => break text.trim().into(),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let mut nodes = Vec::new();
        for name in names {
            let mut config = config.clone();
            config.datanode.node = (*name).into();
            config.datanode.listen = "127.0.0.1:0".into();
            config.datanode.dirs = vec![folder.path().join(name)];
            config.datanode.reserve = Bytes(0);
            let node = DataNode::start(&config).await.expect("a DataNode");
            node.ready().await.expect("a NameNode");
            nodes.push(node);
        }
        Self { folder, config, _nodes: nodes }
    }

    /// Returns the address of the NameNode, as a list.
    pub(crate) fn namenodes(&self) -> &MasterAddrs {
        &self.config.cluster.namenode
    }
}
