//! Histories of clients, and the check that they are linearizable.
//!
//! The check knows nothing of the NameNode: a folder is a name with a mode.

use std::{collections::BTreeSet, time::Duration};

/// Number of names that clients use.
pub(crate) const NAMES: usize = 4;

/// The modes of the folders that exist.
type Model = [Option<u32>; NAMES];

/// A call of a client about one or two names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Mkdir(usize, u32),
    SetMode(usize, u32),
    Delete(usize),
    Rename(usize, usize),
    Stat(usize),
}

/// The answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Exists,
    NotFound,
    /// Of a stat.
    Mode(u32),
}

/// A call with its answer, and the times between which it has taken effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recorded {
    #[expect(dead_code, reason = "it is printed")]
    pub(crate) client: u64,
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
    pub(crate) call: Call,
    pub(crate) answer: Answer,
}

/// Returns the answer to a call, and changes the model.
fn execute(model: &mut Model, call: Call) -> Answer {
    match call {
        Call::Mkdir(at, mode) => match model[at].replace(mode) {
            None => Answer::Done,
            before @ Some(_) => {
                model[at] = before;
                Answer::Exists
            }
        },
        Call::SetMode(at, mode) => match &mut model[at] {
            Some(current) => {
                *current = mode;
                Answer::Done
            }
            None => Answer::NotFound,
        },
        Call::Delete(at) => model[at].take().map_or(Answer::NotFound, |_| Answer::Done),
        Call::Rename(from, to) => match (model[from], model[to]) {
            (None, _) => Answer::NotFound,
            (Some(_), Some(_)) => Answer::Exists,
            (Some(mode), None) => {
                (model[from], model[to]) = (None, Some(mode));
                Answer::Done
            }
        },
        Call::Stat(at) => model[at].map_or(Answer::NotFound, Answer::Mode),
    }
}

/// Returns an error unless there is an order of the calls that explains all answers, in which each
/// call takes effect between its begin and its end.
pub(crate) fn check_linearizable(mut calls: Vec<Recorded>) -> Result<(), String> {
    calls.sort_by_key(|call| call.begin);
    // Which calls have taken effect: all before the number, and those of the bits after it.
    type Done = (usize, Vec<bool>);
    let mut todo: Vec<(Done, Model)> = vec![((0, Vec::new()), Model::default())];
    let mut seen: BTreeSet<(Done, Model)> = BTreeSet::new();
    let mut longest = 0;
    while let Some(((first, bits), model)) = todo.pop() {
        if first == calls.len() {
            return Ok(());
        }
        longest = longest.max(first);
        let is_open = |at: usize| bits.get(at - first).is_none_or(|done| !done);
        // Only calls that have begun before the first end can be the next one.
        let mut first_end = Duration::MAX;
        let mut next = Vec::new();
        for (at, call) in calls.iter().enumerate().skip(first) {
            if call.begin > first_end {
                break;
            }
            if is_open(at) {
                first_end = first_end.min(call.end);
                next.push(at);
            }
        }
        for at in next.into_iter().filter(|at| calls[*at].begin <= first_end) {
            let mut after = model;
            if execute(&mut after, calls[at].call) != calls[at].answer {
                continue;
            }
            let mut bits = bits.clone();
            bits.resize(bits.len().max(at - first + 1), false);
            bits[at - first] = true;
            let done = bits.iter().take_while(|done| **done).count();
            bits.drain(..done);
            let state = ((first + done, bits), after);
            if seen.insert(state.clone()) {
                todo.push(state);
            }
        }
    }
    let around = &calls[longest.saturating_sub(8)..calls.len().min(longest + 8)];
    let lines: Vec<String> = around.iter().map(|call| format!("{call:?}")).collect();
    Err(format!("no order of the calls explains their answers, near:\n{}", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(begin: u64, end: u64, call: Call, answer: Answer) -> Recorded {
        let at = Duration::from_millis;
        Recorded { client: 1, begin: at(begin), end: at(end), call, answer }
    }

    #[test]
    fn concurrent_calls_have_any_order_and_others_only_theirs() {
        let made = recorded(0, 10, Call::Mkdir(0, 1), Answer::Done);
        check_linearizable(vec![made, recorded(5, 6, Call::Stat(0), Answer::NotFound)]).unwrap();
        check_linearizable(vec![made, recorded(5, 6, Call::Stat(0), Answer::Mode(1))]).unwrap();
        check_linearizable(vec![made, recorded(11, 12, Call::Stat(0), Answer::NotFound)]).unwrap_err();
    }

    #[test]
    fn a_change_that_is_seen_once_does_not_disappear() {
        let calls = vec![
            recorded(0, 100, Call::Mkdir(0, 1), Answer::Done),
            recorded(1, 2, Call::Stat(0), Answer::Mode(1)),
            recorded(3, 4, Call::Stat(0), Answer::NotFound),
        ];
        check_linearizable(calls).unwrap_err();
    }

    #[test]
    fn a_request_that_is_executed_twice_is_found() {
        let calls = vec![
            recorded(0, 1, Call::Mkdir(0, 1), Answer::Done),
            recorded(2, 3, Call::Rename(0, 1), Answer::Done),
            // The first execution of this call was answered too late, the second one was refused.
            recorded(4, 9, Call::Rename(1, 2), Answer::NotFound),
            recorded(10, 11, Call::Stat(2), Answer::Mode(1)),
        ];
        check_linearizable(calls).unwrap_err();
    }
}
