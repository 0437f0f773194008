//! The calls to the JobTracker.

use proto::mr::{job_tracker_client::JobTrackerClient, *};
use tonic::transport::Channel;

/// A client of the JobTracker.
pub(crate) type Rpc = JobTrackerClient<Channel>;

proto::boxed_calls! { Rpc:
    submit(SubmitRequest) -> SubmitReply;
    kill(KillRequest) -> KillReply;
    preempt(PreemptRequest) -> PreemptReply;
    resume(ResumeRequest) -> ResumeReply;
    drain(DrainTrackerRequest) -> DrainTrackerReply;
    forget_node(ForgetNodeRequest) -> ForgetNodeReply;
    jobs(JobsRequest) -> JobsReply;
    job(JobRequest) -> JobStatus;
    watch(JobRequest) -> tonic::Streaming<JobStatus>;
    tasks(TasksRequest) -> TasksReply;
    trackers(TrackersRequest) -> TrackersReply;
    history(JobRequest) -> tonic::Streaming<HistoryChunk>;
    why(WhyRequest) -> WhyReply;
    schedulers(SchedulersRequest) -> SchedulersReply;
    shadow(ShadowRequest) -> ShadowReply;
}
