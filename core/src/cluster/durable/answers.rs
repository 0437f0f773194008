//! The answers to requests of users, so that a repeated request gets the first answer and has no
//! second effect. A client repeats a request if it got no answer, for example because the
//! JobTracker was restarted.
//!
//! Submissions are not here: the job remembers its request.

use crate::{
    ids::RequestId,
    time::{Span, Time},
};
use std::collections::{BTreeMap, VecDeque};

/// How long an answer is kept. Clients repeat a request for a much shorter time.
const KEPT_FOR: Span = Span::secs(600);
/// Maximum number of answers. The oldest are dropped first.
const ANSWERS_MAX: usize = 10_000;

/// The answers of the last ten minutes. They depend only on the facts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answers {
    by_request: BTreeMap<RequestId, Answer>,
    /// The same requests, in the order of their answers.
    order: VecDeque<RequestId>,
}

#[derive(Debug, Clone, PartialEq)]
struct Answer {
    at: Time,
    refusal: Option<String>,
}

impl Answers {
    /// Adds an answer, and drops those that are too old or too many.
    pub fn add(&mut self, at: Time, request: RequestId, refusal: Option<String>) {
        while let Some(oldest) = self.order.front()
            && (self.order.len() >= ANSWERS_MAX || self.find(at, *oldest).is_none())
        {
            self.by_request.remove(oldest);
            self.order.pop_front();
        }
        if self.by_request.insert(request, Answer { at, refusal }).is_none() {
            self.order.push_back(request);
        }
    }

    /// Returns the answer to a request: the reason of the refusal, or `None` if the request was
    /// accepted.
    pub fn find(&self, now: Time, request: RequestId) -> Option<Option<&str>> {
        let answer = self.by_request.get(&request).filter(|answer| now.since(answer.at) <= KEPT_FOR)?;
        Some(answer.refusal.as_deref())
    }

    /// Returns whether the answer that was given to the request at this time has not been dropped.
    pub fn contains(&self, at: Time, request: RequestId) -> bool {
        self.by_request.get(&request).is_some_and(|answer| answer.at == at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_dropped_after_ten_minutes_or_if_there_are_too_many() {
        let mut answers = Answers::default();
        let (start, end) = (Time(7), Time(7) + KEPT_FOR);
        answers.add(start, RequestId(0), Some("no".into()));
        answers.add(start, RequestId(1), None);
        assert_eq!(answers.find(end, RequestId(0)), Some(Some("no")));
        assert_eq!(answers.find(end, RequestId(1)), Some(None));
        assert_eq!(answers.find(end, RequestId(2)), None);
        let late = end + Span(1);
        assert_eq!(answers.find(late, RequestId(0)), None, "it is too old");
        assert!(answers.contains(start, RequestId(0)));
        answers.add(late, RequestId(2), None);
        assert!(!answers.contains(start, RequestId(0)) && !answers.contains(start, RequestId(1)));
        for number in 3..=ANSWERS_MAX as u128 + 2 {
            answers.add(late, RequestId(number), None);
        }
        assert_eq!((answers.by_request.len(), answers.order.len()), (ANSWERS_MAX, ANSWERS_MAX));
        assert_eq!(answers.find(late, RequestId(2)), None, "there are too many newer ones");
        assert_eq!(answers.find(late, RequestId(3)), Some(None));
    }
}
