//! Conversion between the messages of a group and their protobuf types.

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};
use proto::raft::{self as wire, reply, request};
use replication::{
    codec::{decode_entry, decode_place, encode_entry, encode_place},
    network::{Answer, Message, SnapshotPart},
    types::{Entry, Group, LogId, Vote, log_id},
};

/// Converts a message.
pub(crate) fn from_message(message: &Message) -> request::Message {
    match message {
        Message::Append(append) => request::Message::Append(wire::Append {
            vote: Some(from_vote(append.vote)),
            previous: append.prev_log_id.map(from_log_id),
            entries: append.entries.iter().map(|entry| wire::Entry { bytes: encode_entry(entry) }).collect(),
            committed: append.leader_commit.map(from_log_id),
        }),
        Message::Vote(vote) => request::Message::Vote(from_vote_request(vote)),
        Message::PreVote(vote) => request::Message::PreVote(from_vote_request(vote)),
        Message::Transfer(transfer) => request::Message::Transfer(wire::Transfer {
            from: Some(from_vote(*transfer.from_leader())),
            to: *transfer.to_node_id(),
            last: transfer.last_log_id().copied().map(from_log_id),
        }),
        Message::Part(SnapshotPart { vote, meta, offset, bytes }) => request::Message::Part(wire::Part {
            vote: Some(from_vote(*vote)),
            place: encode_place(meta),
            offset: *offset,
            bytes: bytes.clone(),
        }),
        Message::Install(vote, meta) => request::Message::Install(wire::Install {
            vote: Some(from_vote(*vote)),
            place: encode_place(meta),
        }),
    }
}

/// Converts a message back; `None` if something is missing or cannot be decoded.
pub(crate) fn to_message(message: request::Message) -> Option<Message> {
    Some(match message {
        request::Message::Append(append) => {
            let previous = append.previous.map(to_log_id);
            let first = previous.map_or(0, |previous| previous.index.saturating_add(1));
            let entries = append.entries.iter().zip(first..);
            let entries = entries.map(|(entry, index)| decode_entry(index, &entry.bytes));
            Message::Append(AppendEntriesRequest {
                vote: to_vote(append.vote?),
                prev_log_id: previous,
                entries: entries.collect::<Option<Vec<Entry>>>()?,
                leader_commit: append.committed.map(to_log_id),
            })
        }
        request::Message::Vote(vote) => Message::Vote(to_vote_request(vote)?),
        request::Message::PreVote(vote) => Message::PreVote(to_vote_request(vote)?),
        request::Message::Transfer(transfer) => Message::Transfer(TransferLeaderRequest::new(
            to_vote(transfer.from?),
            transfer.to,
            transfer.last.map(to_log_id),
        )),
        request::Message::Part(part) => Message::Part(SnapshotPart {
            vote: to_vote(part.vote?),
            meta: decode_place(&part.place)?,
            offset: part.offset,
            bytes: part.bytes,
        }),
        request::Message::Install(install) => {
            Message::Install(to_vote(install.vote?), decode_place(&install.place)?)
        }
    })
}

/// Converts an answer.
pub(crate) fn from_answer(answer: &Answer) -> reply::Answer {
    use wire::{append_answer::Outcome as Appended, transfer_answer::Outcome as Transferred};
    match answer {
        Answer::Append(append) => {
            let (outcome, log_id, vote) = match append {
                None => (Appended::NotDurable, None, None),
                Some(AppendEntriesResponse::Success) => (Appended::All, None, None),
                Some(AppendEntriesResponse::PartialSuccess(last)) => (Appended::UpTo, *last, None),
                Some(AppendEntriesResponse::Conflict) => (Appended::Conflict, None, None),
                Some(AppendEntriesResponse::HigherVote(vote)) => (Appended::HigherVote, None, Some(*vote)),
            };
            reply::Answer::Append(wire::AppendAnswer {
                outcome: outcome.into(),
                log_id: log_id.map(from_log_id),
                vote: vote.map(from_vote),
            })
        }
        Answer::Vote(vote) => reply::Answer::Vote(wire::VoteAnswer {
            vote: Some(from_vote(vote.vote)),
            granted: vote.vote_granted,
            last: vote.last_log_id.map(from_log_id),
        }),
        Answer::Transfer(transfer) => reply::Answer::Transfer(match transfer {
            Ok(()) => wire::TransferAnswer::default(),
            Err(TransferLeaderError::VoteChanged { expected, actual }) => wire::TransferAnswer {
                outcome: Transferred::VoteChanged.into(),
                expected_vote: Some(from_vote(*expected)),
                actual_vote: Some(from_vote(*actual)),
                ..Default::default()
            },
            Err(TransferLeaderError::LogNotFlushed { expected, actual }) => wire::TransferAnswer {
                outcome: Transferred::LogNotFlushed.into(),
                expected: expected.map(from_log_id),
                actual: actual.map(from_log_id),
                ..Default::default()
            },
        }),
        Answer::Snapshot(newest) => {
            reply::Answer::Snapshot(wire::SnapshotAnswer { newest: newest.map(from_vote) })
        }
    }
}

/// Converts an answer back; `None` if something is missing.
pub(crate) fn to_answer(answer: reply::Answer) -> Option<Answer> {
    use wire::{append_answer::Outcome as Appended, transfer_answer::Outcome as Transferred};
    Some(match answer {
        reply::Answer::Append(append) => Answer::Append(match append.outcome() {
            Appended::NotDurable => None,
            Appended::All => Some(AppendEntriesResponse::Success),
            Appended::UpTo => Some(AppendEntriesResponse::PartialSuccess(append.log_id.map(to_log_id))),
            Appended::Conflict => Some(AppendEntriesResponse::Conflict),
            Appended::HigherVote => Some(AppendEntriesResponse::HigherVote(to_vote(append.vote?))),
        }),
        reply::Answer::Vote(vote) => {
            Answer::Vote(VoteResponse::new(to_vote(vote.vote?), vote.last.map(to_log_id), vote.granted))
        }
        reply::Answer::Transfer(transfer) => Answer::Transfer(match transfer.outcome() {
            Transferred::Accepted => Ok(()),
            Transferred::VoteChanged => Err(TransferLeaderError::VoteChanged {
                expected: to_vote(transfer.expected_vote?),
                actual: to_vote(transfer.actual_vote?),
            }),
            Transferred::LogNotFlushed => Err(TransferLeaderError::LogNotFlushed {
                expected: transfer.expected.map(to_log_id),
                actual: transfer.actual.map(to_log_id),
            }),
        }),
        reply::Answer::Snapshot(snapshot) => Answer::Snapshot(snapshot.newest.map(to_vote)),
    })
}

fn from_vote_request(request: &VoteRequest<Group>) -> wire::VoteRequest {
    wire::VoteRequest {
        vote: Some(from_vote(request.vote)),
        last: request.last_log_id.map(from_log_id),
        transfer: request.leadership_transfer,
    }
}

fn to_vote_request(request: wire::VoteRequest) -> Option<VoteRequest<Group>> {
    let mut converted = VoteRequest::new(to_vote(request.vote?), request.last.map(to_log_id));
    converted.leadership_transfer = request.transfer;
    Some(converted)
}

fn from_log_id(id: LogId) -> wire::LogId {
    wire::LogId { term: id.leader_id.term, index: id.index }
}

fn to_log_id(id: wire::LogId) -> LogId {
    log_id(id.term, id.index)
}

fn from_vote(vote: Vote) -> wire::Vote {
    wire::Vote { term: vote.leader_id.term, member: vote.leader_id.voted_for, granted: vote.committed }
}

fn to_vote(vote: wire::Vote) -> Vote {
    if vote.granted { Vote::new_committed(vote.term, vote.member) } else { Vote::new(vote.term, vote.member) }
}
