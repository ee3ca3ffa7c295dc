//! A path through a search as text, for `RESCIND_TRACE`: the class, the order, and the inputs.
//!
//! Each input is its name and its parameters, separated by colons. A key is its slot and its generation:
//! `silence unordered request:0 offer:0.0:value cancel:0`.

use std::fmt;
use std::str::FromStr;

use rescind_core::{
    AfterCancel, AnswerKind, CallKey, DisconnectPolicy, HandlerResult, InboundKey, OutboundKey,
};

use super::dialect_class::{Class, Order};
use super::input::{CallInput, Declared, Input};

/// The variable with a trace to replay:
/// `RESCIND_TRACE='..' cargo test -p rescind-verification --test search the_requested_trace`.
pub const TRACE: &str = "RESCIND_TRACE";

/// The inputs that lead to a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The class of dialects.
    pub class: Class,
    /// The kind of transport.
    pub order: Order,
    /// The inputs.
    pub inputs: Vec<Input>,
}

/// A text that is not a path, with its first invalid word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no part of a way; one begins with a class, `ordered` or `unordered`, and then come inputs")]
pub struct InvalidTrace(String);

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.class.name(), self.order.name())?;
        self.inputs.iter().try_for_each(|input| write!(f, " {}", write(*input)))
    }
}

impl FromStr for Trace {
    type Err = InvalidTrace;

    fn from_str(text: &str) -> Result<Self, InvalidTrace> {
        let mut words = text.split_whitespace();
        let mut next = |what: &str| words.next().ok_or_else(|| InvalidTrace(format!("no {what}")));
        let (class, order) = (next("class")?, next("order")?);
        let no = |word: &str| InvalidTrace(word.to_owned());
        let class = Class::ALL.into_iter().find(|known| known.name() == class).ok_or_else(|| no(class))?;
        let order = Order::ALL.into_iter().find(|known| known.name() == order).ok_or_else(|| no(order))?;
        let inputs = words.map(|word| read(word).ok_or_else(|| no(word))).collect::<Result<_, _>>()?;
        Ok(Self { class, order, inputs })
    }
}

/// A part of a word.
trait Part: Sized {
    fn text(&self) -> String;
    fn read(text: &str) -> Option<Self>;
}

macro_rules! named {
    ($($part:ty: $($name:literal $value:expr),+;)*) => {
        $(impl Part for $part {
            fn text(&self) -> String {
                let names = [$(($name, $value)),+];
                names.into_iter().find(|(_, value)| value == self).map_or("", |(name, _)| name).to_owned()
            }

            fn read(text: &str) -> Option<Self> {
                [$(($name, $value)),+].into_iter().find(|(name, _)| *name == text).map(|(_, value)| value)
            }
        })*
    };
}

named! {
    HandlerResult: "value" Self::Value, "error" Self::Error, "stopped" Self::Stopped, "panicked" Self::Panicked;
    Option<AfterCancel>: "wait" Some(AfterCancel::WaitForPeer), "return" Some(AfterCancel::ReturnNow), "usual" None;
    Declared: "both" Self::PerSide, "ours" Self::Ours, "peers" Self::Peers, "neither" Self::Neither;
    AnswerKind: "value" Self::Value, "cancelled" Self::Cancelled, "error" Self::Error;
    DisconnectPolicy: "cancel" Self::CancelNow, "detach" Self::Detach, "keep" Self::Keep;
}

macro_rules! numbers {
    ($($part:ty),*) => {
        $(impl Part for $part {
            fn text(&self) -> String {
                self.to_string()
            }

            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        })*
    };
}

numbers!(u8, u64);

impl Part for CallKey {
    fn text(&self) -> String {
        format!("{}.{}", self.slot, self.generation)
    }

    fn read(text: &str) -> Option<Self> {
        let (slot, generation) = text.split_once('.')?;
        Some(Self { slot: slot.parse().ok()?, generation: generation.parse().ok()? })
    }
}

impl Part for InboundKey {
    fn text(&self) -> String {
        self.0.text()
    }

    fn read(text: &str) -> Option<Self> {
        CallKey::read(text).map(Self)
    }
}

impl Part for OutboundKey {
    fn text(&self) -> String {
        self.0.text()
    }

    fn read(text: &str) -> Option<Self> {
        CallKey::read(text).map(Self)
    }
}

impl Part for Option<InboundKey> {
    fn text(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), Part::text)
    }

    fn read(text: &str) -> Option<Self> {
        if text == "none" { Some(None) } else { InboundKey::read(text).map(Some) }
    }
}

macro_rules! words {
    ($($name:literal ($($part:ident),*) { $($input:tt)+ })*) => {
        impl Input {
            /// Its first word in a [`Trace`].
            #[must_use]
            pub const fn word(self) -> &'static str {
                #[expect(unused_variables, reason = "the parts are no part of it")]
                match self {
                    $($($input)+ => $name,)*
                }
            }
        }

        /// The words of all inputs.
        pub const WORDS: &[&str] = &[$($name),*];

        fn write(input: Input) -> String {
            match input {
                $($($input)+ => {
                    let parts: &[String] = &[$name.to_owned() $(, $part.text())*];
                    parts.join(":")
                })*
            }
        }

        fn read(word: &str) -> Option<Input> {
            let mut parts = word.split(':');
            let input = match parts.next()? {
                $($name => {
                    $(let $part = Part::read(parts.next()?)?;)*
                    $($input)+
                })*
                _ => return None,
            };
            parts.next().is_none().then_some(input)
        }
    };
}

words! {
    "request" (id) { Input::Request(id) }
    "hello" () { Input::Hello }
    "request-over" () { Input::RequestOver }
    "request-exempt" () { Input::RequestExempt }
    "agreed" (declared) { Input::Agreed(declared) }
    "cancel" (id) { Input::Cancel(id) }
    "cancel-hello" () { Input::CancelHello }
    "cancel-by-stranger" () { Input::CancelByStranger }
    "cancel-by-nobody" () { Input::CancelByNobody }
    "cancel-elsewhere" () { Input::CancelElsewhere }
    "bad" () { Input::Bad }
    "bad-request" () { Input::BadRequest }
    "cancel-nothing" () { Input::CancelNothing }
    "offer" (key, end) { Input::Offer(key, end) }
    "ended" (key) { Input::Ended(key) }
    "become-task" (key) { Input::BecomeTask(key) }
    "shield" (key) { Input::Shield(key) }
    "unshield" (key) { Input::Unshield(key) }
    "local-cancel" (key) { Input::LocalCancel(key) }
    "deadline" (key) { Input::Deadline(key) }
    "stale" (key) { Input::Stale(key) }
    "stream-lost" (key) { Input::StreamLost(key) }
    "stream-back" (key) { Input::StreamBack(key) }
    "call" (parent) { Input::Call(CallInput::Make(parent)) }
    "call-within" () { Input::Call(CallInput::MakeWithin) }
    "adopt" (key) { Input::Call(CallInput::Adopt(key)) }
    "release" (child) { Input::Call(CallInput::Release(child)) }
    "detach" (key) { Input::Call(CallInput::Detach(key)) }
    "written" (key) { Input::Call(CallInput::Written(key)) }
    "cancel-call" (key, after) { Input::Call(CallInput::Cancel(key, after)) }
    "cancel-written" (key) { Input::Call(CallInput::CancelWritten(key)) }
    "answer" (key, kind) { Input::Call(CallInput::Answer(key, kind)) }
    "acked" (key) { Input::Call(CallInput::Acked(key)) }
    "acked-not" (key) { Input::Call(CallInput::AckedNot(key)) }
    "call-failed" (key) { Input::Call(CallInput::Failed(key)) }
    "exchange-failed" (key) { Input::Call(CallInput::ExchangeFailed(key)) }
    "cancel-failed" (key) { Input::Call(CallInput::CancelFailed(key)) }
    "late-answer" () { Input::Call(CallInput::LateAnswer) }
    "half-close" () { Input::HalfClose }
    "lost" (lost) { Input::Lost(lost) }
    "idle" () { Input::Idle }
    "advance" () { Input::Advance }
    "shutdown" () { Input::Shutdown }
    "time" () { Input::Time }
    "wait" () { Input::Wait }
}
