//! What a wire gives: messages, and what happened to their exchanges.

use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::TransportError;
use crate::framing::BadFrame;
use crate::id::{ExchangeId, Principal};

/// The half that frames come in by.
pub trait Receiver: Send {
    /// The next event. `None`: the connection is closed. After `None` or an error without an exchange it is not
    /// polled again.
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>>;
}

/// What a wire tells.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransportEvent {
    /// A whole frame.
    Message(Inbound),
    /// Something that is no frame. The connection goes on.
    Rejected {
        /// Where it came on.
        exchange: ExchangeId,
        /// What was wrong.
        why: BadFrame,
    },
    /// No more input; output is still open.
    HalfClosed,
    /// The peer gave up an exchange it had opened.
    ExchangeClosed {
        /// Which.
        exchange: ExchangeId,
    },
    /// The peer took a lost exchange up again.
    ExchangeResumed {
        /// Which.
        exchange: ExchangeId,
    },
    /// An exchange we opened failed.
    ExchangeFailed {
        /// Which.
        exchange: ExchangeId,
        /// The request had reached the wire.
        sent: bool,
        /// What happened.
        error: TransportError,
    },
}

/// A frame that came in.
#[derive(Debug)]
pub struct Inbound {
    /// The message, without framing.
    pub body: Bytes,
    /// What it came on.
    pub exchange: ExchangeId,
    /// Who sent it, where messages of one connection can differ.
    pub principal: Option<Principal>,
    /// Where it came from, where messages of one connection can differ.
    pub address: Option<IpAddr>,
}

impl Inbound {
    /// A frame of a byte stream.
    #[must_use]
    pub const fn new(body: Bytes) -> Self {
        Self { body, exchange: ExchangeId::NONE, principal: None, address: None }
    }
}
