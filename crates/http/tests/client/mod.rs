//! The client with servers that do what no specification says.

mod answers;
mod credentials;
mod redirects;
mod retries;
pub(crate) mod server;
mod sessions;
