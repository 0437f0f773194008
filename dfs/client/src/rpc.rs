//! The calls to the NameNode.

use proto::dfs::{self as pb, name_node_client::NameNodeClient};
use tonic::transport::Channel;

/// A client of the NameNode.
pub(super) type Rpc = NameNodeClient<Channel>;

proto::boxed_calls! { Rpc:
    create(pb::CreateRequest) -> pb::CreateReply;
    append(pb::AppendRequest) -> pb::AppendReply;
    add_block(pb::AddBlockRequest) -> pb::AddBlockReply;
    abandon_block(pb::AbandonBlockRequest) -> pb::AbandonBlockReply;
    close(pb::CloseRequest) -> pb::CloseReply;
    renew_lease(pb::RenewLeaseRequest) -> pb::RenewLeaseReply;
    locate(pb::LocateRequest) -> pb::LocateReply;
    report_bad_replica(pb::ReportBadReplicaRequest) -> pb::ReportBadReplicaReply;
    mkdir(pb::MkdirRequest) -> pb::MkdirReply;
    stat(pb::StatRequest) -> pb::StatReply;
    list(pb::ListRequest) -> pb::ListReply;
    rename(pb::RenameRequest) -> pb::RenameReply;
    delete(pb::DeleteRequest) -> pb::DeleteReply;
    set_attributes(pb::SetAttributesRequest) -> pb::SetAttributesReply;
    set_quota(pb::SetQuotaRequest) -> pb::SetQuotaReply;
    usage(pb::UsageRequest) -> pb::UsageReply;
    concat(pb::ConcatRequest) -> pb::ConcatReply;
    fence(pb::FenceRequest) -> pb::FenceReply;
    commit(pb::CommitRequest) -> pb::CommitReply;
    report_active_jobs(pb::ReportActiveJobsRequest) -> pb::ReportActiveJobsReply;
    fsck(pb::FsckRequest) -> pb::FsckReply;
    report(pb::ReportRequest) -> pb::ReportReply;
    set_safemode(pb::SetSafemodeRequest) -> pb::SetSafemodeReply;
    drain(pb::DrainRequest) -> pb::DrainReply;
    backup(pb::BackupRequest) -> tonic::Streaming<pb::BackupChunk>;
}
