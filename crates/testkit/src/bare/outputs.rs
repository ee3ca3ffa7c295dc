//! Executes the outputs of the session. Every frame is written as soon as it is made.

use std::time::Instant;

use rescind_core::dialect::{HandshakePart, ReplyTo};
use rescind_core::{
    DisconnectPolicy, ErrorCode, ErrorObject, HandlerResult, OutboundKey, Output, Reply, ReplyBody,
};
use serde_json::Value;

use super::connection::{Connection, End};
use super::outgoing::{SEED, raw};

impl Connection {
    /// Executes the session's outputs and writes what is staged.
    pub(super) fn pump(&mut self, now: Instant) {
        loop {
            while self.session.has_work() {
                self.session.advance(now);
            }
            if let Some(output) = self.session.poll_output() {
                self.carry_out(now, output);
                continue;
            }
            let Some(call) = self.staged.pop_front() else { return };
            self.write_call(now, call);
        }
    }

    fn write_call(&mut self, now: Instant, key: OutboundKey) {
        let Some(call) = self.calls.get_mut(&key) else { return };
        let frame = std::mem::take(&mut call.frame);
        let params = call.params.take().filter(|_| call.is_handshake);
        self.write(&frame);
        if let Some(params) = params {
            let said = self.dialect.codec().read_handshake(HandshakePart::Params, &params);
            self.session.handshake(HandshakePart::Params, &said);
        }
        self.session.local_written(now, key);
    }

    fn carry_out(&mut self, now: Instant, output: Output) {
        let dialect = self.dialect.clone();
        let (rules, codec) = (dialect.rules(), dialect.codec());
        let mut frame = Vec::new();
        match output {
            Output::Start(key) => self.start_handler(now, key),
            Output::Signal { key, .. } => self.signal(now, key),
            Output::Abort(key) => self.abort(now, key),
            Output::Reply(reply) => self.reply(&reply),
            Output::Released(key) => {
                self.waiting.remove(&key);
                self.ids.retain(|_, of| *of != key);
            }
            Output::Refuse { to, why, .. } => {
                let to = to.as_ref().map(|(id, tag)| ReplyTo { id, tag: *tag, server_cancellable: false });
                if codec.encode_refusal(rules, &mut frame, to.as_ref(), why) {
                    self.write(&frame);
                }
            }
            Output::RefuseCancelled { id, tag, server_cancellable, graceful, cause, .. } => {
                let to = ReplyTo { id: &id, tag, server_cancellable };
                match graceful {
                    Some(result) => codec.encode_graceful(rules, &mut frame, &to, result),
                    None => codec.encode_cancelled(rules, &mut frame, &to, &cause),
                }
                self.write(&frame);
            }
            Output::Ack { ack, key, status, .. }
                if codec.encode_ack(rules, &mut frame, &ack, key.as_ref(), status) =>
            {
                self.write(&frame);
            }
            Output::SendCancel { call, number, cancel, cause } if self.session.wants_cancel(call) => {
                codec.encode_cancel(rules, &mut frame, number, cancel, SEED, cause.reason());
                self.write(&frame);
                self.session.local_cancel_written(now, call);
            }
            Output::TakeBack(call) => self.staged.retain(|staged| *staged != call),
            Output::Acked { call, cancelled } => {
                if let Some(call) = self.calls.get_mut(&call) {
                    call.acked = Some(cancelled);
                }
            }
            Output::Settle { call, settlement } => self.settled(now, call, &settlement),
            Output::Close(_) => {
                self.end = End::Closed;
                self.session.recv_lost(now, DisconnectPolicy::CancelNow);
            }
            // Frames are written immediately, so the outputs for waiting frames have no effect. There are no
            // exchanges and no calls on other connections.
            _ => {}
        }
    }

    fn reply(&mut self, reply: &Reply) {
        let dialect = self.dialect.clone();
        let (rules, codec) = (dialect.rules(), dialect.codec());
        let to = ReplyTo { id: &reply.id, tag: reply.tag, server_cancellable: reply.server_cancellable };
        let mut frame = Vec::new();
        match &reply.body {
            ReplyBody::Handler => {
                let handler = self.handlers.get_mut(&reply.key);
                let is_handshake =
                    handler.as_ref().is_some_and(|handler| rules.handshake == Some(&*handler.job.method));
                match handler.and_then(|handler| handler.end.take()) {
                    Some((HandlerResult::Value, value)) => {
                        self.reply_value(&mut frame, &to, &value, is_handshake);
                    }
                    Some((HandlerResult::Error, refused @ Value::Object(_))) => {
                        codec.encode_error(rules, &mut frame, &to, &error_of(&refused));
                    }
                    // The machine answers a panic. A stop is a cancelled reply.
                    Some((HandlerResult::Error | HandlerResult::Stopped | HandlerResult::Panicked, _))
                    | None => {
                        let error =
                            ErrorObject::new(ErrorCode(1), "The fixture failed because of its cancel");
                        codec.encode_error(rules, &mut frame, &to, &error);
                    }
                }
            }
            ReplyBody::Cancelled(cause) => codec.encode_cancelled(rules, &mut frame, &to, cause),
            ReplyBody::Graceful(result) => {
                if let Some(value) = serde_json::from_str(result).ok().as_ref().and_then(raw) {
                    codec.encode_value(rules, &mut frame, &to, &value);
                }
            }
            ReplyBody::Refused(why) => {
                if !codec.encode_refusal(rules, &mut frame, Some(&to), *why) {
                    return;
                }
            }
        }
        self.write(&frame);
    }

    fn reply_value(&mut self, frame: &mut Vec<u8>, to: &ReplyTo<'_>, value: &Value, is_handshake: bool) {
        let dialect = self.dialect.clone();
        let (rules, codec) = (dialect.rules(), dialect.codec());
        let Some(mut value) = raw(value) else { return };
        if is_handshake {
            let declared = codec.declare(HandshakePart::Result, &value, self.handles_cancels);
            value = declared.unwrap_or(value);
            let said = codec.read_handshake(HandshakePart::Result, &value);
            self.session.handshake(HandshakePart::Result, &said);
        }
        codec.encode_value(rules, frame, to, &value);
    }

    /// Sends a notification of a handler.
    pub(super) fn notify(&mut self, method: &str, params: &Value) {
        let dialect = self.dialect.clone();
        let mut frame = Vec::new();
        dialect.codec().encode_notification(dialect.rules(), &mut frame, method, raw(params).as_deref());
        self.write(&frame);
    }
}

/// The error that a request was refused with, from its handler's value.
fn error_of(refused: &Value) -> ErrorObject {
    let code = refused.get("code").and_then(Value::as_i64).map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    let message = refused.get("message").and_then(Value::as_str).unwrap_or_default();
    let error = ErrorObject::new(code, message);
    match refused.get("data").filter(|data| !data.is_null()) {
        Some(data) => error.with_data(data),
        None => error,
    }
}
