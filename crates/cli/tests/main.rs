//! The program `rescind`, run as its users run it: one binary, because nearly all of these tests wait for processes and for
//! time limits, and so they wait together.

mod bridge;
#[cfg(unix)]
mod common;
mod program;
