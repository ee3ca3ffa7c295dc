//! The traits of a transport: two halves that move whole frames and report what happened to them.
//!
//! A transport knows neither machine nor dialect, and it does not parse bodies. HTTP reads the few members on which its
//! headers and statuses depend; the dialect hands it their names as data. Polling a [`Receiver`] or a [`Sender`] and
//! then dropping the caller loses nothing: no future holds a half-read frame, and [`Sender::start_send`] takes a whole
//! frame or nothing.

#[cfg(feature = "tokio")]
mod auth;
#[cfg(feature = "tokio")]
mod byte_stream;
mod error;
mod framed;
#[cfg(feature = "tokio")]
mod frames;
#[cfg(feature = "http")]
mod http_head;
mod link;
#[cfg(feature = "tokio")]
mod memory;
mod origin;
#[cfg(feature = "tokio")]
mod partial_frame;
mod receiver;
#[cfg(feature = "tokio")]
mod send_buffer;
mod sender;
#[cfg(feature = "tokio")]
mod write_queue;

#[cfg(feature = "tokio")]
pub use auth::{AuthHook, AuthRefusal, AuthRequest, ClientCertificates, Credential, PeerCertificates};
#[cfg(feature = "tokio")]
pub use byte_stream::ByteStream;
pub use error::{TransportError, TransportErrorKind};
#[cfg(feature = "tokio")]
pub use frames::FrameStream;
pub use link::{Capabilities, Link, PeerInfo};
#[cfg(feature = "tokio")]
pub use memory::{MemoryListener, MemoryTransport, memory_listener, memory_pair};
pub use origin::{HostPolicy, HostRefusal, InvalidAllowEntry, OriginPolicy, OriginRefused, RequestHost};
#[cfg(feature = "tokio")]
pub use partial_frame::{MemoryFull, PartialFrame};
pub use receiver::{Inbound, Receiver, TransportEvent};
pub use sender::{
    CloseReason, ExchangeEnd, FrameInfo, FrameKind, Lane, Outbound, RejectReason, Sender, Unsupported,
};
#[cfg(feature = "tokio")]
pub use write_queue::WriteQueue;

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::DerefMut;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::clients::Clients;

/// A boxed future that can cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens one connection.
pub trait Transport: Send + 'static {
    /// The name of the transport in reports: `stdio`, `websocket`, ...
    fn name(&self) -> &'static str;

    /// Opens the connection.
    ///
    /// # Errors
    /// What could not be opened, and why.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; nothing stays open.
    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>>;
}

/// Accepts connections.
pub trait Listener: Send + 'static {
    /// Polls for the next connection. `Err`: one connection failed, and the listener continues. `None`: the listener has
    /// ended.
    fn poll_accept(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Link, TransportError>>>;

    /// Sets the clients of the server that accepts here. It is called once, before the first poll. A transport that
    /// limits what happens before a connection is accepted (sockets, handshakes) counts it for these clients, so that
    /// one client cannot use all of it. Default: ignored. A listener that wraps another passes the call on.
    fn share_among(self: Pin<&mut Self>, _clients: &Clients) {}

    /// Refuses new connections from now on. Returns whether open connections need the listener: the server then keeps
    /// it until they have ended, else it drops it at once. It is called once, when the server drains; the listener is
    /// not polled after it. Default: `false`. A listener that wraps another passes the call on.
    #[must_use]
    fn stop_accepting(self: Pin<&mut Self>) -> bool {
        false
    }

    /// Completes when the listener was dropped and what it still had to send is sent, or dropped after a time limit. A program waits for it
    /// before it exits, so that its last answers are not lost. Default: at once. A listener that wraps another passes
    /// the call on.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn finished(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The address on which it listens, with the actual port.
    fn endpoint(&self) -> Endpoint;

    /// Waits for the next connection. `Err`: one connection failed, and the listener continues. `None`: the listener has
    /// ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection.
    fn accept(&mut self) -> impl Future<Output = Option<Result<Link, TransportError>>> + Send
    where
        Self: Sized + Unpin,
    {
        poll_fn(|cx| Pin::new(&mut *self).poll_accept(cx))
    }
}

impl<P> Listener for Pin<P>
where
    P: DerefMut<Target: Listener> + Unpin + Send + 'static,
{
    fn poll_accept(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Link, TransportError>>> {
        self.get_mut().as_mut().poll_accept(cx)
    }

    fn share_among(self: Pin<&mut Self>, clients: &Clients) {
        self.get_mut().as_mut().share_among(clients);
    }

    fn stop_accepting(self: Pin<&mut Self>) -> bool {
        self.get_mut().as_mut().stop_accepting()
    }

    fn finished(&self) -> BoxFuture<'static, ()> {
        self.as_ref().get_ref().finished()
    }

    fn endpoint(&self) -> Endpoint {
        self.as_ref().endpoint()
    }
}

/// The address of a listener, as the command line writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(pub String);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
