//! Which map outputs are here, and the tokens that open them.

use crate::{
    disks::{Disks, Found},
    ids::{Attempt, Job},
};
use parking_lot::RwLock;
use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
};

/// What the shuffle server serves.
#[derive(Debug, Default)]
pub(crate) struct Held(RwLock<Inner>);

#[derive(Debug, Default)]
struct Inner {
    outputs: HashMap<Attempt, PathBuf>,
    tokens: HashMap<Job, Vec<u8>>,
}

impl Held {
    /// With what an earlier start left.
    pub(crate) fn new(found: Found) -> Self {
        let (outputs, tokens) = (found.outputs.into_iter().collect(), found.tokens.into_iter().collect());
        Self(RwLock::new(Inner { outputs, tokens }))
    }

    /// All of them.
    pub(crate) fn attempts(&self) -> BTreeSet<Attempt> {
        self.0.read().outputs.keys().copied().collect()
    }

    /// Where an attempt's output is.
    pub(crate) fn output(&self, attempt: Attempt) -> Option<PathBuf> {
        self.0.read().outputs.get(&attempt).cloned()
    }

    /// One more.
    pub(crate) fn add(&self, attempt: Attempt, path: PathBuf) {
        self.0.write().outputs.insert(attempt, path);
    }

    /// Learns a job's token, and keeps it on disk for the next start.
    pub(crate) fn learn_token(&self, job: Job, token: &[u8], disks: &Disks) {
        if self.0.read().tokens.get(&job).is_some_and(|known| known == token) {
            return;
        }
        self.0.write().tokens.insert(job, token.to_vec());
        if let Err(error) = disks.keep_token(job, token) {
            tracing::warn!(%job, %error, "cannot keep its token: a restart of this tracker loses its output");
        }
    }

    /// Whether this token opens the job's output. Takes as long for a wrong one as for the right one.
    pub(crate) fn opens(&self, job: Job, token: &[u8]) -> bool {
        let inner = self.0.read();
        let Some(known) = inner.tokens.get(&job).filter(|known| !known.is_empty()) else { return false };
        let differs = known.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b));
        std::hint::black_box(differs) == 0 && known.len() == token.len()
    }

    /// The job is over.
    pub(crate) fn forget(&self, job: Job) {
        let mut inner = self.0.write();
        inner.outputs.retain(|attempt, _| attempt.job != job);
        inner.tokens.remove(&job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_of_that_job_opens() {
        let found =
            Found { tokens: [(Job(1), b"secret".to_vec()), (Job(2), Vec::new())].into(), ..Found::default() };
        let held = Held::new(found);
        assert!(held.opens(Job(1), b"secret"));
        for wrong in [&b"secres"[..], b"secre", b"secrets", b""] {
            assert!(!held.opens(Job(1), wrong), "{wrong:?}");
        }
        assert!(!held.opens(Job(2), b""));
        assert!(!held.opens(Job(3), b"secret"));
    }
}
