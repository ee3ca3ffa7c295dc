//! The meaning of a message as text for comparison. White space between tokens has no meaning.

use rescind_core::{AnswerBody, ErrorObject, Incoming};
use serde_json::value::RawValue;

/// JSON without the white space between its tokens.
pub(super) fn squeezed(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for letter in json.chars() {
        if !in_string && matches!(letter, ' ' | '\t' | '\n' | '\r') {
            continue;
        }
        out.push(letter);
        match letter {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
    }
    out
}

pub(super) fn of_raw(value: Option<&RawValue>) -> Option<String> {
    value.map(|value| squeezed(value.get()))
}

pub(super) fn of_error(error: &ErrorObject) -> String {
    format!("{:?} {:?} {:?}", error.code, error.message, of_raw(error.data.as_deref()))
}

pub(super) fn of_answer(body: &AnswerBody<'_>) -> String {
    match body {
        AnswerBody::Value(value) => format!("value {}", squeezed(value.get())),
        AnswerBody::Error(error) => format!("error {}", of_error(error)),
        other => format!("{other:?}"),
    }
}

pub(super) fn of(message: &Incoming<'_>) -> String {
    match message {
        Incoming::Request(request) => format!(
            "request {:?} {:?} {:?} {:?} {:?} {:?} {}",
            request.id,
            request.cancel_key,
            request.method,
            of_raw(request.params),
            request.exempt,
            of_raw(request.progress_token),
            request.tag
        ),
        Incoming::Notification { method, params } => format!("notification {method:?} {:?}", of_raw(*params)),
        Incoming::Answer { call, body, deviation } => {
            format!("answer {call:?} {} {deviation:?}", of_answer(body))
        }
        Incoming::PeerError(error) => format!("peer error {}", of_error(error)),
        Incoming::Batch(members) => {
            let members: Vec<_> = members.iter().map(|member| squeezed(member.get())).collect();
            format!("batch {members:?}")
        }
        other => format!("{other:?}"),
    }
}
