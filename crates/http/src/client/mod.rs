//! The client that all bindings share.

mod authorization;
mod client_core;
mod connector;
pub(crate) mod events;
mod location;
mod pool;
mod refusal;
mod requester;
mod resend;
mod response_body;

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use rescind_core::{TransportError, TransportErrorKind};

pub use authorization::Authorization;
pub(crate) use client_core::{
    AbortOnDrop, ClientCore, DeleteRequest, Guarded, InFlightTasks, closed, send_delete,
};
pub(crate) use connector::Resets;
pub(crate) use events::EventStream;
pub(crate) use events::{Media, media_of};
pub(crate) use location::resolve;
pub(crate) use refusal::{beginning, encoded, encoding_of, is_of_another_origin, refusal, stream_refusal};
pub(crate) use requester::{Attempts, Failed, Leaving, Requester};
pub(crate) use resend::{is_same_origin, kept, not_kept};
pub(crate) use response_body::{ResponseBody, unread};

/// The URL and the options of a client. Each binding's client takes one.
///
/// A request that is redirected (301, 302, 307, 308) is sent again, with its method and body, over 5 redirects at most, but never
/// from `https` to `http`. One that gets 429 or 503 with a `Retry-After` of at most 10 s is sent once more after that
/// time. A call that is cancelled meanwhile is not sent again.
///
/// `http` URLs use HTTP/1.1, or HTTP/2 with [`http2`](Self::http2). `https` URLs use HTTP/2 if the server supports it,
/// else HTTP/1.1.
///
/// ```
/// use rescind_http::{HttpClient, StreamableTransport};
///
/// # fn main() -> Result<(), rescind_core::TransportError> {
/// let client = HttpClient::new("http://127.0.0.1:8000/mcp")?.header("Authorization", "Bearer a-secret")?;
/// let transport = StreamableTransport::new(client); // for `Peer::builder(..).connect(transport)`
/// # drop(transport);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a client does nothing until it is given to a binding's transport"]
pub struct HttpClient {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) authorization: Option<Authorization>,
    pub(crate) http2: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_frame: usize,
    #[cfg(feature = "rustls")]
    pub(crate) tls: crate::ClientTls,
    #[cfg(feature = "verify")]
    pub(crate) dial: Option<crate::test_io::Dial>,
}

impl HttpClient {
    /// A client for this URL.
    ///
    /// # Errors
    /// It is not an `http` or `https` URL, or it is `https` and the feature `rustls` is off.
    pub fn new(url: &str) -> Result<Self, TransportError> {
        let uri: Uri = url.parse().map_err(refused)?;
        match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(_)) => {}
            (Some("https"), Some(_)) if cfg!(feature = "rustls") => {}
            (Some("https"), Some(_)) => return Err(refused("https needs the feature `rustls`")),
            _ => return Err(refused("this is no http:// or https:// URL")),
        }
        Ok(Self {
            uri,
            headers: HeaderMap::new(),
            authorization: None,
            http2: false,
            connect_timeout: Duration::from_secs(10),
            max_frame: 16 * 1024 * 1024,
            #[cfg(feature = "rustls")]
            tls: crate::ClientTls::system(),
            #[cfg(feature = "verify")]
            dial: None,
        })
    }

    /// Sends this header with each request. Its value is never logged. If the server redirects a request to another
    /// server, that one does not get it.
    ///
    /// # Errors
    /// The name or the value is not valid in a header.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, TransportError> {
        let name: HeaderName = name.parse().map_err(refused)?;
        let mut value: HeaderValue = value.parse().map_err(refused)?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(self)
    }

    /// Sends this value as `Authorization`, instead of a [`header`](Self::header) of that name. It can change later.
    pub fn authorization(mut self, authorization: &Authorization) -> Self {
        self.authorization = Some(authorization.clone());
        self
    }

    /// Uses HTTP/2 from the first byte, with all requests on one connection.
    pub const fn http2(mut self) -> Self {
        self.http2 = true;
        self
    }

    /// The time in which a connection must open. Default: 10 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The largest message in both directions, in bytes. Default: 16 MiB.
    pub const fn max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes;
        self
    }

    /// Uses these streams instead of sockets.
    #[cfg(feature = "verify")]
    pub fn dial<S: crate::GivenStream + 'static>(
        mut self,
        dial: impl Fn() -> std::io::Result<S> + Send + Sync + 'static,
    ) -> Self {
        let dial = move || dial().map(|stream| Box::new(stream) as Box<dyn crate::GivenStream>);
        self.dial = Some(crate::test_io::Dial(std::sync::Arc::new(dial)));
        self
    }

    /// The authorities that the client trusts, and the certificate that it presents. Default:
    /// [`ClientTls::system`](crate::ClientTls::system).
    #[cfg(feature = "rustls")]
    pub fn tls(mut self, tls: crate::ClientTls) -> Self {
        self.tls = tls;
        self
    }
}

/// Host and port of the URL, without user and password, which must not be logged.
fn peer_of(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    uri.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TransportError {
    TransportError::new(TransportErrorKind::Open, error)
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient")
            .field("peer", &peer_of(&self.uri))
            .field("http2", &self.http2)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_and_password_of_a_url_are_not_shown() {
        let client = HttpClient::new("http://someone:secret@127.0.0.1:7/mcp").unwrap();
        for shown in [
            format!("{client:?}"),
            format!("{:?}", Requester::new(&client, &crate::inbound_queue::InboundQueue::new(1024))),
        ] {
            assert!(shown.contains("127.0.0.1:7") && !shown.contains("secret"), "{shown}");
        }
    }
}
