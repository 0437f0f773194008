//! What a job author uses (`Mapper`, `Reducer`, `Job`), and the task engine.
//!
//! Empty until the runtime fills it.
