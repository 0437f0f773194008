//! The calls to the JobTracker.

use proto::mr::{self as pb, job_tracker_client::JobTrackerClient};
use tonic::transport::Channel;

/// A client of the JobTracker.
pub(crate) type Rpc = JobTrackerClient<Channel>;

proto::boxed_calls! { Rpc:
    submit(pb::SubmitRequest) -> pb::SubmitReply;
    kill(pb::KillRequest) -> pb::KillReply;
    preempt(pb::PreemptRequest) -> pb::PreemptReply;
    resume(pb::ResumeRequest) -> pb::ResumeReply;
    drain(pb::DrainTrackerRequest) -> pb::DrainTrackerReply;
    forget_node(pb::ForgetNodeRequest) -> pb::ForgetNodeReply;
    jobs(pb::JobsRequest) -> pb::JobsReply;
    job(pb::JobRequest) -> pb::JobStatus;
    watch(pb::JobRequest) -> tonic::Streaming<pb::JobStatus>;
    tasks(pb::TasksRequest) -> pb::TasksReply;
    trackers(pb::TrackersRequest) -> pb::TrackersReply;
    history(pb::HistoryRequest) -> tonic::Streaming<pb::HistoryChunk>;
    why(pb::WhyRequest) -> pb::WhyReply;
    schedulers(pb::SchedulersRequest) -> pb::SchedulersReply;
    shadow(pb::ShadowRequest) -> pb::ShadowReply;
    backup(pb::BackupRequest) -> tonic::Streaming<pb::BackupChunk>;
}
