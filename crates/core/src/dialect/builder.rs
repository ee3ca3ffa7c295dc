//! Dialects of your own, and the built-in ones with a rule changed.

use std::sync::Arc;
use std::time::Duration;

use crate::dialect::jsonrpc::{CancelName, JsonRpc};
use crate::dialect::rules::{
    AckStyle, AnswerAfterCancel, BASE, CancelFrom, CancelledError, CancelledReply, CapabilityGate, Codec,
    DecidedBy, EarlyCancel, LostStream, Refusal, RefusalStyle, Rules, ServerLifecycle, SettledMemory,
    ShownMembers,
};
use crate::dialect::{CodecHandle, Dialect, ReplyTo};
use crate::framing::Framing;
use crate::message::{BadMessage, ErrorCode, Incoming, IncomingRequest};

/// Builds a [`Dialect`]. It starts as plain JSON-RPC 2.0 with `$/cancelRequest {id}`, without a handshake and with
/// newline framing. A cancelled request is answered with -32800.
#[derive(Clone, Debug)]
#[must_use]
pub struct DialectBuilder {
    rules: Rules,
    codec: CodecHandle,
}

impl Dialect {
    /// A dialect of your own.
    ///
    /// ```
    /// use rescind_core::dialect::{CancelName, Dialect, JsonRpc};
    ///
    /// let dialect = Dialect::builder("house")
    ///     .json_rpc(JsonRpc::new(CancelName { method: "stop", key: "call" }))
    ///     .handshake("hello")
    ///     .build();
    /// assert_eq!(dialect.name(), "house");
    /// ```
    pub fn builder(name: &'static str) -> DialectBuilder {
        let codec = JsonRpc::new(CancelName { method: "$/cancelRequest", key: "id" });
        DialectBuilder { rules: Rules { name, ..BASE }, codec: CodecHandle::Shared(Arc::new(codec)) }
    }

    /// A copy of this dialect, to be changed.
    ///
    /// ```
    /// use rescind_core::dialect::{AnswerAfterCancel, CancelFrom, MCP};
    ///
    /// // As in GetMCP: only clients cancel, and a late result is still sent.
    /// let getmcp = MCP
    ///     .to_builder()
    ///     .cancel_from(CancelFrom::Client)
    ///     .answer_after_cancel(AnswerAfterCancel::ResultIfFinished)
    ///     .build();
    /// assert_eq!(getmcp.rules().cancel_from, CancelFrom::Client);
    /// ```
    pub fn to_builder(&self) -> DialectBuilder {
        DialectBuilder { rules: self.rules().clone(), codec: self.codec_handle() }
    }
}

macro_rules! rules_settable {
    ($($(#[$doc:meta])* $name:ident: $kind:ty => $($field:ident).+ = $value:expr;)*) => {
        impl DialectBuilder {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $name: $kind) -> Self {
                    self.$($field).+ = $value;
                    self
                }
            )*
        }
    };
}

rules_settable! {
    /// [`Rules::name`].
    name: &'static str => rules.name = name;
    /// [`Rules::handshake`]: the request that opens a session.
    handshake: &'static str => rules.handshake = Some(handshake);
    /// [`Rules::decided`].
    decided: DecidedBy => rules.decided = decided;
    /// [`Rules::peer_cancelled`].
    peer_cancelled: CancelledReply => rules.peer_cancelled = peer_cancelled;
    /// [`Rules::local_cancelled`].
    local_cancelled: CancelledError => rules.local_cancelled = local_cancelled;
    /// [`Rules::server_cancelled`].
    server_cancelled: CancelledError => rules.server_cancelled = Some(server_cancelled);
    /// [`Rules::lifecycle`].
    lifecycle: ServerLifecycle => rules.lifecycle = Some(lifecycle);
    /// [`Rules::errors_after_cancel`].
    errors_after_cancel: &'static [ErrorCode] => rules.errors_after_cancel = errors_after_cancel;
    /// [`Rules::ack`].
    ack: AckStyle => rules.ack = ack;
    /// [`Rules::gate`].
    gate: CapabilityGate => rules.gate = gate;
    /// [`Rules::uncancellable`].
    uncancellable: &'static [&'static str] => rules.uncancellable = uncancellable;
    /// [`Rules::uncancellable_param`].
    uncancellable_param: &'static str => rules.uncancellable_param = Some(uncancellable_param);
    /// [`Rules::peer_may_end`].
    peer_may_end: &'static [&'static str] => rules.peer_may_end = peer_may_end;
    /// [`Rules::graceful`]. Each text must be JSON.
    graceful: &'static [(&'static str, &'static str)] => rules.graceful = graceful;
    /// [`Rules::half_close_at_most`].
    half_close_at_most: Duration => rules.half_close_at_most = Some(half_close_at_most);
    /// [`Rules::call_timeout`].
    call_timeout: Duration => rules.call_timeout = Some(call_timeout);
    /// [`Rules::max_call_timeout`].
    max_call_timeout: Duration => rules.max_call_timeout = Some(max_call_timeout);
    /// [`Rules::called_off`]. Each text must be JSON.
    called_off: &'static [(&'static str, &'static str)] => rules.called_off = called_off;
    /// [`Rules::reserved_prefix`].
    reserved_prefix: &'static str => rules.reserved_prefix = Some(reserved_prefix);
    /// [`Rules::cancel_from`].
    cancel_from: CancelFrom => rules.cancel_from = cancel_from;
    /// [`Rules::answer_after_cancel`].
    answer_after_cancel: AnswerAfterCancel => rules.answer_after_cancel = answer_after_cancel;
    /// [`Rules::early`].
    early: EarlyCancel => rules.early = early;
    /// [`Rules::lost_stream`].
    lost_stream: LostStream => rules.lost_stream = lost_stream;
    /// [`Rules::settled_memory`].
    settled_memory: SettledMemory => rules.settled_memory = settled_memory;
    /// [`Rules::refusal`].
    refusal: RefusalStyle => rules.refusal = refusal;
    /// [`Rules::subprotocols`].
    subprotocols: &'static [&'static str] => rules.subprotocols = subprotocols;
    /// [`Rules::batch_revision`].
    batch_revision: &'static str => rules.batch_revision = Some(batch_revision);
    /// [`Rules::shown`].
    shown: ShownMembers => rules.shown = shown;
    /// [`Rules::framing`].
    framing: Framing => rules.framing = framing;
    /// The envelope is JSON-RPC, with these settings.
    json_rpc: JsonRpc => codec = CodecHandle::Shared(Arc::new(json_rpc));
}

impl DialectBuilder {
    /// [`Rules::session_required`]: nothing is served before the handshake.
    pub fn session_required(mut self) -> Self {
        self.rules.session_required = true;
        self
    }

    /// [`Rules::in_order`]: a handler starts after the notifications before its request are handled.
    pub fn in_order(mut self) -> Self {
        self.rules.in_order = true;
        self
    }

    /// Makes any other change of the rules, such as the removal of one.
    pub fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    /// The envelope is not JSON-RPC: this codec reads and writes it.
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.codec = CodecHandle::Shared(Arc::new(codec));
        self
    }

    /// The dialect.
    #[must_use]
    pub fn build(self) -> Dialect {
        let codec = match self.codec.as_codec().as_json_rpc() {
            Some(json_rpc) => CodecHandle::Shared(Arc::new(json_rpc.clone().following(&self.rules))),
            None => self.codec,
        };
        Dialect::from_parts(self.rules, codec)
    }
}

/// Offers several dialects. The first one in the list that recognises the first message is chosen.
///
/// A single dialect is chosen without a message.
pub fn negotiate(dialects: impl IntoIterator<Item = Dialect>) -> Negotiation {
    Negotiation { offered: dialects.into_iter().collect() }
}

/// The dialects that a connection may use. A message that none of them recognises is refused and decides nothing: the
/// next message is examined in the same way.
///
/// ```
/// use rescind_core::dialect::{ACP, MCP, negotiate};
///
/// let negotiation = negotiate([ACP, MCP]);
/// assert!(negotiation.settled().is_none());
///
/// let params = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;
/// let hello = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#);
/// assert_eq!(negotiation.recognise(hello.as_bytes()).map(|dialect| dialect.name()), Ok("mcp"));
///
/// // An unknown first message is refused, and the next one may decide.
/// let frame = br#"{"jsonrpc":"2.0","id":1,"method":"hello"}"#;
/// let why = negotiation.recognise(frame).unwrap_err();
/// let mut refusal = Vec::new();
/// assert!(negotiation.refuse(&mut refusal, frame, why));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Negotiation {
    offered: Vec<Dialect>,
}

impl Negotiation {
    /// The offered dialects, in order.
    #[must_use]
    pub fn offered(&self) -> &[Dialect] {
        &self.offered
    }

    /// The dialect, if only one is offered.
    #[must_use]
    pub fn settled(&self) -> Option<&Dialect> {
        match self.offered.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The dialect to which the first message belongs.
    ///
    /// # Errors
    /// [`BadMessage::UnknownDialect`] if no dialect recognises the message. If the message is invalid in all of them
    /// for the same reason, that reason.
    pub fn recognise(&self, frame: &[u8]) -> Result<&Dialect, BadMessage> {
        if let Some(only) = self.settled() {
            return Ok(only);
        }
        let known = self.offered.iter().find(|dialect| dialect.codec().recognises(dialect.rules(), frame));
        known.ok_or_else(|| self.fault(frame))
    }

    /// Writes the refusal of a first message, in the form of the first dialect that has such a message. The refusal has
    /// the id of the message if the message is a request. `false`: no dialect has such a message.
    pub fn refuse(&self, out: &mut Vec<u8>, frame: &[u8], why: BadMessage) -> bool {
        self.offered.iter().any(|dialect| {
            let (codec, rules) = (dialect.codec(), dialect.rules());
            match codec.decode(frame) {
                Incoming::Request(IncomingRequest { id, tag, .. }) | Incoming::BadRequest { id, tag, .. } => {
                    let to = ReplyTo { id: &id, tag, server_cancellable: false };
                    codec.encode_refusal(rules, out, Some(&to), Refusal::Bad(why))
                }
                _ => codec.encode_refusal(rules, out, None, Refusal::Bad(why)),
            }
        })
    }

    /// The fault of a frame that no dialect recognised: the one on which all dialects agree, for example that it is not
    /// JSON, else [`BadMessage::UnknownDialect`].
    fn fault(&self, frame: &[u8]) -> BadMessage {
        let faults = self.offered.iter().map(|dialect| match dialect.codec().decode(frame) {
            Incoming::Bad(why) | Incoming::BadRequest { why, .. } => why,
            _ => BadMessage::UnknownDialect,
        });
        faults
            .reduce(|first, next| if first == next { first } else { BadMessage::UnknownDialect })
            .unwrap_or(BadMessage::UnknownDialect)
    }
}

impl From<Dialect> for Negotiation {
    fn from(dialect: Dialect) -> Self {
        negotiate([dialect])
    }
}
