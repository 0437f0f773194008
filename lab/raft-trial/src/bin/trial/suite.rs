//! Point 7: openraft's own tests of log stores and state machines.

use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use raft_trial::{machine::Machine, store::Store, types::Group};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

#[derive(Default)]
struct Builder(AtomicU64);

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

impl StoreBuilder<Group, Store, Machine, Folder> for Builder {
    async fn build(&self) -> Result<(Folder, Store, Machine), StorageError<Group>> {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("raft-trial/suite/{n}"));
        let _absent = std::fs::remove_dir_all(&folder);
        Ok((Folder(folder.clone()), Store::open(&folder, 0).unwrap(), Machine::open(&folder)))
    }
}

pub fn run() {
    use openraft::type_config::TypeConfigExt;
    Group::run(async {
        let builder = Builder::default();
        match Suite::test_store(&builder).await {
            Ok(()) => {
                println!("Suite::test_store passed, {} stores built", builder.0.load(Ordering::Relaxed))
            }
            Err(error) => println!("Suite::test_store failed: {error}"),
        }
    });
}
