//! The tests of HTTP in each of its bindings.

mod acp;
mod auth;
mod client;
mod contract;
mod legacy_sse;
mod refusals;
mod response_head;
mod stateless;
mod streamable;
mod traces;
