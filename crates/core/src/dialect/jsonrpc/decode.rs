//! Reading: one pass over the envelope, and a shallow pass over params if the dialect keeps something there.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{CancelName, JsonRpc, ReasonField, TokenField};
use crate::broken_json::{self, whole_characters};
use crate::dialect::json::{self, PickedMembers, Shape};
use crate::id::{CallNumber, InvalidId, RequestId};
use crate::members::{self, Part};
use crate::message::{
    AnswerBody, AnswerFault, BadMessage, CancelExemption, CancelKey, Deviation, ErrorObject, Incoming,
    IncomingCancel, IncomingRequest, is_usable_token,
};

/// The beginning of the token for a call's partial results. The call's number follows.
pub(super) const PARTIAL: &str = "partial-";

/// Whether a version is "2.0", however the string is escaped.
fn is_two(version: &str) -> bool {
    version == "\"2.0\""
        || (version.contains('\\') && serde_json::from_str::<String>(version).is_ok_and(|text| text == "2.0"))
}

/// The members of messages.
const NAMES: [&str; 6] = ["jsonrpc", "method", "params", "id", "result", "error"];

impl JsonRpc {
    pub(super) fn read<'a>(&self, frame: &'a [u8]) -> Result<Incoming<'a>, BadMessage> {
        let text = json::text(frame)?;
        match json::shape(text) {
            Shape::Object => {}
            Shape::Array => return read_batch(text),
            Shape::Other => return Err(json::not_an_object(text)),
        }
        let [version, method, params, id, result, error] = json::envelope(text, NAMES)?;
        let has_version = version.is_some_and(|version| is_two(version.get()));
        let is_answer = result.is_some() || error.is_some();
        match method.filter(|method| !(is_answer && is_null(*method))) {
            // Some write all members of all kinds of messages.
            Some(method) if result.is_none_or(is_null) && error.is_none_or(is_null) => {
                if !(has_version && is_string(method)) {
                    return refuse_request(has_version, id);
                }
                self.read_request_or_notification(method_name(method)?, params.and_then(Part::raw), id)
            }
            None if is_answer => {
                let unversioned = (!has_version).then_some(text);
                self.read_answer(unversioned, id, result.and_then(Part::raw), error.and_then(Part::raw))
            }
            Some(_) | None => Err(if has_version { BadMessage::NoKind } else { BadMessage::WrongVersion }),
        }
    }

    fn read_request_or_notification<'a>(
        &self,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
        id: Option<Part<'a>>,
    ) -> Result<Incoming<'a>, BadMessage> {
        let Some(id) = id else {
            return match self.cancel_named(&method) {
                // A cancel that names no request is ignored and counted, whatever its params are (GETMCP-07).
                Some(cancel) => Ok(Incoming::Cancel(self.read_cancel(cancel, params))),
                None => Ok(Incoming::Notification { method, params: structured(params)? }),
            };
        };
        let id = RequestId::from_json(id.get()).map_err(BadMessage::InvalidId)?;
        let params = match structured(params) {
            Ok(params) => params,
            Err(why) => return Ok(Incoming::BadRequest { id, tag: 0, why }),
        };
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
            ReasonField::Nowhere => {
                let [key] = cancel_members(params, [name.key]);
                (key, None)
            }
            ReasonField::Param(place) => {
                let [key, reason] = cancel_members(params, [name.key, place]);
                (key, reason.and_then(Part::raw))
            }
        };
        IncomingCancel {
            key: found.map_or(Err(InvalidId::NotAnId), |key| RequestId::from_json(key.get())),
            reason: reason.and_then(json::string).map(Cow::into_owned),
            ack: None,
        }
    }

    fn read_extras<'a>(&self, params: Option<&'a RawValue>) -> (Option<&'a RawValue>, CancelExemption) {
        let (holder, token) = match self.progress.map(|progress| progress.token) {
            Some(TokenField::Param(name)) => (name, name),
            Some(TokenField::Meta(name)) => ("_meta", name),
            None => ("", ""),
        };
        let exempting = self.uncancellable_param.unwrap_or_default();
        // Most params contain neither name, and are not read.
        if !params.is_some_and(|params| json::may_name(params.get(), [token, exempting])) {
            return (None, CancelExemption::No);
        }
        // Of a name that occurs more than once, the first member.
        let PickedMembers { values: [held, exempting], .. } = PickedMembers::of(params, [holder, exempting]);
        let token = match self.progress.map(|progress| progress.token) {
            Some(TokenField::Param(_)) => json::present(held),
            Some(TokenField::Meta(name)) => json::member(held, name),
            None => None,
        };
        let exempt = match (self.uncancellable_param, json::present(exempting)) {
            (Some(_), Some(_)) => CancelExemption::FromCancelMessages,
            (Some(_), None) | (None, _) => CancelExemption::No,
        };
        (token, exempt)
    }

    /// `unversioned`: the text of an answer that does not name the version of JSON-RPC.
    fn read_answer<'a>(
        &self,
        unversioned: Option<&str>,
        id: Option<Part<'a>>,
        result: Option<&'a RawValue>,
        error: Option<&'a RawValue>,
    ) -> Result<Incoming<'a>, BadMessage> {
        let body = match (result, json::present(error)) {
            (Some(value), None) => AnswerBody::Value(value),
            (Some(value), Some(_)) if value.get() != "null" => {
                AnswerBody::Malformed(AnswerFault::new("it has a result and an error"))
            }
            (_, Some(error)) => self.read_error(error),
            (None, None) => AnswerBody::Malformed(AnswerFault::new("it has neither a result nor an error")),
        };
        match (id.filter(|id| !is_placeholder_id(id.get())), body) {
            (Some(id), body) => {
                let (call, deviation) = if let Ok(number) = id.get().parse() {
                    (Some(CallNumber(number)), None)
                } else {
                    let call = respelled_number(id.get());
                    if let Some((call, fault)) = padded_number(id.get()).filter(|_| call.is_none()) {
                        let body = AnswerBody::Malformed(fault);
                        return Ok(Incoming::Answer { call: Some(call), body, deviation: None });
                    }
                    (call, call.map(|_| Deviation::IdSpelling))
                };
                if let (Some(text), AnswerBody::Value(_)) = (unversioned, &body) {
                    if has_others(text) {
                        // A line of a log may have an `id` and a `result` too.
                        let fault = AnswerFault::new(
                            "it names no version of JSON-RPC, and has members that are not of an answer",
                        );
                        let body = AnswerBody::Malformed(fault);
                        return Ok(Incoming::Answer { call, body, deviation: None });
                    }
                }
                let deviation = match (result, error, &body) {
                    _ if unversioned.is_some() => Some(Deviation::NoVersion),
                    (
                        Some(_),
                        Some(_),
                        AnswerBody::Value(_) | AnswerBody::Cancelled | AnswerBody::Error(_),
                    ) => deviation.or(Some(Deviation::NullMember)),
                    _ => deviation,
                };
                Ok(Incoming::Answer { call, body, deviation })
            }
            (None, AnswerBody::Error(error)) => Ok(Incoming::PeerError(error)),
            // An error without an id that says "cancelled" is still an error without an id.
            (None, AnswerBody::Cancelled) => {
                let error = error.and_then(|error| serde_json::from_str(error.get()).ok());
                Ok(error.map_or(Incoming::Bad(BadMessage::NoKind), Incoming::PeerError))
            }
            // Programs print JSON with an `error` or a `result` in it.
            (None, AnswerBody::Value(_) | AnswerBody::Malformed(_)) if unversioned.is_some() => {
                Err(BadMessage::WrongVersion)
            }
            (None, AnswerBody::Value(_) | AnswerBody::Malformed(_)) => Err(BadMessage::NoId),
        }
    }

    fn read_error<'a>(&self, error: &'a RawValue) -> AnswerBody<'a> {
        // `serde` would read an array as the members of an object in their order.
        if json::shape(error.get()) != Shape::Object {
            return AnswerBody::Malformed(AnswerFault::of_error("its error is not an object", error));
        }
        let read = serde_json::from_str::<ErrorObject>(error.get()).or_else(|error_of| {
            whole_characters(error.get()).map_or(Err(error_of), |whole| serde_json::from_str(&whole))
        });
        match read {
            Ok(error) if self.cancelled_codes.contains(&error.code) => AnswerBody::Cancelled,
            Ok(error) => AnswerBody::Error(error),
            Err(_) => {
                AnswerBody::Malformed(AnswerFault::of_error("its error has no code or no message", error))
            }
        }
    }

    /// The call that a frame names which is not a message, if it can only be an answer.
    pub(super) fn read_unreadable(
        &self,
        frame: &[u8],
        why: BadMessage,
    ) -> Option<(Option<CallNumber>, AnswerFault)> {
        let Some((text, fault)) = json::reencoded(frame) else { return read_broken(frame, why) };
        match self.read(text.as_bytes()) {
            Ok(Incoming::Answer {
                call: Some(call),
                deviation: None | Some(Deviation::IdSpelling | Deviation::NullMember),
                ..
            }) => Some((Some(call), fault)),
            Ok(_) => None,
            Err(why) => read_broken(text.as_bytes(), why).map(|(call, _)| (call, fault)),
        }
    }

    pub(super) fn read_progressed_call(&self, method: &str, params: Option<&RawValue>) -> Option<CallNumber> {
        let progress = self.progress.filter(|progress| progress.notification == method)?;
        let token = json::member(params, progress.token_key)?.get();
        match progress.partial {
            Some(_) if token.starts_with('"') => {
                call_number(token.strip_prefix('"')?.strip_prefix(PARTIAL)?.strip_suffix('"')?)
            }
            Some(_) | None => call_number(token),
        }
    }

    pub(super) fn read_reported_token(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        let progress = self.progress.filter(|progress| progress.cancel.is_some())?;
        let reported = method == progress.notification || progress.create == Some(method);
        reported.then(|| token(params, progress.token_key)).flatten()
    }

    pub(super) fn token_of_cancel(&self, method: &str, params: Option<&RawValue>) -> Option<RequestId> {
        let progress = self.progress.filter(|progress| progress.cancel == Some(method))?;
        token(params, progress.token_key)
    }
}

/// Whether the names of an object's members are without quotes.
fn has_bare_names(frame: &[u8]) -> bool {
    let inside = frame.trim_ascii_start().strip_prefix(b"{").unwrap_or_default();
    !matches!(inside.trim_ascii_start().first(), Some(b'"' | b'\'' | b'}') | None)
}

/// Whether an object has members that no message has.
#[cold]
fn has_others(text: &str) -> bool {
    let mut has_others = false;
    broken_json::members(text.as_bytes(), text.len(), |name, _| {
        has_others |= !NAMES.iter().any(|known| known.as_bytes() == name);
    });
    has_others
}

/// The call that an object names which is not a message, if it can only be an answer. A JSON text with a method can be
/// one too: some programs write the whole request back, with its result. No call: it is an answer, and its id is
/// missing, or there are two, or it is somewhere in or after what is broken.
fn read_broken(frame: &[u8], why: BadMessage) -> Option<(Option<CallNumber>, AnswerFault)> {
    if let Some(call) = read_capitals(frame, why) {
        let fault = AnswerFault::new("its member names are case-sensitive: they have no capital letters");
        return Some((Some(call), fault));
    }
    let mut fault = AnswerFault::of(frame, why);
    let (mut id, mut certain, mut is_one) = (None, true, true);
    let (mut has_version, mut has_method, mut has_answer) = (false, false, false);
    let (mut names_answer, mut has_other, mut has_params) = (false, false, false);
    let end = fault.place().unwrap_or(frame.len());
    let broken = broken_json::members(frame, end, |name, value| match name {
        b"id" => is_one &= id.replace(value).is_none_or(|former| former == value),
        b"jsonrpc" => has_version = true,
        b"method" => has_method |= value != b"null",
        b"result" | b"error" => {
            names_answer = true;
            has_answer |= value != b"null";
        }
        // An escape may spell any of these.
        name => {
            has_other = true;
            has_params |= name == b"params";
            certain &= !name.contains(&b'\\');
        }
    });
    if has_method {
        certain &= has_answer && matches!(why, BadMessage::NoKind | BadMessage::WrongVersion);
        fault = AnswerFault::new("it has a method beside its result or error");
    }
    let begins_answer = names_answer || matches!(broken, Some(b"result" | b"error"));
    if broken.is_some() && !begins_answer && (has_params || matches!(broken, Some(b"params" | b"method"))) {
        // It is a request: its method is broken, or behind its params.
        return None;
    }
    if why == BadMessage::WrongVersion && has_other && !has_version && !names_answer {
        // A line of a log may have a member `id` too.
        return None;
    }
    if !has_version && has_bare_names(frame) {
        // Programs print objects of JavaScript.
        return None;
    }
    if let Some(id) = id.filter(|_| certain && is_one) {
        let id = std::str::from_utf8(id).ok()?;
        return Some((Some(call_number(id).or_else(|| respelled_number(id))?), fault));
    }
    let has = |name: &str| memchr::memmem::find(frame, name.as_bytes()).is_some();
    let is_answer = match broken {
        Some(b"result" | b"error") => true,
        Some(b"method") => false,
        Some(_) => has_answer || ((has("\"result\"") || has("\"error\"")) && !has("\"method\"")),
        None => has_answer,
    };
    // Programs print objects with an `error` too, and lines with a whole message in them. The outermost object of those
    // has no version.
    (certain && is_answer && !has_method && has_version).then_some((None, fault))
}

/// The call of a whole answer whose member names begin with capital letters, as .NET programs write them: `Id`, `Result`.
fn read_capitals(frame: &[u8], why: BadMessage) -> Option<CallNumber> {
    if !matches!(why, BadMessage::WrongVersion | BadMessage::NoKind) {
        return None;
    }
    let (mut id, mut is_one, mut has_capitals) = (None, true, false);
    let (mut has_version, mut has_answer, mut is_request) = (false, false, false);
    let broken = broken_json::members(frame, frame.len(), |name, value| {
        let plain = name.to_ascii_lowercase();
        match &plain[..] {
            b"jsonrpc" => has_version |= value == br#""2.0""#,
            b"id" => is_one &= id.replace(value).is_none(),
            b"result" | b"error" => has_answer |= value != b"null",
            b"method" | b"params" => is_request |= value != b"null",
            _ => return,
        }
        has_capitals |= plain != name;
    });
    let is_answer = broken.is_none() && has_version && has_answer && !is_request;
    let id = id.filter(|_| is_answer && is_one && has_capitals)?;
    let id = std::str::from_utf8(id).ok()?;
    call_number(id).or_else(|| respelled_number(id))
}

/// A progress token, if a request may report with it.
fn token(params: Option<&RawValue>, name: &str) -> Option<RequestId> {
    let token = json::member(params, name)?.get();
    if is_usable_token(token) { RequestId::from_json(token).ok() } else { None }
}

/// Members of a cancel's params. The first one names the request. It is `None` if one of these names occurs twice.
fn cancel_members<'a, const N: usize>(
    params: Option<&'a RawValue>,
    names: [&str; N],
) -> [Option<Part<'a>>; N] {
    if let Some(members) = params.and_then(|params| members::scan(params.get(), names)) {
        return members;
    }
    let PickedMembers { values, twice } = PickedMembers::of(params, names);
    let mut members = values.map(|value| value.map(Part::Raw));
    if let Some(first) = members.first_mut().filter(|_| twice) {
        *first = None;
    }
    members
}

fn is_null(part: Part<'_>) -> bool {
    part.get() == "null"
}

fn is_string(part: Part<'_>) -> bool {
    part.get().starts_with('"')
}

/// A message with a method that is not taken, since it names no version or its method is not a string. If it has an id, its
/// sender waits for an answer.
fn refuse_request<'a>(has_version: bool, id: Option<Part<'_>>) -> Result<Incoming<'a>, BadMessage> {
    let why = if has_version { BadMessage::InvalidMethod } else { BadMessage::WrongVersion };
    match id.map(|id| RequestId::from_json(id.get())) {
        Some(Ok(id)) => Ok(Incoming::BadRequest { id, tag: 0, why }),
        Some(Err(_)) | None => Err(why),
    }
}

fn method_name(method: Part<'_>) -> Result<Cow<'_, str>, BadMessage> {
    match method {
        Part::Plain(text) => Ok(Cow::Borrowed(text.trim_matches('"'))),
        // A string whose text is not valid contains a lone surrogate.
        Part::Raw(value) => json::string(value).ok_or(BadMessage::NotJson),
    }
}

fn read_batch(text: &str) -> Result<Incoming<'_>, BadMessage> {
    let members = json::elements(text)?;
    if members.is_empty() { Err(BadMessage::NotAnObject) } else { Ok(Incoming::Batch(members)) }
}

/// Params, which are an object or an array. `null` counts as absent: common LSP clients write it, and it has no other
/// meaning.
fn structured(params: Option<&RawValue>) -> Result<Option<&RawValue>, BadMessage> {
    match json::present(params) {
        Some(params) if json::shape(params.get()) == Shape::Other => Err(BadMessage::InvalidParams),
        params => Ok(params),
    }
}

/// Whether an id is one that no program sends with a request, as those that programs write into an answer when they could not
/// read the id of the request.
pub(in crate::dialect) fn is_placeholder_id(json: &str) -> bool {
    // The last is that of the Python SDK of MCP.
    matches!(json, r#""""# | r#""null""# | r#""undefined""# | r#""None""# | r#""server-error""#)
        || (!json.starts_with(|first: char| first == '"' || first.is_ascii_digit())
            && respelled_number(json).is_none())
}

/// The call that an id names in another spelling than this side wrote it: `"2"`, `2.0` or `"2.0"` for 2. No other call can
/// be meant, because this side never writes a text as an id.
pub(in crate::dialect) fn respelled_number(json: &str) -> Option<CallNumber> {
    let id = match serde_json::from_str::<Cow<'_, str>>(json) {
        // A token of JSON may have blanks around it, and a text that spells a number has none.
        Ok(text) if text.trim_ascii().len() < text.len() => return None,
        Ok(text) => RequestId::from_json(&text).ok()?,
        Err(_) => RequestId::from_json(json).ok()?,
    };
    u64::try_from(id.as_number()?).ok().map(CallNumber)
}

/// The call that an id names as a text with blanks around its number. It is not taken for another spelling.
pub(in crate::dialect) fn padded_number(json: &str) -> Option<(CallNumber, AnswerFault)> {
    let text = serde_json::from_str::<Cow<'_, str>>(json).ok()?;
    let id = RequestId::from_json(text.trim_ascii()).ok().filter(|_| text.trim_ascii().len() < text.len())?;
    let call = u64::try_from(id.as_number()?).ok().map(CallNumber)?;
    Some((call, AnswerFault::new("its id has blanks around it")))
}

/// The call that a JSON number names. This side never writes a text, a fraction or a negative number as an id.
fn call_number(json: &str) -> Option<CallNumber> {
    json.parse().ok().map(CallNumber)
}
