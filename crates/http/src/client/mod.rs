//! The client that all bindings share: its URL and options, and the state that the tasks of a client share in every
//! binding: the requester, the inbound queue, one lock, and how the client leaves.

mod connector;
pub(crate) mod events;
mod fetch;
mod pool;
mod requester;
mod resend;

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_body::Body;
use rescind_core::{
    Capabilities, Deviation, ExchangeId, FrameKind, Link, PeerInfo, Sender, TransportError,
    TransportErrorKind, TransportEvent,
};
use tokio::sync::Notify;

use crate::envelope::{CollectError, whole_message};
use crate::inbound_queue::{InboundQueue, InboundReceiver};
use crate::sync::{AbortHandle, Handle, JoinHandle, Mutex, MutexGuard, spawn};

pub(crate) use crate::client::connector::Resets;
pub(crate) use crate::client::events::{Event, EventStream, Fault, Media, is_object, media_of};
pub(crate) use crate::client::pool::{ResponseBody, body_error};
pub(crate) use crate::client::requester::{
    Attempts, Failed, Leaving, Requester, beginning, encoded, encoding_of, is_of_another_origin,
    push_excerpt, refusal, stream_refusal,
};
pub use crate::client::resend::{Authorization, CredentialRefusal};
pub(crate) use crate::client::resend::{is_same_origin, kept, not_kept, resolve};
pub(crate) use crate::envelope::BEGINNING;

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
    pub(crate) dial: Option<connector::Dial>,
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
        self.dial = Some(connector::Dial(std::sync::Arc::new(dial)));
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

/// How long the client waits for the response to its last DELETE.
const DELETE_TIMEOUT: Duration = Duration::from_secs(1);

/// The client of a binding, whose own state is `S`.
pub(crate) struct ClientCore<S> {
    pub(crate) requester: Requester,
    pub(crate) inbound_queue: Arc<InboundQueue>,
    pub(crate) max_frame: usize,
    state: Mutex<Guarded<S>>,
}

/// The data behind the lock: the state of the binding, and the common state.
pub(crate) struct Guarded<S> {
    binding: S,
    /// Whether the client has closed: nothing is sent any more.
    pub(crate) closed: bool,
    /// Set while the driver waits for room, or for the end.
    pub(crate) driver: Option<Waker>,
}

/// The state of a binding, with the tasks that are in flight.
pub(crate) trait InFlightTasks {
    /// Tasks that end when this value is dropped.
    type Tasks;

    /// Takes all tasks of the client out of the state.
    fn take_tasks(&mut self) -> Self::Tasks;
}

impl<S: InFlightTasks> ClientCore<S> {
    pub(crate) fn new(client: &HttpClient, binding: S) -> Self {
        let inbound_queue = InboundQueue::new(client.max_frame);
        Self {
            requester: Requester::new(client, &inbound_queue),
            inbound_queue,
            max_frame: client.max_frame,
            state: Mutex::new(Guarded { binding, closed: false, driver: None }),
        }
    }

    /// The link of this client.
    pub(crate) fn link(&self, sender: impl Sender + 'static, exchange_scoped: bool, peer: PeerInfo) -> Link {
        let capabilities = Capabilities {
            ordered: false,
            opens_exchanges: true,
            exchange_scoped,
            // The dialect decides which revision has them.
            batches: true,
            max_frame: self.max_frame,
        };
        Link::new(InboundReceiver(Arc::clone(&self.inbound_queue)), sender, capabilities, peer)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Guarded<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one step under the lock, then wakes the driver.
    pub(crate) fn step<T>(&self, step: impl FnOnce(&mut Guarded<S>) -> T) -> T {
        let (result, driver) = {
            let mut state = self.state();
            let result = step(&mut state);
            (result, state.driver.take())
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// Waits until this holds. `moved` is notified when it may have changed.
    pub(crate) async fn until(&self, moved: &Notify, holds: impl Fn(&Guarded<S>) -> bool) {
        loop {
            let moved = moved.notified();
            if holds(&self.state()) {
                return;
            }
            moved.await;
        }
    }

    /// Passes on that a POST has failed. If it is no request, nobody waits for its end.
    pub(crate) fn report(&self, exchange: ExchangeId, asks: bool, Failed { sent, error }: Failed) {
        if asks {
            self.inbound_queue.push_event(TransportEvent::ExchangeFailed { exchange, sent, error });
        } else {
            tracing::debug!(error = %rescind_core::LogText::text(&error), "a message was not taken");
        }
    }

    /// Reads the body of a response to its end. A whole message that has no end is counted and taken: after 1 s, or when the body
    /// breaks off.
    pub(crate) async fn whole_message<B: Body<Data = Bytes> + Unpin>(
        &self,
        body: &mut B,
    ) -> Result<Bytes, CollectError<B::Error>> {
        let (read, has_end) = match whole_message(body, self.max_frame).await {
            Err(CollectError::Broken(_, read)) if is_object(&read) => (read, false),
            read => read?,
        };
        if !has_end && matches!(read.first(), Some(b'{' | b'[')) {
            let (deviation, sent) = (Deviation::Unended, read.clone());
            self.inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
        }
        Ok(read)
    }

    /// Counts a response that does not answer its request.
    pub(crate) fn count_unanswered(&self, failed: Failed) -> Failed {
        self.inbound_queue.push_event(TransportEvent::Deviation {
            deviation: Deviation::NoAnswer,
            sent: failed.error.source.to_string().into(),
        });
        failed
    }

    /// Counts the refusal of a message that is not a request.
    pub(crate) fn refused(&self, failed: &Failed) {
        self.inbound_queue.push_event(TransportEvent::Deviation {
            deviation: Deviation::Refused,
            sent: failed.error.source.to_string().into(),
        });
    }

    /// Counts a message that is not a request and may be lost: its POST failed before a response came.
    pub(crate) fn count_if_lost<T>(&self, kind: FrameKind, sent: Result<T, Failed>) -> Result<T, Failed> {
        sent.inspect_err(|failed| {
            if kind != FrameKind::Request && !failed.is_stopped() {
                self.refused(failed);
            }
        })
    }

    /// Reads the response to a message that needs no answer. A page is counted: it may be that of a login, and not of the server.
    pub(crate) async fn read_unasked(&self, head: &Parts, body: ResponseBody) {
        let read = beginning(body, BEGINNING).await.0;
        self.note_page(&read, || refusal(head, &self.requester.address(), &read));
    }

    /// Counts a page in the response to a message that needs no answer.
    pub(crate) fn note_page(&self, body: &[u8], shown: impl FnOnce() -> String) {
        if is_page(body) {
            let (deviation, sent) = (Deviation::Unaccepted, shown().into());
            self.inbound_queue.push_event(TransportEvent::Deviation { deviation, sent });
        }
    }

    /// Ends the link: the server does not know the client any more, or cannot be reached.
    pub(crate) fn lose(&self, why: &'static str) {
        self.inbound_queue.fail(TransportError::new(TransportErrorKind::Closed, why));
    }

    /// Ends all tasks. Nothing is sent any more.
    pub(crate) fn close(&self) {
        drop(self.take_tasks());
    }

    /// Closes the client, so that nothing is sent any more, and returns the remaining tasks. The caller ends them.
    pub(crate) fn take_tasks(&self) -> S::Tasks {
        let tasks = self.step(|state| {
            state.closed = true;
            state.take_tasks()
        });
        self.inbound_queue.end();
        tasks
    }
}

impl<S> Deref for Guarded<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.binding
    }
}

impl<S> DerefMut for Guarded<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.binding
    }
}

/// Whether a response of success to a message that needs no answer may have a page. With 202 the server has taken the message,
/// whatever the body is.
pub(crate) fn may_have_page(head: &Parts, body: &ResponseBody) -> bool {
    head.status != StatusCode::ACCEPTED && !body.is_end_stream()
}

/// Whether a body is HTML or XML, and so nothing that a server of a protocol in JSON sends on purpose.
pub(crate) fn is_page(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"<")
}

/// The error for a frame that comes after the end.
pub(crate) fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "the link is closed")
}

/// Tasks that end when this value is dropped.
pub(crate) struct AbortOnDrop(Vec<AbortHandle>);

impl FromIterator<AbortHandle> for AbortOnDrop {
    fn from_iter<I: IntoIterator<Item = AbortHandle>>(tasks: I) -> Self {
        Self(tasks.into_iter().collect())
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// The DELETE with which a client leaves. It is sent once.
#[derive(Default)]
pub(crate) struct DeleteRequest(Option<JoinHandle<()>>);

impl DeleteRequest {
    pub(crate) const fn is_sent(&self) -> bool {
        self.0.is_some()
    }

    /// Sends the DELETE if it is not sent yet, and waits for its response, for at most one second.
    pub(crate) fn poll(
        &mut self,
        delete: impl FnOnce() -> (Requester, HeaderMap),
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let sent = self.0.get_or_insert_with(|| {
            let (requester, headers) = delete();
            spawn(send_delete(requester, headers))
        });
        ready!(Pin::new(sent).poll(cx)).ok();
        Poll::Ready(())
    }

    /// The runtime on which to send the DELETE for a client that was dropped without being closed. Without the DELETE,
    /// its server would wait for the client to return.
    pub(crate) fn unsent(&self) -> Option<Handle> {
        Handle::try_current().ok().filter(|_| !self.is_sent())
    }
}

/// Informs the server that the client leaves.
pub(crate) async fn send_delete(requester: Requester, headers: HeaderMap) {
    let end = requester.send(Method::DELETE, headers, Bytes::new());
    match tokio::time::timeout(DELETE_TIMEOUT, end).await {
        Ok(Ok(response)) => tracing::trace!(status = %response.status(), "the server confirmed the end"),
        Ok(Err(failed)) => {
            tracing::debug!(error = %rescind_core::LogText::text(&failed.error), "the end could not be sent to the server");
        }
        Err(_) => tracing::debug!("the server did not confirm the end in time"),
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
