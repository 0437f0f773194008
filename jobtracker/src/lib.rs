//! The JobTracker daemon: driver, gRPC, journal, web page.
//!
//! Empty until the runtime fills it.
