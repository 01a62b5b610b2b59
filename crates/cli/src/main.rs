//! The `hanare` command.
fn main() {}
