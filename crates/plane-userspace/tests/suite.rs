//! Tests without a process of their own, in one program: each would compile the engine once more.

mod bind;
mod cases;
mod clusters;
mod costs;
mod held;
mod history;
mod mode;
mod twins;
