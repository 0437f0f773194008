//! The calls to the NameNode.

use proto::dfs::{name_node_client::NameNodeClient, *};
use tonic::transport::Channel;

/// A client of the NameNode.
pub(super) type Rpc = NameNodeClient<Channel>;

proto::boxed_calls! { Rpc:
    create(CreateRequest) -> CreateReply;
    append(AppendRequest) -> AppendReply;
    add_block(AddBlockRequest) -> AddBlockReply;
    abandon_block(AbandonBlockRequest) -> AbandonBlockReply;
    close(CloseRequest) -> CloseReply;
    renew_lease(RenewLeaseRequest) -> RenewLeaseReply;
    locate(LocateRequest) -> LocateReply;
    report_bad_replica(ReportBadReplicaRequest) -> ReportBadReplicaReply;
    mkdir(MkdirRequest) -> MkdirReply;
    stat(StatRequest) -> StatReply;
    list(ListRequest) -> ListReply;
    rename(RenameRequest) -> RenameReply;
    delete(DeleteRequest) -> DeleteReply;
    set_attributes(SetAttributesRequest) -> SetAttributesReply;
    set_quota(SetQuotaRequest) -> SetQuotaReply;
    usage(UsageRequest) -> UsageReply;
    concat(ConcatRequest) -> ConcatReply;
    fence(FenceRequest) -> FenceReply;
    commit(CommitRequest) -> CommitReply;
    report_active_jobs(ReportActiveJobsRequest) -> ReportActiveJobsReply;
    fsck(FsckRequest) -> FsckReply;
    report(ReportRequest) -> ReportReply;
    set_safemode(SetSafemodeRequest) -> SetSafemodeReply;
    drain(DrainRequest) -> DrainReply;
}
