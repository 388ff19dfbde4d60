//! Tests without a process of their own, in one program: each would compile the engine once more.

mod cases;
mod clusters;
mod costs;
mod history;
mod mode;
mod twins;
mod upstream;
