//! What transports over a network share: the checks of `Host` and `Origin`, the auth hook, and TLS.
//!
//! WebSocket, HTTP and the live page use it. Nothing here listens or connects: a transport gives the head of a request
//! or an open stream, and gets a decision or a stream with TLS.

mod auth;
mod origin;
#[cfg(feature = "rustls")]
mod tls;

pub use auth::{
    AuthHook, AuthRefusal, AuthRequest, ClientCertificates, Credential, PeerAddress, PeerCertificates,
};
pub use origin::{HostPolicy, HostRefusal, InvalidAllowEntry, OriginPolicy, OriginRefused, RequestHost};
#[cfg(feature = "rustls")]
pub use tls::{ClientTls, Pem, ServerTls, TlsError};
/// The version of rustls whose configurations [`ServerTls`] and [`ClientTls`] take.
#[cfg(feature = "rustls")]
#[doc(no_inline)]
pub use tokio_rustls::rustls;
