//! Commands that submit, follow, show, preempt and kill jobs.

pub(crate) mod inspect;
pub(crate) mod preempt;
mod program;
pub(crate) mod resume;
pub(crate) mod statistics;
pub(crate) mod submit;
pub(crate) mod tasks;
