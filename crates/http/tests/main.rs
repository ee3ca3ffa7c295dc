//! The tests of HTTP in each of its bindings.

mod acp;
mod auth;
mod client;
mod contract;
mod heads;
mod legacy_sse;
mod refusals;
mod stateless;
mod streamable;
