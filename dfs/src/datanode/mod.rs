//! The DataNode: block files on disk, served over the bulk protocol, told to the NameNode.

mod error;

pub use error::DataNodeError;

use crate::ids::NodeUuid;
use daemon::{config::Config, lifecycle::DaemonArgs};

/// A DataNode in this process: serves from `start` until `stop` (or until dropped).
#[derive(Debug)]
pub struct DataNode {}

impl DataNode {
    /// Opens the folders, binds the address, serves, and begins to look for the NameNode.
    #[allow(clippy::unused_async)]
    pub async fn start(_config: &Config) -> Result<Self, DataNodeError> {
        todo!()
    }

    /// Waits until the NameNode has taken the registration and the first full report.
    #[allow(clippy::unused_async)]
    pub async fn ready(&self) -> Result<(), DataNodeError> {
        todo!()
    }

    /// Where the bulk protocol is served, as others are told: `host:port`.
    pub fn data_addr(&self) -> &str {
        todo!()
    }

    /// The node's lasting identity.
    pub fn uuid(&self) -> NodeUuid {
        todo!()
    }

    /// Waits for an error that ends the node: refused by the NameNode, or no folder left.
    #[allow(clippy::unused_async)]
    pub async fn failed(&self) -> DataNodeError {
        todo!()
    }

    /// Stops accepting, gives running transfers a moment, and ends.
    #[allow(clippy::unused_async)]
    pub async fn stop(self) {
        todo!()
    }
}

/// Runs a DataNode until it is asked to stop (SIGTERM, SIGINT) or cannot go on. Writes the ready file, with the
/// bulk address, once registered and reported.
pub async fn run(config: &Config, args: &DaemonArgs) -> Result<(), DataNodeError> {
    let node = DataNode::start(config).await?;
    node.ready().await?;
    args.write_ready(node.data_addr()).map_err(|source| DataNodeError::Ready { source })?;
    tokio::select! {
        () = daemon::lifecycle::stop_signal() => { node.stop().await; Ok(()) }
        error = node.failed() => Err(error),
    }
}
