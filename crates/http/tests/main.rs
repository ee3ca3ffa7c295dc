//! The tests of HTTP in its three bindings.

mod acp;
mod auth;
mod client;
mod contract;
mod refusals;
mod response_head;
mod stateless;
mod streamable;
mod traces;
