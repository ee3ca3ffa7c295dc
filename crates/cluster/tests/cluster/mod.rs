//! Nodes with a list of each other, in this process, and what their clients and others see.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod cancels;
mod node;
mod numbers;
mod table;
mod threats;
