//! NameNode calls for operators: fsck, report, safemode, drain.

use super::call::Operation;
use super::namespace::request_id;
use super::rpc;
use super::wire;
use super::{BackupPart, Client, ClientError, DrainStatus, Fsck, Report, Result, SafemodeStatus};
use crate::{ids::BlockId, path::DfsPath};
use proto::dfs as pb;

/// Number of files that one fsck call checks.
const PAGE_FILES: u32 = 1000;

impl Client {
    /// Checks all files below `path`.
    pub async fn fsck(&self, path: &DfsPath) -> Result<Fsck> {
        let what = Operation("check", path.as_str());
        let mut total = Fsck::new();
        let mut start_after = String::new();
        loop {
            let request = pb::FsckRequest {
                path: path.to_string(),
                start_after: start_after.clone(),
                limit: PAGE_FILES,
            };
            let page = self.call(what, request, rpc::fsck).await?;
            let more = page.more;
            let before = std::mem::replace(&mut start_after, page.last_path.clone());
            wire::fsck_page(&mut total, page).map_err(|reason| what.bad_reply(reason))?;
            if !more {
                return Ok(total);
            }
            if start_after == before {
                return Err(what.bad_reply("a page does not continue after the previous one"));
            }
        }
    }

    /// Asks a node to verify its replica of a block and to quarantine the replica if it is damaged.
    /// Does not wait for the result.
    pub async fn check_replica(&self, block: BlockId, node_uuid: &str, reason: &str) -> Result<()> {
        let request = pb::ReportBadReplicaRequest {
            block_id: block.0,
            node_uuid: node_uuid.to_owned(),
            reason: reason.to_owned(),
        };
        let send = rpc::report_bad_replica;
        self.call(Operation("request a check of a replica on", node_uuid), request, send).await?;
        Ok(())
    }

    /// Returns a summary of the file system.
    pub async fn report(&self) -> Result<Report> {
        let what = Operation("report", "");
        let request = pb::ReportRequest { safemode_only: false };
        let reply = self.call(what, request, rpc::report).await?;
        wire::report(reply).map_err(|reason| what.bad_reply(reason))
    }

    /// Returns whether the NameNode is in safemode. Costs much less than [`Self::report`].
    pub async fn safemode(&self) -> Result<SafemodeStatus> {
        let what = Operation("get safemode", "");
        let request = pb::ReportRequest { safemode_only: true };
        let reply = self.call(what, request, rpc::report).await?;
        wire::safemode(reply.safemode).map_err(|reason| what.bad_reply(reason))
    }

    /// Turns safemode on or off.
    pub async fn set_safemode(&self, on: bool) -> Result<SafemodeStatus> {
        let what = Operation("set safemode", "");
        let request = pb::SetSafemodeRequest { on };
        let reply = self.call(what, request, rpc::set_safemode).await?;
        wire::safemode(reply.safemode).map_err(|reason| what.bad_reply(reason))
    }

    /// Starts to drain a node, or cancels the drain if `cancel` is set.
    pub async fn drain(&self, node: &str, cancel: bool) -> Result<DrainStatus> {
        self.call_drain(node, cancel, false).await
    }

    /// Returns the progress of a drain and changes nothing. Another client may have cancelled the
    /// drain since it was started.
    pub async fn drain_status(&self, node: &str) -> Result<DrainStatus> {
        self.call_drain(node, false, true).await
    }

    /// Makes a snapshot on the NameNode and passes each part of a backup to `sink`. The backup is
    /// complete if its last part was [`BackupPart::End`].
    pub async fn backup<E: From<ClientError>>(
        &self,
        mut sink: impl FnMut(BackupPart) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let what = Operation("back up", "the NameNode");
        let mut chunks = self.call(what, pb::BackupRequest {}, rpc::backup).await?;
        loop {
            match chunks.message().await {
                Ok(Some(chunk)) => sink(wire::backup_part(chunk))?,
                Ok(None) => return Ok(()),
                Err(status) => return Err(self.interrupted(&status).into()),
            }
        }
    }

    async fn call_drain(&self, node: &str, cancel: bool, status_only: bool) -> Result<DrainStatus> {
        let what = Operation("drain", node);
        let request =
            pb::DrainRequest { request_id: request_id(), node: node.to_owned(), cancel, status_only };
        let reply = self.call(what, request, rpc::drain).await?;
        wire::drain_status(reply).map_err(|reason| what.bad_reply(reason))
    }
}
