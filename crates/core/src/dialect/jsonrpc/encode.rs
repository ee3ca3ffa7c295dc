//! Writing: directly into the buffer, member by member.

use serde_json::value::RawValue;

use super::decode::PARTIAL;
use super::{JsonRpc, ReasonField, TokenField};
use crate::cause::{Cause, CauseKind};
use crate::dialect::json::{self, PickedMembers, Shape, push, push_json, push_number, push_string};
use crate::dialect::rules::{
    CallFrame, CancelledReply, Refusal, RefusalStyle, ReplyTo, Rules, STOPPED_BY_OPERATOR,
};
use crate::id::CallNumber;
use crate::message::{ErrorCode, ErrorObject};

impl JsonRpc {
    pub(super) fn write_request(&self, out: &mut Vec<u8>, call: &CallFrame<'_>) {
        push(out, r#"{"jsonrpc":"2.0","id":"#);
        push_number(out, call.number.0);
        push(out, r#","method":"#);
        push_string(out, call.method);
        let partial = self.progress.and_then(|progress| progress.partial).filter(|_| call.partial);
        let with_partial = partial.and_then(|name| with_partial_token(name, call));
        let params = with_partial.as_deref().or(call.params);
        match self.progress {
            Some(progress) if call.progress => {
                write_params_with_token(out, progress.token, call.number, params);
            }
            Some(_) | None => write_params(out, params),
        }
        out.push(b'}');
    }

    pub(super) fn write_value(&self, out: &mut Vec<u8>, to: &ReplyTo<'_>, value: &RawValue) {
        start_answer(out, to);
        push(out, r#","result":"#);
        self.write_result(out, value);
        out.push(b'}');
    }

    fn write_result(&self, out: &mut Vec<u8>, value: &RawValue) {
        match self.result_mark {
            Some((name, says)) if lacks(value, name) => json::push_with_member(out, value.get(), |out| {
                push_string(out, name);
                out.push(b':');
                push_string(out, says);
            }),
            Some(_) | None => push_json(out, value.get()),
        }
    }

    pub(super) fn write_graceful(&self, out: &mut Vec<u8>, to: &ReplyTo<'_>, result: &'static str) {
        let marked = self.graceful_id.and_then(|name| {
            let value = json::raw(result).filter(|value| lacks(value, "_meta"))?;
            let mut with_id = Vec::new();
            json::push_with_member(&mut with_id, value.get(), |out| {
                push(out, r#""_meta":{"#);
                push_string(out, name);
                out.push(b':');
                to.id.write_json(out);
                out.push(b'}');
            });
            json::into_raw(with_id)
        });
        match (marked, json::raw(result)) {
            (Some(value), _) => self.write_value(out, to, &value),
            (None, Some(value)) => self.write_value(out, to, value),
            (None, None) => error(out, to, &ErrorObject::internal()),
        }
    }

    pub(super) fn write_refusal(
        &self,
        rules: &Rules,
        out: &mut Vec<u8>,
        to: Option<&ReplyTo<'_>>,
        why: Refusal,
    ) -> bool {
        // The peer would take an error with an id in use for the answer to the first request (see "Keys").
        let to = to.filter(|_| why != Refusal::DuplicateId);
        match (to, rules.refusal) {
            (Some(to), _) => start_answer(out, to),
            (None, RefusalStyle::NullId) => push(out, r#"{"jsonrpc":"2.0","id":null"#),
            (None, RefusalStyle::NoIdMember) => push(out, r#"{"jsonrpc":"2.0""#),
            (None, RefusalStyle::Nothing) => return false,
        }
        let invalid = |what: &str| format!("Invalid message: {what}");
        let (code, text, limit) = match why {
            Refusal::Bad(why) => (why.code(), invalid(&why.to_string()), None),
            Refusal::DuplicateId => (
                ErrorCode::INVALID_REQUEST,
                invalid("the id belongs to a request that has no answer yet"),
                None,
            ),
            Refusal::Overloaded(limit) => (self.overloaded, format!("Overloaded: {limit}"), Some(limit)),
            Refusal::MethodNotFound => (ErrorCode::METHOD_NOT_FOUND, "Method not found".to_owned(), None),
            Refusal::NotInitialized => (self.not_initialized, "The session is not open yet".to_owned(), None),
            Refusal::ShutDown => (ErrorCode::INVALID_REQUEST, invalid("the session was shut down"), None),
            Refusal::DuplicateKey => {
                let text = "Invalid params: the cancel key belongs to another request";
                (ErrorCode::INVALID_PARAMS, text.to_owned(), None)
            }
            Refusal::Internal => (ErrorCode::INTERNAL_ERROR, "Internal error".to_owned(), None),
        };
        start_error(out, code);
        push_string(out, &text);
        if let Some(limit) = limit {
            push(out, r#","data":{"reason":"overloaded","limit":"#);
            push_string(out, limit);
            out.push(b'}');
        }
        push(out, "}}");
        true
    }

    pub(super) fn write_cancel(&self, out: &mut Vec<u8>, call: CallNumber, reason: Option<&str>) {
        push(out, r#"{"jsonrpc":"2.0","method":"#);
        push_string(out, self.cancel.method);
        push(out, r#","params":{"#);
        push_string(out, self.cancel.key);
        out.push(b':');
        push_number(out, call.0);
        if let (ReasonField::Param(name), Some(reason)) = (self.reason, reason) {
            out.push(b',');
            push_string(out, name);
            out.push(b':');
            push_string(out, reason);
        }
        push(out, "}}");
    }
}

pub(super) fn notification(out: &mut Vec<u8>, method: &str, params: Option<&RawValue>) {
    push(out, r#"{"jsonrpc":"2.0","method":"#);
    push_string(out, method);
    write_params(out, params);
    out.push(b'}');
}

pub(super) fn error(out: &mut Vec<u8>, to: &ReplyTo<'_>, error: &ErrorObject) {
    start_answer(out, to);
    start_error(out, error.code);
    push_string(out, &error.message);
    if let Some(data) = &error.data {
        push(out, r#","data":"#);
        push_json(out, data.get());
    }
    push(out, "}}");
}

pub(super) fn cancelled(rules: &Rules, out: &mut Vec<u8>, to: &ReplyTo<'_>, cause: &Cause) {
    let local = match rules.server_cancelled {
        Some(error) if to.server_cancellable => error,
        Some(_) | None => rules.local_cancelled,
    };
    let said = match (cause.kind(), rules.peer_cancelled) {
        (CauseKind::Peer, CancelledReply::Error(error)) => error,
        // Used where an answer must be sent (an HTTP response in JSON). The error is that of a cancel by this side.
        (CauseKind::Peer, CancelledReply::OwnShape | CancelledReply::Silence) => rules.local_cancelled,
        (_, _) => local,
    };
    start_answer(out, to);
    start_error(out, said.code);
    let by_operator = cause.kind() == CauseKind::Operator;
    // The code is the dialect's. The caller cannot know why its request ended, so the text says it in each dialect.
    push_string(out, if by_operator { STOPPED_BY_OPERATOR } else { said.message });
    if said.says_why || by_operator {
        push(out, r#","data":{"reason":"#);
        push_string(out, cause.kind().name());
        out.push(b'}');
    }
    push(out, "}}");
}

fn start_answer(out: &mut Vec<u8>, to: &ReplyTo<'_>) {
    push(out, r#"{"jsonrpc":"2.0","id":"#);
    to.id.write_json(out);
}

fn start_error(out: &mut Vec<u8>, code: ErrorCode) {
    push(out, r#","error":{"code":"#);
    push_number(out, code.0);
    push(out, r#","message":"#);
}

fn write_params(out: &mut Vec<u8>, params: Option<&RawValue>) {
    // `params: null` is not valid JSON-RPC, so such params are omitted.
    if let Some(params) = json::present(params) {
        push(out, r#","params":"#);
        push_json(out, params.get());
    }
}

/// Params with the call's number as progress token. A token that the caller set stays. Params that are not an object
/// get no token, nor do params whose `_meta` is not an object.
fn write_params_with_token(
    out: &mut Vec<u8>,
    place: TokenField,
    number: CallNumber,
    params: Option<&RawValue>,
) {
    let given = params;
    let token = |out: &mut Vec<u8>, name: &str| {
        push_string(out, name);
        out.push(b':');
        push_number(out, number.0);
    };
    let params = json::present(params).or_else(|| json::raw("{}"));
    let Some(params) = params.filter(|params| json::shape(params.get()) == Shape::Object) else {
        return write_params(out, given);
    };
    push(out, r#","params":"#);
    match place {
        TokenField::Param(name) if lacks(params, name) => {
            json::push_with_member(out, params.get(), |out| token(out, name));
        }
        TokenField::Meta(name) => {
            let PickedMembers { values: [meta], .. } = PickedMembers::of(Some(params), ["_meta"]);
            match meta {
                None => json::push_with_member(out, params.get(), |out| {
                    push(out, r#""_meta":{"#);
                    token(out, name);
                    out.push(b'}');
                }),
                Some(meta) if lacks(meta, name) => json::push_replacing(out, params, meta, |out| {
                    json::push_with_member(out, meta.get(), |out| token(out, name));
                }),
                Some(_) => push_json(out, params.get()),
            }
        }
        TokenField::Param(_) => push_json(out, params.get()),
    }
}

/// Params with a token for partial results. `None`: the caller set one, or the params are not an object.
fn with_partial_token(name: &'static str, call: &CallFrame<'_>) -> Option<Box<RawValue>> {
    let params =
        json::present(call.params).or_else(|| json::raw("{}")).filter(|params| lacks(params, name))?;
    let mut with_token = Vec::new();
    json::push_with_member(&mut with_token, params.get(), |out| {
        push_string(out, name);
        push(out, ":\"");
        push(out, PARTIAL);
        push_number(out, call.number.0);
        out.push(b'"');
    });
    json::into_raw(with_token)
}

/// Whether the value is an object without this member.
fn lacks(value: &RawValue, name: &str) -> bool {
    let PickedMembers { values: [found], .. } = PickedMembers::of(Some(value), [name]);
    json::shape(value.get()) == Shape::Object && found.is_none()
}
