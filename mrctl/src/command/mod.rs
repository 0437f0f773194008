//! One file a command, outside `fs` and `bench`.

pub(crate) mod chaos;
pub(crate) mod demo;
pub(crate) mod down;
pub(crate) mod drain;
pub(crate) mod nodes;
pub(crate) mod up;
