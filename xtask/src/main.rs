//! Own commands.
fn main() {}
