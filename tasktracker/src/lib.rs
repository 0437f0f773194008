//! The TaskTracker daemon: slots, task processes, shuffle server.
//!
//! Empty until the runtime fills it.
