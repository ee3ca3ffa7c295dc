//! The event streams: one for the connection and one for each session (B2).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderValue, Method, StatusCode};
use rescind_core::Inbound;

use crate::acp::message::Message;
use crate::acp::state::Client;
use crate::acp::state::Position;
use crate::client::{EventStream, ResponseBody};
use crate::headers::{EVENT_STREAM, LAST_EVENT_ID};

/// The most streams of one client: those of its sessions and the connection's own.
const STREAMS: usize = 1024;
/// The most requests from the server whose session is remembered.
const ASKED: usize = 65_536;
/// The wait before a stream that ended is opened again.
const RETRY: Duration = Duration::from_millis(50);
/// The longest wait before a stream that was refused is requested again.
const REFUSED: Duration = Duration::from_secs(2);
/// After this many failed attempts in a row, the connection counts as lost.
const ATTEMPTS: usize = 20;

impl Client {
    /// Opens the stream of a session, or of the connection, if it is not open.
    pub(super) fn listen(self: &Arc<Self>, session: Option<&str>) {
        let mut state = self.state();
        let name = session.unwrap_or_default();
        if state.closed || state.sessions.len() >= STREAMS || !state.sessions.insert(name.to_owned()) {
            return;
        }
        let (client, session) = (Arc::clone(self), session.map(ToOwned::to_owned));
        state.streams.spawn(async move { client.read_stream(session).await });
    }

    /// Reads a stream until the connection ends (B2).
    async fn read_stream(self: Arc<Self>, session: Option<String>) {
        let mut position = Position::default();
        let mut failed_attempts = 0;
        let mut refused_wait = RETRY;
        loop {
            // This wait starts before the stream is requested: the message that names the session may be sent at the
            // same time.
            let mut taken = pin!(self.moved.notified());
            taken.as_mut().enable();
            let mut headers = self.headers(session.as_deref());
            headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
            headers.extend(position.header().map(|last| (LAST_EVENT_ID, last)));
            match self.send(Method::GET, headers, Bytes::new()).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    failed_attempts = 0;
                    refused_wait = RETRY;
                    position.opened();
                    self.read(response.into_body(), session.as_deref(), &mut position).await;
                }
                // The missed events are lost, but new ones can still be read.
                Ok(response) if position.was_refused(response.status()) => {
                    tracing::debug!(status = %response.status(), "a stream could not be resumed");
                    continue;
                }
                // For a session's stream, 404 may mean that the server knows the session only after it is loaded. The
                // connection's own stream reports a connection that has ended.
                Ok(response) if response.status() == StatusCode::NOT_FOUND && session.is_none() => {
                    self.lose("the server does not know the connection any more");
                    return;
                }
                Ok(response) => {
                    tracing::debug!(status = %response.status(), "a stream was refused");
                    let wait = tokio::time::timeout(refused_wait, taken);
                    refused_wait = (refused_wait * 2).min(REFUSED);
                    if wait.await.is_ok() && response.status() == StatusCode::NOT_FOUND {
                        continue;
                    }
                }
                Err(failed) => {
                    tracing::debug!(error = %rescind_core::LogText::text(&failed.error), "a stream could not be opened");
                    if failed.sent {
                        position.opened();
                    }
                    failed_attempts += 1;
                    if failed_attempts >= ATTEMPTS {
                        self.inbound_queue.fail(failed.error);
                        return;
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Reads events until the response ends.
    async fn read(self: &Arc<Self>, body: ResponseBody, session: Option<&str>, position: &mut Position) {
        let mut events = EventStream::new(body, self.max_frame, &self.inbound_queue);
        while let Some(event) = events.next().await {
            position.received(event.id);
            if !event.data.is_empty() {
                self.take(event.data, session).await;
            }
        }
    }

    /// Handles a message that came on the stream of this session.
    async fn take(self: &Arc<Self>, body: Bytes, session: Option<&str>) {
        let message = Message::of(&body, self.bodies);
        if let (true, Some(session), Some(id)) = (message.is_request(), session, message.id()) {
            let mut state = self.state();
            if state.asked_in.len() < ASKED {
                state.asked_in.insert(id, session.to_owned());
            }
        }
        if message.is_answer() {
            if let Some(id) = message.id() {
                self.forget(&id);
            }
            if let Some(made) = message.made() {
                self.listen(Some(&made));
            }
        }
        let _ = self.inbound_queue.send(Inbound::new(body)).await;
    }
}
