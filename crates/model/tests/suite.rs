//! Tests of decisions, in one program: each would compile the model's cases once more.

mod cases;
mod clusters;
mod properties;
mod reasons;
