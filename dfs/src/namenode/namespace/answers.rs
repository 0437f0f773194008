//! Answers kept so that a repeated request is recognised. Bounded: the oldest goes first.

use crate::{ids::RequestId, namenode::op::Outcome};
use std::collections::{BTreeMap, VecDeque};

/// Requests answered lately.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    known: BTreeMap<RequestId, Outcome>,
    order: VecDeque<RequestId>,
    limit: usize,
}

/// How many are kept when nobody says otherwise.
const LIMIT: usize = 100_000;

impl Default for Answers {
    fn default() -> Self {
        Self { known: BTreeMap::new(), order: VecDeque::new(), limit: LIMIT }
    }
}

/// Two are equal when they know the same: the limit is a setting, not knowledge.
impl PartialEq for Answers {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order && self.known == other.known
    }
}

impl Answers {
    /// Keeps at most `limit` from now on.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.trim();
    }

    /// The answer given to this request.
    pub(super) fn get(&self, request: RequestId) -> Option<&Outcome> {
        self.known.get(&request)
    }

    /// Remembers an answer.
    pub(super) fn insert(&mut self, request: RequestId, outcome: Outcome) {
        if self.known.insert(request, outcome).is_none() {
            self.order.push_back(request);
        }
        self.trim();
    }

    /// All, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &Outcome)> {
        self.order.iter().filter_map(|request| Some((*request, self.known.get(request)?)))
    }

    fn trim(&mut self) {
        while self.order.len() > self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let mut answers = Answers::default();
        answers.set_limit(2);
        for id in 1..=3 {
            answers.insert(RequestId(id), Outcome::Existed(id == 1));
        }
        assert_eq!(answers.get(RequestId(1)), None);
        assert_eq!(answers.get(RequestId(3)), Some(&Outcome::Existed(false)));
        assert_eq!(answers.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [2, 3]);
    }
}
