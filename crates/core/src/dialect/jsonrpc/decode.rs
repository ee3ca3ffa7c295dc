//! Reading: one pass over the envelope, and a shallow one over params where the dialect keeps something there.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{Batches, CancelName, JsonRpc, ReasonPlace, TokenPlace};
use crate::dialect::json::{self, Picked, Shape};
use crate::id::{CallNumber, InvalidId, RequestId};
use crate::message::{
    AnswerBody, BadMessage, CancelKey, ErrorObject, Exempt, Incoming, IncomingCancel, IncomingRequest,
};

/// The most members of a batch that are read. The frame limit alone would let an array of small values grow into
/// many times its size.
const MAX_BATCH: usize = 1024;

impl JsonRpc {
    pub(super) fn read<'a>(&self, frame: &'a [u8]) -> Result<Incoming<'a>, BadMessage> {
        let text = json::text(frame)?;
        match json::shape(text) {
            Shape::Object => {}
            Shape::Array => return self.read_batch(text),
            Shape::Other => return Err(json::not_an_object(text)),
        }
        let members = Picked::read(text, ["jsonrpc", "method", "params", "id", "result", "error"])?;
        if members.twice {
            return Err(BadMessage::DuplicateMember);
        }
        let [version, method, params, id, result, error] = members.values;
        if version.map(RawValue::get) != Some("\"2.0\"") {
            return Err(BadMessage::WrongVersion);
        }
        match (method, result, error) {
            (Some(method), None, None) => self.read_asked(method_name(method)?, params, id),
            (None, None, None) | (Some(_), _, _) => Err(BadMessage::NoKind),
            (None, _, _) => self.read_answer(id, result, error),
        }
    }

    fn read_batch<'a>(&self, text: &'a str) -> Result<Incoming<'a>, BadMessage> {
        let limit = match self.batches {
            Batches::Refused => 0,
            Batches::Read => MAX_BATCH,
        };
        let members = json::elements(text, limit)?;
        if members.is_empty() { Err(BadMessage::NotAnObject) } else { Ok(Incoming::Batch(members)) }
    }

    fn read_asked<'a>(
        &self,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
        id: Option<&'a RawValue>,
    ) -> Result<Incoming<'a>, BadMessage> {
        let Some(id) = id else {
            return match self.cancel_named(&method) {
                // A cancel that names nothing is ignored and counted, whatever its params are (002-07).
                Some(cancel) => Ok(Incoming::Cancel(self.read_cancel(cancel, params))),
                None => Ok(Incoming::Notification { method, params: structured(params)? }),
            };
        };
        let id = RequestId::from_json(id.get()).map_err(BadMessage::InvalidId)?;
        let params = structured(params)?;
        let (progress_token, exempt) = self.read_extras(params);
        Ok(Incoming::Request(IncomingRequest {
            id,
            cancel_key: CancelKey::SameAsId,
            method,
            params,
            exempt,
            progress_token,
            tag: 0,
        }))
    }

    fn cancel_named(&self, method: &str) -> Option<CancelName> {
        std::iter::once(&self.cancel).chain(self.also_accepted).find(|name| name.method == method).copied()
    }

    fn read_cancel(&self, name: CancelName, params: Option<&RawValue>) -> IncomingCancel {
        let (found, reason) = match self.reason {
            ReasonPlace::Nowhere => {
                let Picked { values: [key], twice } = Picked::of(params, [name.key]);
                (key.filter(|_| !twice), None)
            }
            ReasonPlace::Param(place) => {
                let Picked { values: [key, reason], twice } = Picked::of(params, [name.key, place]);
                (key.filter(|_| !twice), reason)
            }
        };
        IncomingCancel {
            key: found.map_or(Err(InvalidId::NotAnId), |key| RequestId::from_json(key.get())),
            reason: reason.and_then(json::string).map(Cow::into_owned),
            ack: None,
        }
    }

    fn read_extras<'a>(&self, params: Option<&'a RawValue>) -> (Option<&'a RawValue>, Exempt) {
        let holder = match self.progress.map(|progress| progress.token) {
            Some(TokenPlace::Param(name)) => name,
            Some(TokenPlace::Meta(_)) => "_meta",
            None => "",
        };
        if params.is_none() || (holder.is_empty() && self.uncancellable_param.is_none()) {
            return (None, Exempt::No);
        }
        let Picked { values: [held, exempting], .. } =
            Picked::of(params, [holder, self.uncancellable_param.unwrap_or_default()]);
        let token = match self.progress.map(|progress| progress.token) {
            Some(TokenPlace::Param(_)) => json::present(held),
            Some(TokenPlace::Meta(name)) => json::member(held, name),
            None => None,
        };
        let exempt = match (self.uncancellable_param, json::present(exempting)) {
            (Some(_), Some(_)) => Exempt::FromCancelMessages,
            (Some(_), None) | (None, _) => Exempt::No,
        };
        (token, exempt)
    }

    fn read_answer<'a>(
        &self,
        id: Option<&'a RawValue>,
        result: Option<&'a RawValue>,
        error: Option<&'a RawValue>,
    ) -> Result<Incoming<'a>, BadMessage> {
        let body = match (result, json::present(error)) {
            (Some(value), None) => AnswerBody::Value(value),
            (Some(value), Some(_)) if value.get() != "null" => {
                AnswerBody::Malformed("the answer has a result and an error")
            }
            (_, Some(error)) => self.read_error(error),
            (None, None) => AnswerBody::Malformed("the answer has neither a result nor an error"),
        };
        match (json::present(id), body) {
            (Some(id), body) => Ok(Incoming::Answer { call: call_number(id), body }),
            (None, AnswerBody::Error(error)) => Ok(Incoming::PeerError(error)),
            // An error about nothing that says "cancelled" is still an error about nothing.
            (None, AnswerBody::Cancelled) => {
                let error = error.and_then(|error| serde_json::from_str(error.get()).ok());
                Ok(error.map_or(Incoming::Bad(BadMessage::NoKind), Incoming::PeerError))
            }
            (None, AnswerBody::Value(_) | AnswerBody::Malformed(_)) => Err(match id {
                Some(_) => BadMessage::InvalidId(InvalidId::NotAnId),
                None => BadMessage::NoKind,
            }),
        }
    }

    fn read_error<'a>(&self, error: &'a RawValue) -> AnswerBody<'a> {
        match serde_json::from_str::<ErrorObject>(error.get()) {
            Ok(error) if self.cancelled_codes.contains(&error.code) => AnswerBody::Cancelled,
            Ok(error) => AnswerBody::Error(error),
            Err(_) => AnswerBody::Malformed("the error has no code or no message"),
        }
    }

    pub(super) fn told_call(&self, method: &str, params: Option<&RawValue>) -> Option<CallNumber> {
        let progress = self.progress.filter(|progress| progress.notification == method)?;
        call_number(json::member(params, progress.told_under)?)
    }
}

fn method_name(method: &RawValue) -> Result<Cow<'_, str>, BadMessage> {
    if !method.get().starts_with('"') {
        return Err(BadMessage::InvalidMethod);
    }
    // A string that is no text holds a lone surrogate.
    json::string(method).ok_or(BadMessage::NotJson)
}

/// Params as they may stand. `null` is taken for "none": common LSP clients write it, and it says nothing else.
fn structured(params: Option<&RawValue>) -> Result<Option<&RawValue>, BadMessage> {
    match json::present(params) {
        Some(params) if json::shape(params.get()) == Shape::Other => Err(BadMessage::InvalidParams),
        params => Ok(params),
    }
}

/// The call a numeric id names. A text, a fraction or a number below zero was never an id of ours.
fn call_number(id: &RawValue) -> Option<CallNumber> {
    let digits = id.get();
    let plain =
        digits == "0" || (!digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()));
    if plain { digits.parse().ok().map(CallNumber) } else { None }
}
