//! The server's part of the handshake: the checks of a request before it becomes a connection.

mod options;
mod refusal;
mod upgrade;

pub use self::options::UpgradeOptions;
pub use self::refusal::Refusal;
pub(crate) use self::upgrade::upgrade_within;
pub use self::upgrade::{Upgrading, upgrade};
