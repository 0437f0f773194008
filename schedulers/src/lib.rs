//! Every scheduling policy and estimator. Pure.
//!
//! Empty until the runtime fills it.
