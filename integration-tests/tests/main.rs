//! The tests of whole programs and connections that need no list of their own.

mod acp_cascade;
mod bad_input;
mod browser;
mod hosts;
mod language_server;
mod limits;
mod operator_stop;
mod third_party;
