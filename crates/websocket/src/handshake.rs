//! The server's part of the handshake: what is asked of a request before it becomes a connection.

mod head;
mod hosts;
mod options;
mod refusal;
mod upgrade;

pub use self::head::RequestHead;
pub use self::options::UpgradeOptions;
pub use self::refusal::Refusal;
pub use self::upgrade::{Upgrading, upgrade};
