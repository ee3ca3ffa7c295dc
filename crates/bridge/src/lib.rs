//! A bridge between two connections of Rescind, of any transports.
//!
//! Messages other than cancels pass unchanged, in both directions: methods, params and results byte for byte, errors with
//! their code, message and data, notifications in their order. Each connection has request ids of its own. A request that is
//! passed on is a child of the request received: a cancel goes on at once, under the other connection's id.
//!
//! [`Bridge::between`] joins two connections. [`Bridge::serve`] opens one upstream session for each session that a
//! server accepts.
//!
//! ```
//! use rescind_bridge::{Bridge, Upstream};
//! use rescind_core::{CallContext, Peer, Router, dialect, memory_pair};
//! use serde_json::{Value, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (client, downstream) = memory_pair();
//! let (upstream, server) = memory_pair();
//! let echo = Router::new().method("echo", async |_: CallContext, words: Value| Ok(words));
//! let _server = Peer::builder(dialect::ACP).serve(echo).attach(server)?;
//!
//! let bridge = Bridge::new(dialect::ACP)?;
//! bridge.between(downstream, Upstream::new("the echo server", upstream)).await?;
//!
//! let peer = Peer::builder(dialect::ACP).attach(client)?;
//! let answer: Value = peer.call("echo", &json!({"words": 2})).await?;
//! assert_eq!(answer, json!({"words": 2}));
//! # Ok(())
//! # }
//! ```
//!
//! # What a bridge changes
//! - `params: null` passes as no params, and a batch passes as single messages.
//! - A raw newline in a body is removed where the other transport delimits frames by newlines.
//! - An error keeps its code, message and data. Other members of an error are left out.
//! - An error that answers a cancelled request passes if its code says that the request was cancelled. Any other error
//!   becomes the dialect's cancelled answer.
//! - The reason of a cancel is not passed on.
//!
//! # Order
//! Notifications keep their order among themselves, and each passes before the requests and answers that follow it.
//! Requests keep their order where the runtime runs tasks in the order in which they were started, as the
//! single-threaded runtime of tokio does.

mod bridge;
mod passing;
mod relay_dialect;
mod session;
mod shown_tasks;
mod subscriptions;
mod tasks;

pub use bridge::Bridge;
pub use relay_dialect::NotBridged;
pub use session::Upstream;
