//! Judges programs that nobody here wrote by what they do with cancels. [`check`] plays against a server or an agent,
//! [`check_client`] is the server of a client. Both return a [`Report`](rescind_testkit::Report).

mod client;
mod peer;

pub use client::{
    ClientEnd, ClientSettings, ClientSource, Instructions, SKIPPED, StartedClient, check_client,
};
#[doc(hidden)]
pub use peer::check_with;
pub use peer::{CONTRADICTS, CheckSettings, PeerSource, Started, Unusable, check, contradictions};
