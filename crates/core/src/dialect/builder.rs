//! Dialects of your own, and the built-in ones with a rule changed.

use std::sync::Arc;
use std::time::Duration;

use super::codec::Codec;
use super::jsonrpc::{CancelName, JsonRpc};
use super::rules::{
    AckStyle, AnswerAfterCancel, BASE, CancelFrom, CancelledError, CancelledReply, CapabilityGate, DecidedBy,
    EarlyCancel, LostStream, RefusalStyle, Rules, ServerLifecycle, SettledMemory,
};
use super::{CodecHandle, Dialect};
use crate::framing::Framing;
use crate::message::ErrorCode;

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
