//! Jobs: submitting, following, looking at and stopping them.

pub(crate) mod follow;
pub(crate) mod look;
pub(crate) mod model;
pub(crate) mod preempt;
mod sample;
pub(crate) mod scheduling;
pub(crate) mod submit;
mod tera;
pub(crate) mod wire;
