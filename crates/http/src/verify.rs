//! Internals of this crate for the verification engines, as plain values. This module is not part of the crate's
//! interface and may change at any time.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use rescind_core::MCP_OPENING;
use rescind_net::{HostPolicy, OriginPolicy};

use crate::acp::verify as acp;
use crate::client::events::{Event, Events, Read};
use crate::envelope::Envelope;
use crate::server::checks::{self, HeadFields};
use crate::server::replay_buffer;
use crate::stateless::verify as stateless;

/// An event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadEvent {
    /// Its name.
    pub name: Option<String>,
    /// Its id.
    pub id: Option<String>,
    /// How long to wait before the stream is resumed.
    pub retry: Option<Duration>,
    /// Its data.
    pub data: Bytes,
}

impl From<Event> for ReadEvent {
    fn from(event: Event) -> Self {
        Self { name: event.name, id: event.id, retry: event.retry, data: event.data }
    }
}

/// The client's reader of event streams.
#[derive(Debug)]
pub struct EventReader(Events);

impl EventReader {
    /// A reader for events with at most `most` bytes of data.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Events::new(most))
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// The next event, if it is complete. `Some(None)`: an event above the limit.
    pub fn next_event(&mut self) -> Option<Option<ReadEvent>> {
        Some(match self.0.next()? {
            Read::Event(event) => Some(ReadEvent::from(event)),
            Read::TooLarge(_) => None,
        })
    }

    /// The last event, if the stream ended before it did and its message is whole.
    pub fn finish(&mut self) -> Option<ReadEvent> {
        self.0.finish().map(ReadEvent::from)
    }

    /// The bytes that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held()
    }
}

/// An event in the form that the server writes.
#[must_use]
pub fn event(id: Option<(u64, u64)>, data: &[u8]) -> Bytes {
    replay_buffer::event(id, data)
}

/// The event that gives a client an id for resuming the stream.
#[must_use]
pub fn priming(id: (u64, u64), retry: Option<Duration>) -> Bytes {
    replay_buffer::priming(id, retry)
}

/// The stream and the number that a `Last-Event-ID` names.
#[must_use]
pub fn parse_id(id: &str) -> Option<(u64, u64)> {
    replay_buffer::parse_id(id)
}

/// The head and the body of a request.
#[derive(Clone, Debug)]
pub struct Asked {
    uri: Uri,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Asked {
    /// `None`: HTTP does not allow the target or a header.
    #[must_use]
    pub fn new(target: &str, fields: &[(&str, &[u8])], body: &[u8]) -> Option<Self> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(value).ok()?);
        }
        Some(Self { uri: target.parse().ok()?, headers, body: body.to_owned() })
    }

    fn fields(&self) -> HeadFields<'_> {
        HeadFields::of(&self.headers)
    }

    /// The host and port of the target, if it has one.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        self.uri.authority().map(http::uri::Authority::as_str)
    }

    /// Whether a server that only serves loopback names serves the host.
    #[must_use]
    pub fn is_for_us(&self) -> bool {
        checks::host(&self.uri, &self.fields(), &HostPolicy::default()).is_ok()
    }

    /// Whether a server that is bound to all addresses serves the host.
    #[must_use]
    pub fn is_for_an_address(&self) -> bool {
        let mut hosts = HostPolicy::default();
        hosts.bound_to(std::net::Ipv4Addr::UNSPECIFIED.into());
        checks::host(&self.uri, &self.fields(), &hosts).is_ok()
    }

    /// Whether its `Origin` passes when only pages of loopback and of the host itself are allowed, for any host.
    #[must_use]
    pub fn origin_passes(&self) -> bool {
        let mut any = HostPolicy::default();
        any.allow_any();
        let host = checks::host(&self.uri, &self.fields(), &any);
        host.is_ok_and(|host| OriginPolicy::default().check_head(&self.headers, &host).is_ok())
    }

    /// Whether its body is JSON in UTF-8.
    #[must_use]
    pub fn says_json(&self) -> bool {
        checks::content_type(&self.fields()).is_ok()
    }

    /// Whether it accepts both JSON and event streams, and whether it accepts event streams.
    #[must_use]
    pub fn accepts(&self) -> (bool, bool) {
        (checks::accepts_both(&self.fields()).is_ok(), checks::accepts_events(&self.fields()).is_ok())
    }

    /// What the binding `streamable` reads from the body.
    #[must_use]
    pub fn peeked(&self) -> Peeked {
        let read = Envelope::of(&self.body);
        let _ = read.result_text("protocolVersion");
        Peeked {
            opens: read.is_request_of(&[MCP_OPENING]),
            asks: read.is_request(),
            answers: read.is_answer(),
            answers_one: read.has_id() && read.is_answer(),
        }
    }

    /// What the binding `acp` reads from the body. `None`: the body is not valid.
    #[must_use]
    pub fn acp(&self) -> Option<AcpPeeked> {
        let (opens, is_request, is_answer, session) = acp::peek(&self.body)?;
        Some(AcpPeeked { opens, is_request, is_answer, session })
    }

    /// Whether the headers match the body, as the binding `stateless` requires.
    #[must_use]
    pub fn headers_fit(&self) -> bool {
        stateless::fits(&self.headers, &self.body)
    }

    /// Whether the two readers of the binding `stateless` read the same from the body.
    #[must_use]
    pub fn reads_agree(&self) -> bool {
        stateless::reads_agree(&self.body)
    }

    /// The same request with the headers that mirror its body. `None`: the body is not a message of that binding.
    #[must_use]
    pub fn mirrored(&self) -> Option<Self> {
        let headers = stateless::mirrored(&self.body)?;
        Some(Self { headers, ..self.clone() })
    }
}

/// What the binding `streamable` reads from a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is the answer to one question")]
pub struct Peeked {
    /// It opens a session.
    pub opens: bool,
    /// It expects an answer.
    pub asks: bool,
    /// It is an answer.
    pub answers: bool,
    /// It answers a request that it names.
    pub answers_one: bool,
}

/// What the binding `acp` reads from a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcpPeeked {
    /// It opens a connection.
    pub opens: bool,
    /// It expects an answer.
    pub is_request: bool,
    /// It is an answer.
    pub is_answer: bool,
    /// The session that its params name.
    pub session: Option<String>,
}

/// A value, encoded if a header cannot contain it as it is.
#[must_use]
pub fn encode_name(name: &str) -> String {
    stateless::encode_name(name)
}

/// The decoded value of a header.
#[must_use]
pub fn decode_name(value: &str) -> Option<String> {
    stateless::decode_name(value)
}
