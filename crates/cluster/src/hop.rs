//! Messages from one node to another, over HTTP/2 on the port that also serves clients.
//!
//! A header shows the other node that a message is of their cluster. It carries a signature of itself, the method, the
//! path and the named session, with the secret that both have. The secret is never sent. A message without a valid
//! signature is refused, and so is one for another node. Who can read the traffic between nodes can repeat a message,
//! which does no more than the message did: use TLS where that traffic can be read.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use rescind_core::TaskPosition;
use serde::{Deserialize, Serialize};

use crate::names::NodeName;
use crate::pool::{NodeBody, Pool, Unsent};
use crate::secret::{Purpose, Secret};

/// The header.
pub(crate) const HOP: HeaderName = HeaderName::from_static("rescind-hop");
/// The sender of a message that is no node, such as a command that cancels.
const NO_NODE: &str = "-";
const NO_ADDRESS: &str = "-";

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopKind {
    /// A request of a client for a session of the receiver.
    Forward,
    /// Asks which node this is.
    Hello,
    /// Asks what the program says of itself.
    Status,
    /// Records a signal.
    Signal,
    /// Waits for a signal.
    Watch,
    /// Asks about tasks of the receiver, or cancels one.
    Task,
}

const KINDS: [(HopKind, &str); 6] = [
    (HopKind::Forward, "forward"),
    (HopKind::Hello, "hello"),
    (HopKind::Status, "status"),
    (HopKind::Signal, "signal"),
    (HopKind::Watch, "watch"),
    (HopKind::Task, "task"),
];

impl HopKind {
    fn name(self) -> &'static str {
        KINDS.into_iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    fn parse(name: &str) -> Option<Self> {
        KINDS.into_iter().find(|(_, known)| *known == name).map(|(kind, _)| kind)
    }
}

/// The answer to a hello.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) node: String,
    pub(crate) incarnation: String,
}

/// A signal for the node that holds what it is about.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SignalMessage {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) value: String,
    #[serde(default)]
    pub(crate) keep_ms: u64,
}

/// A question about tasks of the node that gets it. The answer about one task is its record, or null.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum TaskMessage {
    /// What is known of this task.
    Tell(String),
    /// Its client cancels it.
    Cancel(String),
    /// The tasks of this principal after that place.
    List(String, Option<TaskPosition>),
}

/// The content of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) kind: HopKind,
    /// `None`: the sender is no node.
    pub(crate) from: Option<NodeName>,
    /// The receiver. `None`: whoever is at the address. Only for [`HopKind::Hello`].
    pub(crate) to: Option<NodeName>,
    /// The address of the client whose request it is.
    pub(crate) client: Option<IpAddr>,
}

/// The parts of a message that its signature covers, in addition to the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    /// The session of a request, or the body of a signal.
    pub(crate) subject: &'a [u8],
}

impl Hop {
    fn unsigned(&self) -> String {
        let node = |name: &Option<NodeName>| name.as_ref().map_or(NO_NODE, NodeName::as_str).to_owned();
        let client = self.client.map_or(NO_ADDRESS.to_owned(), |client| client.to_string());
        format!("v1;{};{};{};{client}", self.kind.name(), node(&self.from), node(&self.to))
    }

    /// Adds the header to a message.
    pub(crate) fn put(&self, secret: &Secret, about: About<'_>, headers: &mut HeaderMap) {
        let unsigned = self.unsigned();
        let signature = secret.sign(Purpose::Hop, &about.parts(&unsigned));
        if let Ok(value) = HeaderValue::try_from(format!("{unsigned};{signature}")) {
            headers.insert(HOP, value);
        }
    }

    /// Takes the header out of a message for `own`. `None`: there is none. An error: it is not signed by this cluster, or
    /// for another node.
    pub(crate) fn take(headers: &mut HeaderMap) -> Option<Result<Unverified, NotOurs>> {
        let mut values = headers.get_all(HOP).into_iter();
        let value = values.next()?;
        let read = value.to_str().ok().filter(|_| values.next().is_none()).and_then(Unverified::parse);
        headers.remove(HOP);
        Some(read.ok_or(NotOurs))
    }
}

impl About<'_> {
    fn parts<'a>(&'a self, unsigned: &'a str) -> [&'a [u8]; 4] {
        let path = self.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str);
        [unsigned.as_bytes(), self.method.as_str().as_bytes(), path.as_bytes(), self.subject]
    }
}

/// A message that is not of this cluster, or not for this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotOurs;

/// The content of a header whose signature is not checked yet.
#[derive(Clone, Debug)]
pub(crate) struct Unverified {
    hop: Hop,
    unsigned: String,
    signature: String,
}

impl Unverified {
    fn parse(text: &str) -> Option<Self> {
        let (unsigned, signature) = text.rsplit_once(';')?;
        let parts: Vec<&str> = unsigned.split(';').collect();
        let ["v1", kind, from, to, client] = *parts.as_slice() else { return None };
        let node = |name: &str| match name {
            NO_NODE => Some(None),
            name => name.parse().ok().map(Some),
        };
        let hop = Hop {
            kind: HopKind::parse(kind)?,
            from: node(from)?,
            to: node(to)?,
            client: if client == NO_ADDRESS { None } else { Some(client.parse().ok()?) },
        };
        Some(Self { hop, unsigned: unsigned.to_owned(), signature: signature.to_owned() })
    }

    /// What it says it is. It decides what else the signature covers.
    pub(crate) const fn kind(&self) -> HopKind {
        self.hop.kind
    }

    /// Checks the signature and the receiver.
    pub(crate) fn verify(self, secret: &Secret, own: &NodeName, about: About<'_>) -> Result<Hop, NotOurs> {
        let is_signed = secret.is_signed(Purpose::Hop, &about.parts(&self.unsigned), &self.signature);
        let is_for_us = match &self.hop.to {
            Some(to) => to == own,
            None => self.hop.kind == HopKind::Hello,
        };
        if is_signed && is_for_us { Ok(self.hop) } else { Err(NotOurs) }
    }
}

/// Why a message got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("nobody listens at its address")]
    Refused,
    #[error("{0}")]
    Other(String),
}

/// Sends a message to a node that is no request of a client.
pub(crate) async fn send(
    pool: &Pool,
    secret: &Secret,
    from: Option<&NodeName>,
    kind: HopKind,
    to: Option<&NodeName>,
    url: &Uri,
    body: Vec<u8>,
) -> Result<Response<NodeBody>, Failed> {
    let hop = Hop { kind, from: from.cloned(), to: to.cloned(), client: None };
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url.clone();
    let about = About { method: &Method::POST, uri: url, subject: &body };
    hop.put(secret, about, request.headers_mut());
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
    pool.send(url, request.map(|()| body)).await.map_err(|why| match why {
        Unsent::Refused(_) => Failed::Refused,
        Unsent::Unreachable(_, error) => Failed::Other(error.to_string()),
        Unsent::Lost(error) => Failed::Other(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about<'a>(method: &'a Method, uri: &'a Uri, subject: &'a [u8]) -> About<'a> {
        About { method, uri, subject }
    }

    fn hop(kind: HopKind, to: Option<&str>) -> Hop {
        Hop {
            kind,
            from: Some("n1".parse().unwrap()),
            to: to.map(|to| to.parse().unwrap()),
            client: Some(IpAddr::from([192, 0, 2, 7])),
        }
    }

    #[test]
    fn only_the_message_that_was_signed_is_accepted() {
        let (secret, other) = (Secret::new(*b"0123456789abcdef").unwrap(), Secret::of_loopback());
        let (uri, elsewhere) = (Uri::from_static("/mcp?a=1"), Uri::from_static("/mcp?a=2"));
        let (own, another) = ("n2".parse().unwrap(), "n3".parse().unwrap());
        let sent = hop(HopKind::Forward, Some("n2"));
        let mut headers = HeaderMap::new();
        sent.put(&secret, about(&Method::POST, &uri, b"session"), &mut headers);
        let taken = |headers: &HeaderMap| Hop::take(&mut headers.clone()).unwrap();
        let verified = |secret: &Secret, own: &NodeName, method: &Method, uri: &Uri, subject: &[u8]| {
            taken(&headers).unwrap().verify(secret, own, about(method, uri, subject))
        };
        assert_eq!(verified(&secret, &own, &Method::POST, &uri, b"session"), Ok(sent));
        assert_eq!(verified(&other, &own, &Method::POST, &uri, b"session"), Err(NotOurs));
        assert_eq!(verified(&secret, &another, &Method::POST, &uri, b"session"), Err(NotOurs));
        assert_eq!(verified(&secret, &own, &Method::GET, &uri, b"session"), Err(NotOurs));
        assert_eq!(verified(&secret, &own, &Method::POST, &elsewhere, b"session"), Err(NotOurs));
        assert_eq!(verified(&secret, &own, &Method::POST, &uri, b"another"), Err(NotOurs));
        let mut twice = headers.clone();
        twice.append(HOP, headers[HOP].clone());
        assert!(taken(&twice).is_err(), "one is meant");
        for text in [
            "",
            "v1",
            "v1;forward;n1;n2;-",
            "v1;other;n1;n2;-;00",
            "v2;forward;n1;n2;-;00",
            "v1;forward;n1;n2;x;00",
        ] {
            let headers = HeaderMap::from_iter([(HOP, HeaderValue::from_static(text))]);
            let read =
                taken(&headers).and_then(|read| read.verify(&secret, &own, about(&Method::POST, &uri, b"")));
            assert_eq!(read, Err(NotOurs), "{text}");
        }
        assert!(Hop::take(&mut HeaderMap::new()).is_none());
    }

    #[test]
    fn only_a_hello_needs_no_receiver() {
        let secret = Secret::of_loopback();
        let (uri, own) = (Uri::from_static("/"), "n2".parse().unwrap());
        for (kind, accepted) in [(HopKind::Hello, true), (HopKind::Signal, false), (HopKind::Forward, false)]
        {
            let mut headers = HeaderMap::new();
            let about = about(&Method::POST, &uri, b"");
            hop(kind, None).put(&secret, about, &mut headers);
            let read = Hop::take(&mut headers).unwrap().unwrap().verify(&secret, &own, about);
            assert_eq!(read.is_ok(), accepted, "{kind:?}");
        }
    }
}
