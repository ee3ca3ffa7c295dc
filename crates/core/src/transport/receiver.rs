//! The receiving half of a transport: messages, and what happened to their exchanges.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::TransportError;
use crate::framing::BadFrame;
use crate::id::{ExchangeId, Principal};
use crate::message::Deviation;
use crate::trace_context::TraceContext;

/// The half that receives frames.
pub trait Receiver: Send {
    /// Polls for the next event. `None`: the connection is closed. It is not polled again after `None`, nor after an
    /// error without an exchange.
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>>;
}

/// An event of a transport.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransportEvent {
    /// A whole frame.
    Message(Inbound),
    /// Input that is not a frame. The connection continues.
    Rejected {
        /// The exchange on which it arrived.
        exchange: ExchangeId,
        /// What was wrong.
        why: BadFrame,
        /// The beginning of the input, if it is known. At most some hundred bytes of it are looked at.
        head: Bytes,
    },
    /// Input against the protocol that was dropped or changed, and that needs no answer.
    Deviation {
        /// What the peer did.
        deviation: Deviation,
        /// What it sent.
        sent: Bytes,
    },
    /// The end of input. Output is still open.
    HalfClosed,
    /// The peer closed an exchange that it had opened.
    ExchangeClosed {
        /// Which.
        exchange: ExchangeId,
    },
    /// The peer resumed an exchange that it had lost.
    ExchangeResumed {
        /// Which.
        exchange: ExchangeId,
    },
    /// An exchange that this side opened failed.
    ExchangeFailed {
        /// Which.
        exchange: ExchangeId,
        /// The request had been sent.
        sent: bool,
        /// Why it failed.
        error: TransportError,
    },
}

/// A received frame.
#[derive(Debug)]
pub struct Inbound {
    /// The message, without framing.
    pub body: Bytes,
    /// The exchange on which it arrived.
    pub exchange: ExchangeId,
    /// Who sent it, on transports where one connection carries several clients.
    pub principal: Option<Principal>,
    /// The address of the sender, on transports where one connection carries several clients.
    pub address: Option<IpAddr>,
    /// The trace that the request belongs to, on transports with headers for each message.
    pub trace: Option<Arc<TraceContext>>,
}

impl Inbound {
    /// A frame of a byte stream.
    #[must_use]
    pub const fn new(body: Bytes) -> Self {
        Self { body, exchange: ExchangeId::NONE, principal: None, address: None, trace: None }
    }
}
