//! What a handshake says about cancelling, and how the first message is recognised.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::{Declaration, FirstMessage, JsonRpc};
use crate::dialect::codec::{Handshake, HandshakePart};
use crate::dialect::json::{self, PickedMembers, push};
use crate::dialect::rules::Rules;
use crate::message::Incoming;

/// The name of the flag in the source's interfaces, inside of `cancellation`.
const REQUEST: &str = "request";
/// The name of the flag in the prose of the same source.
const PROSE_NAME: &str = "supportsRequestCancellation";
const CANCELLATION: &str = "cancellation";
const VERSION: &str = "protocolVersion";
const CAPABILITIES: &str = "capabilities";
/// The most methods of a declaration that are kept. Protocols have a handful.
const MAX_DECLARED_METHODS: usize = 64;

impl JsonRpc {
    pub(super) fn handshake(&self, part: HandshakePart, body: &RawValue) -> Handshake {
        let version = json::member(Some(body), VERSION);
        let revision = version.and_then(|version| match json::string(version) {
            Some(text) => Some(text.into_owned()),
            None => version.get().parse::<i64>().ok().map(|number| number.to_string()),
        });
        // Without a declaration the default is `false` (ACPDRAFT-14).
        let handles_cancels = self.declaration.map(|place| declared_flag(place, part, body).unwrap_or(false));
        let exempting = self.exempting.map(|name| declared_requests(name, body));
        Handshake::new(handles_cancels, revision).with_exempting(exempting)
    }

    pub(super) fn declared(
        &self,
        part: HandshakePart,
        body: &RawValue,
        handles_cancels: bool,
    ) -> Option<Box<RawValue>> {
        let place = self.declaration?;
        // An omitted flag means `false` (ACPDRAFT-63).
        if !handles_cancels || declared_flag(place, part, body).is_some() {
            return None;
        }
        let holder = place.holder(part);
        let PickedMembers { values: [capabilities], .. } = PickedMembers::of(Some(body), [holder]);
        let mut out = Vec::new();
        match capabilities {
            None => json::push_with_member(&mut out, body.get(), |out| {
                json::push_string(out, holder);
                push(out, r#":{"cancellation":{"request":true}}"#);
            }),
            Some(capabilities) => json::push_replacing(&mut out, body, capabilities, |out| {
                push_declared(out, capabilities);
            }),
        }
        json::into_raw(out)
    }

    pub(super) fn opens(&self, rules: &Rules, frame: &[u8]) -> bool {
        let (method, params, is_request) = match self.decode_first(frame) {
            Some(Incoming::Request(request)) => (request.method, request.params, true),
            Some(Incoming::Notification { method, params }) => (method, params, false),
            Some(_) => return self.opening == FirstMessage::Envelope && rules.handshake.is_none(),
            None => return false,
        };
        let is_handshake = is_request && rules.handshake == Some(&*method);
        let version = || json::member(params, VERSION);
        match self.opening {
            FirstMessage::Envelope => is_handshake || rules.handshake.is_none(),
            FirstMessage::NumberedVersion(wanted) => {
                is_handshake
                    && version().and_then(|version| version.get().parse().ok()) == Some(wanted)
                    && self
                        .declaration
                        .is_none_or(|place| params.is_some_and(|params| holds_declaration(place, params)))
            }
            FirstMessage::TextVersion => is_handshake && version().and_then(json::string).is_some(),
            FirstMessage::NoVersion => is_handshake && version().is_none(),
            FirstMessage::MetaVersion(name) => {
                json::member(json::member(params, "_meta"), name).and_then(json::string).is_some()
            }
        }
    }

    fn decode_first<'a>(&self, frame: &'a [u8]) -> Option<Incoming<'a>> {
        self.read(frame).ok()
    }
}

impl Declaration {
    fn holder(self, part: HandshakePart) -> &'static str {
        match part {
            HandshakePart::Params => self.in_params,
            HandshakePart::Result => self.in_result,
        }
    }
}

/// The flag, from the first of the places where a writer may have put it (ACPDRAFT-24).
fn declared_flag(place: Declaration, part: HandshakePart, body: &RawValue) -> Option<bool> {
    let PickedMembers { values: [capabilities, outermost], .. } =
        PickedMembers::of(Some(body), [place.holder(part), PROSE_NAME]);
    let PickedMembers { values: [cancellation, beside], .. } =
        PickedMembers::of(capabilities, [CANCELLATION, PROSE_NAME]);
    let PickedMembers { values: [request, inside], .. } =
        PickedMembers::of(cancellation, [REQUEST, PROSE_NAME]);
    let first = [request, inside, beside, outermost].into_iter().find_map(json::present)?;
    Some(first.get() == "true")
}

/// The methods that a capability lists as `requests.GROUP.NAME`. A member that is not an object lists nothing.
fn declared_requests(capability: &str, body: &RawValue) -> Vec<String> {
    type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;
    fn members(of: &RawValue) -> Members<'_> {
        serde_json::from_str(of.get()).unwrap_or_default()
    }
    let capability = json::member(json::member(Some(body), CAPABILITIES), capability);
    let groups = json::member(capability, "requests").map(members).unwrap_or_default();
    let named = groups.iter().flat_map(|(group, names)| {
        let said = members(names).into_iter().filter(|(_, said)| json::present(Some(said)).is_some());
        said.map(move |(name, _)| format!("{group}/{name}"))
    });
    named.take(MAX_DECLARED_METHODS).collect()
}

/// Whether the client's part says anything about cancelling, also if it denies it.
fn holds_declaration(place: Declaration, params: &RawValue) -> bool {
    let PickedMembers { values: [cancellation, beside], .. } =
        PickedMembers::of(json::member(Some(params), place.in_params), [CANCELLATION, PROSE_NAME]);
    let PickedMembers { values: [outermost], .. } = PickedMembers::of(Some(params), [PROSE_NAME]);
    cancellation.or(beside).or(outermost).is_some()
}

/// The capabilities with the declaration of this side. A value that is not an object is replaced.
fn push_declared(out: &mut Vec<u8>, capabilities: &RawValue) {
    if json::shape(capabilities.get()) != json::Shape::Object {
        return push(out, r#"{"cancellation":{"request":true}}"#);
    }
    let PickedMembers { values: [cancellation], .. } = PickedMembers::of(Some(capabilities), [CANCELLATION]);
    match cancellation {
        None => json::push_with_member(out, capabilities.get(), |out| {
            push(out, r#""cancellation":{"request":true}"#);
        }),
        Some(inner) => json::push_replacing(out, capabilities, inner, |out| {
            let PickedMembers { values: [request], .. } = PickedMembers::of(Some(inner), [REQUEST]);
            match request {
                None if json::shape(inner.get()) == json::Shape::Object => {
                    json::push_with_member(out, inner.get(), |out| push(out, r#""request":true"#));
                }
                _ => push(out, r#"{"request":true}"#),
            }
        }),
    }
}
