//! mrctl
fn main() {}
