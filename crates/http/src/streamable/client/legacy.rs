//! The client side of the transport of MCP 2024-11-05: one event stream, and a POST for each message.
//!
//! The client falls back to it as the later revisions advise: a server that refuses the first POST with 400, 404 or 405
//! may serve it on the same URL.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use rescind_core::{
    Deviation, ExchangeId, Inbound, LogText, RequestId, TransportError, TransportErrorKind, TransportEvent,
};
use serde::de::IgnoredAny;
use tokio::sync::oneshot;

use crate::client::{
    self, BEGINNING, Event, EventStream, Failed, Fault, Media, Requester, ResponseBody, beginning,
    body_error, is_page, is_same_origin, media_of, push_excerpt, stream_refusal,
};
use crate::envelope::{CollectError, EVENT_STREAM, Envelope, EnvelopeError, Reply, unmarked, whole};
use crate::inbound_queue::{InboundQueue, SendRefused};
use crate::streamable::client::{Client, streams};

/// How long a server that has refused the first POST has to send the event `endpoint`.
const FALLBACK: Duration = Duration::from_secs(2);
/// How long the body of a response to a POST is read. Its connection can be used again only if that ends.
const BODY: Duration = Duration::from_secs(1);
/// The bytes of a response that an error shows.
const SHOWN: usize = 200;
/// The longest `endpoint`, in bytes.
const MAX_ENDPOINT: usize = 8 * 1024;

/// Whether the POSTs go to the endpoint of an event stream from now on. `status`: that of the first POST.
pub(super) async fn fell_back(client: &Arc<Client>, status: Option<StatusCode>) -> bool {
    const REFUSALS: [StatusCode; 3] =
        [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
    let is_refused = status.is_some_and(|status| REFUSALS.contains(&status));
    if !is_refused || !client.settings.falls_back || client.legacy.get().is_some() {
        return false;
    }
    match open(client, FALLBACK).await {
        Ok(()) => true,
        Err(error) => {
            client.state().not_legacy = Some(error.source.to_string());
            false
        }
    }
}

/// The error of the first POST, and why the server does not speak the transport of 2024-11-05 either.
pub(super) fn explained(client: &Client, failed: Failed) -> Failed {
    let Some(why) = client.state().not_legacy.take() else { return failed };
    let text = format!("{}; with the transport of MCP 2024-11-05: {why}", failed.error.source);
    Failed { error: TransportError::new(failed.error.kind, text), ..failed }
}

/// Opens the event stream of a server, and sets its endpoint.
pub(super) async fn open(client: &Arc<Client>, within: Duration) -> Result<(), TransportError> {
    let (told, endpoint) = oneshot::channel();
    let headers = client.headers(EVENT_STREAM);
    let queue = Arc::clone(&client.inbound_queue);
    let reading = read_stream(client.requester.clone(), headers, client.max_frame, queue, told);
    streams::launch(client, &mut client.state(), None, reading);
    let late = || {
        let hint =
            if within == FALLBACK { ": if it needs longer, choose the binding `legacy-sse`" } else { "" };
        let text = format!("the server sent no event `endpoint` within {within:?}{hint}");
        TransportError::new(TransportErrorKind::Open, text)
    };
    let closed = || TransportError::new(TransportErrorKind::Closed, "the link is closed");
    let endpoint = tokio::time::timeout(within, endpoint).await.map_err(|_| late())?;
    let _ = client.legacy.set(endpoint.map_err(|_| closed())??);
    Ok(())
}

/// Opens the event stream, tells the endpoint for POSTs, and reads the stream to its end. Ends early if nobody waits for
/// the endpoint any more.
async fn read_stream(
    requester: Requester,
    headers: HeaderMap,
    max_frame: usize,
    queue: Arc<InboundQueue>,
    mut told: oneshot::Sender<Result<Requester, TransportError>>,
) {
    let opening = async {
        let body = open_stream(&requester, headers).await?;
        let mut events = EventStream::new(body, max_frame, &queue).of_all_calls();
        let endpoint = first_event(&mut events).await?;
        let target = resolve(requester.uri(), &endpoint).map_err(|why| {
            let text = format!(
                "the event `endpoint` of {} names {}, {why}",
                address(requester.uri()),
                LogText::name(&endpoint)
            );
            TransportError::new(TransportErrorKind::Open, text)
        })?;
        Ok((events, target))
    };
    let opened = tokio::select! {
        biased;
        () = told.closed() => return,
        opened = opening => opened,
    };
    let mut events = match opened {
        Ok((events, target)) => {
            if told.send(Ok(requester.at(target))).is_err() {
                return;
            }
            events
        }
        Err(error) => {
            let _ = told.send(Err(error));
            return;
        }
    };
    while let Some(event) = events.next().await {
        if pass_on(&queue, ExchangeId::NONE, event).await.is_err() {
            return;
        }
    }
    let text = format!("{} ended its event stream", address(requester.uri()));
    queue.fail(TransportError::new(TransportErrorKind::Closed, text));
}

/// Passes on what an event has, if that is a message or an error. An event of a message has another name with some servers.
async fn pass_on(queue: &InboundQueue, exchange: ExchangeId, event: Event) -> Result<(), SendRefused> {
    if event.data.is_empty() || event.name.as_deref() == Some("endpoint") {
        return Ok(());
    }
    if !event.is_message() {
        let sent = shortened(&event.data);
        if !may_be_message(&event.data) {
            if event.is_error() {
                queue.push_event(unanswered("the server sent an event `error`", sent));
            }
            return Ok(());
        }
        queue.push_event(TransportEvent::Deviation { deviation: Deviation::ContentType, sent });
    }
    if let Some(joined) = torn(&event) {
        let text = "the server sent an event of several lines, of which not all have the name of their field";
        queue.push_event(unanswered(text, shortened(&joined)));
        return Ok(());
    }
    queue.send(Inbound { exchange, ..Inbound::new(event.data) }).await
}

fn unanswered(text: &str, sent: Bytes) -> TransportEvent {
    let mut text = text.to_owned();
    push_excerpt(&mut text, &sent);
    TransportEvent::Unanswered { sent, error: TransportError::new(TransportErrorKind::Io, text) }
}

/// The beginning of a text, without a share in its memory.
fn shortened(text: &[u8]) -> Bytes {
    Bytes::copy_from_slice(text.get(..BEGINNING).unwrap_or(text))
}

/// All lines of an event that is not a whole message because only some of its lines have the name of their field, unless it may be
/// a request or a notification.
fn torn(event: &Event) -> Option<Vec<u8>> {
    let is_cut = || serde_json::from_slice::<IgnoredAny>(&event.data).is_err_and(|error| error.is_eof());
    if event.torn.is_empty() || !event.data.trim_ascii_start().starts_with(b"{") || !is_cut() {
        return None;
    }
    let joined = [&*event.data, &*event.torn].concat();
    (!has(&joined, "\"method\"")).then_some(joined)
}

/// Whether what is not labelled as a message is meant as one.
fn may_be_message(text: &[u8]) -> bool {
    match Envelope::read(text) {
        Ok(envelope) => {
            let is_message = envelope.is_answer() || envelope.method().is_some();
            is_message && (envelope.jsonrpc.is_some() || envelope.is_answer() && envelope.has_id())
        }
        Err(EnvelopeError::Batch) => has(text, "\"jsonrpc\""),
        Err(EnvelopeError::NotJson | EnvelopeError::NotUtf8) => is_broken_message(text),
        Err(EnvelopeError::Empty | EnvelopeError::NotAnObject) => false,
    }
}

/// Whether what is not JSON is meant as a message.
fn is_broken_message(text: &[u8]) -> bool {
    let begins = matches!(text.trim_ascii_start().first(), Some(b'{' | b'['));
    begins && (has(text, "\"jsonrpc\"") || has(text, "\"id\""))
}

fn has(text: &[u8], name: &str) -> bool {
    memchr::memmem::find(text, name.as_bytes()).is_some()
}

async fn open_stream(requester: &Requester, headers: HeaderMap) -> Result<ResponseBody, TransportError> {
    let response = requester.send(Method::GET, headers, Bytes::new()).await.map_err(|failed| failed.error)?;
    let media = response.headers().get(CONTENT_TYPE).map(media_of);
    if response.status() == StatusCode::OK && media == Some(Media::Events) {
        return Ok(response.into_body());
    }
    let text = unexpected("GET", requester.uri(), response).await;
    Err(TransportError::new(TransportErrorKind::Open, format!("{text}; an event stream was expected")))
}

/// The data of the event `endpoint`, which is the first event of a name that is read.
async fn first_event(events: &mut EventStream<'_>) -> Result<String, TransportError> {
    let error = |text: String| TransportError::new(TransportErrorKind::Open, text);
    loop {
        let Some(event) = events.next().await else {
            return Err(error("the event stream ended before the event `endpoint`".to_owned()));
        };
        if event.data.is_empty() {
            continue;
        }
        match event.name.as_deref() {
            Some("endpoint") => {}
            None | Some("message") => {
                return Err(error(
                    "the stream begins with a message and not with the event `endpoint`".to_owned(),
                ));
            }
            // A ping, or a greeting.
            Some(_) => continue,
        }
        let endpoint = std::str::from_utf8(&event.data).ok().filter(|text| text.len() <= MAX_ENDPOINT);
        return endpoint
            .map(ToOwned::to_owned)
            .ok_or_else(|| error("the event `endpoint` is too long, or is not UTF-8".to_owned()));
    }
}

/// Reads the response to a POST. The answer to a request comes on the stream, so a success is not its end, unless it shows that
/// no answer will come. Some servers answer here as well.
pub(super) async fn take(
    client: &Client,
    target: &Uri,
    (exchange, own): (ExchangeId, Option<RequestId>),
    (head, body): (&Parts, ResponseBody),
) -> Result<(), Failed> {
    let media = head.headers.get(CONTENT_TYPE).map(media_of);
    match own {
        Some(own) if head.status.is_success() && media == Some(Media::Events) => {
            take_events(client, target, (exchange, &own), head, body).await
        }
        Some(own) if head.status.is_success() => {
            take_body(client, target, (exchange, &own), head, body).await
        }
        own => take_other(client, target, (exchange, own.is_some()), head, body).await,
    }
}

/// Reads an event stream as the response to a request.
async fn take_events(
    client: &Client,
    target: &Uri,
    (exchange, own): (ExchangeId, &RequestId),
    head: &Parts,
    body: ResponseBody,
) -> Result<(), Failed> {
    let mut events = EventStream::new(body, client.max_frame, &client.inbound_queue).of_exchange(exchange);
    let (mut fault, mut last, mut is_answered) = (None, Bytes::new(), false);
    while let Some(event) = events.next().await {
        let reply = Reply::of(&event.data, Some(own));
        if reply == Reply::Nothing {
            if event.is_error() || has_error(&Envelope::of(&event.data)) {
                (fault, last) = (Some(Fault::NoMessage), event.data);
                events.answered();
            }
            continue;
        }
        if reply == Reply::Own || reply.is_unclear() {
            is_answered = true;
            events.answered();
        }
        if pass_on(&client.inbound_queue, exchange, event).await.is_err() {
            return Ok(());
        }
    }
    let Some(fault) = fault.or_else(|| events.fault()).filter(|_| !is_answered) else { return Ok(()) };
    let why = fault.shown(Some(own), events.has_ended());
    let stray = events.stray();
    let sent = if stray.is_empty() { last } else { stray };
    let text = stream_refusal(head, &address(target), Some(&why), &sent);
    Err(client.count_unanswered(Failed::new(true, text)))
}

/// Reads another body as the response to a request.
async fn take_body(
    client: &Client,
    target: &Uri,
    (exchange, own): (ExchangeId, &RequestId),
    head: &Parts,
    body: ResponseBody,
) -> Result<(), Failed> {
    let queue = &client.inbound_queue;
    let is_accepted = head.status == StatusCode::ACCEPTED;
    let body = match read_body(client, body).await {
        Ok(None) => return Ok(()),
        Ok(Some(body)) => unmarked(queue, body),
        // What follows 202 needs no end, unless it may be the answer.
        Err(CollectError::Broken(_, read)) if is_accepted && !is_broken_message(&read) => return Ok(()),
        Err(error) => return Err(body_error(head, &address(target), error)),
    };
    let media = head.headers.get(CONTENT_TYPE);
    let failed = || Failed::new(true, shown("POST", target, head.status, media, &body));
    let (reply, envelope) = (Reply::of(&body, Some(own)), Envelope::of(&body));
    let is_broken = is_broken_message(&body) && Envelope::read(&body).is_err();
    if is_broken || (envelope.is_answer() && reply != Reply::Nothing) {
        if reply == Reply::Own && media.map(media_of) != Some(Media::Json) {
            let (deviation, sent) = (Deviation::ContentType, shortened(&body));
            queue.push_event(TransportEvent::Deviation { deviation, sent });
        }
        // Of an error without an id, and of half a message without one, the driver may not know whose it is.
        let is_unnamed = reply == Reply::UnnamedError || (is_broken && has(&body, "\"jsonrpc\""));
        let failed = is_unnamed.then(failed);
        let _ = queue.send(Inbound { exchange, ..Inbound::new(body) }).await;
        return failed.map_or(Ok(()), Err);
    }
    if has_error(&envelope) || (is_page(&body) && !is_accepted) {
        return Err(client.count_unanswered(failed()));
    }
    if !is_accepted && !is_acknowledgement(&body) {
        let (deviation, sent) = (Deviation::Noise, shortened(&body));
        queue.push_event(TransportEvent::Deviation { deviation, sent });
    }
    Ok(())
}

/// Reads the body of the response to a request. `None`: nothing of it comes.
async fn read_body(client: &Client, body: ResponseBody) -> Result<Option<Bytes>, CollectError<hyper::Error>> {
    let begun = AtomicBool::new(false);
    let mut body = body.map_frame(|frame| {
        begun.store(true, Ordering::Relaxed);
        frame
    });
    let mut reading = pin!(client.whole_message(&mut body));
    loop {
        match tokio::time::timeout(BODY, reading.as_mut()).await {
            Ok(read) => return read.map(Some),
            Err(_) if begun.load(Ordering::Relaxed) => {}
            Err(_) => return Ok(None),
        }
    }
}

/// Whether an object says that something has failed, in no form of the protocol.
fn has_error(envelope: &Envelope<'_>) -> bool {
    envelope.error.is_some_and(|error| error.get() != "false")
}

/// Whether a text says no more than that a request has arrived.
fn is_acknowledgement(text: &[u8]) -> bool {
    const WORDS: [&str; 10] = [
        "ok",
        "accepted",
        "received",
        "queued",
        "sent",
        "success",
        "successful",
        "processing",
        "true",
        "null",
    ];
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let mut words = text.split(|character: char| !character.is_ascii_alphabetic());
    let is_known = |word: &str| WORDS.iter().any(|known| word.eq_ignore_ascii_case(known));
    matches!(text.trim(), "" | "{}" | "[]") || words.any(is_known)
}

/// Reads a refusal, or the response to a message that needs no answer.
async fn take_other(
    client: &Client,
    target: &Uri,
    (exchange, asked): (ExchangeId, bool),
    head: &Parts,
    body: ResponseBody,
) -> Result<(), Failed> {
    let (status, media) = (head.status, head.headers.get(CONTENT_TYPE));
    let is_json = media.map(media_of) == Some(Media::Json);
    let body = if is_json {
        let body = tokio::time::timeout(BODY, whole(body, client.max_frame)).await;
        body.ok().and_then(Result::ok).unwrap_or_default()
    } else {
        beginning(body, if status.is_success() { BEGINNING } else { 64 * 1024 }).await.0
    };
    let answer = if is_json { Envelope::of(&body) } else { Envelope::default() };
    let (is_answer, answers_one) = (answer.is_answer(), answer.has_id() && answer.is_answer());
    let text = shown("POST", target, status, media, &body);
    if status.is_success() && status != StatusCode::ACCEPTED && !is_json {
        client.note_page(&body, || text.clone());
    }
    if is_answer {
        // The driver reads the error of a refusal too. Without an id, it answers no call.
        let _ = client.inbound_queue.send(Inbound { exchange, ..Inbound::new(body) }).await;
    }
    if status.is_success() || answers_one {
        return Ok(());
    }
    let failed = refused(status, text);
    // Otherwise the driver counts the error that it reads.
    if !asked && !is_answer {
        client.refused(&failed);
    }
    Err(failed)
}

/// The error of a POST. The server has not begun a request that it refuses as the client's fault.
fn refused(status: StatusCode, text: String) -> Failed {
    let sent = !status.is_client_error() && status != StatusCode::SERVICE_UNAVAILABLE;
    Failed::new(sent, text)
}

/// Names the request, the status and the beginning of the body of a response.
async fn unexpected(method: &str, target: &Uri, response: Response<ResponseBody>) -> String {
    let (head, body) = response.into_parts();
    let body = tokio::time::timeout(BODY, whole(body, 64 * 1024)).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    shown(method, target, head.status, head.headers.get(CONTENT_TYPE), &body)
}

fn shown(
    method: &str,
    target: &Uri,
    status: StatusCode,
    media: Option<&http::HeaderValue>,
    body: &[u8],
) -> String {
    let media = media.and_then(|value| value.to_str().ok()).unwrap_or("no media type");
    let body = body.get(..SHOWN).unwrap_or(body).escape_ascii();
    let target = address(target);
    let media = LogText::name(media);
    format!("{method} {target} was answered with {status} and {media}: {body}")
}

/// The URL without user, password and query, which must not be logged.
fn address(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}{}", uri.scheme_str().unwrap_or_default(), uri.path())
}

/// The target that the event `endpoint` names, relative to the URL of the stream. It is of the same origin (L5).
fn resolve(base: &Uri, reference: &str) -> Result<PathAndQuery, &'static str> {
    // Some readers of URLs take it for a slash.
    if reference.contains('\\') {
        return Err("which is not a URL");
    }
    let url = client::resolve(base, reference)?;
    if !is_same_origin(&url, base) {
        return Err("which is another origin than that of the stream");
    }
    Ok(url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_resolved_against_the_url_of_its_stream() {
        let base: Uri = "http://127.0.0.1:8000/a/sse?key=1".parse().unwrap();
        for (reference, target) in [
            ("/messages?sessionId=7", "/messages?sessionId=7"),
            (" /messages \n", "/messages"),
            ("messages?x", "/a/messages?x"),
            ("?sessionId=7", "/a/sse?sessionId=7"),
            ("", "/a/sse?key=1"),
            ("./b/../c", "/a/c"),
            ("../messages/", "/messages/"),
            ("../../../x", "/x"),
            ("..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/messages?at=12:30#part", "/messages?at=12:30"),
            ("http://127.0.0.1:8000/m?s=1", "/m?s=1"),
            ("HTTP://127.0.0.1:8000", "/"),
            ("//127.0.0.1:8000/m", "/m"),
        ] {
            assert_eq!(
                resolve(&base, reference).as_ref().map(PathAndQuery::as_str),
                Ok(target),
                "{reference}"
            );
        }
        // Without the feature, no address with `https` is followed.
        if cfg!(feature = "rustls") {
            let usual: Uri = "https://Agent.example/sse".parse().unwrap();
            assert_eq!(resolve(&usual, "https://agent.example:443/m").unwrap().as_str(), "/m");
        }
    }

    #[test]
    fn an_endpoint_of_another_origin_is_refused() {
        let base: Uri = "http://127.0.0.1:8000/sse".parse().unwrap();
        for reference in [
            "http://127.0.0.1:8001/messages",
            "http://127.0.0.1/messages",
            "https://127.0.0.1:8000/messages",
            "http://localhost:8000/messages",
            "http://evil.example:8000/messages",
            "http://127.0.0.1:8000@evil.example/messages",
            "http://me:secret@127.0.0.1:8000/messages",
            "//evil.example/messages",
            "file:///etc/passwd",
            "file:/etc/passwd",
            "javascript:alert(1)",
            "data:text/plain,x",
            "ws://127.0.0.1:8000/messages",
            "http:",
            "http://",
        ] {
            assert!(resolve(&base, reference).is_err(), "{reference}");
        }
        // Texts that are no URLs.
        for reference in ["/\\evil.example/x", "/a b", "/\u{7}", "\\\\evil.example"] {
            assert!(resolve(&base, reference).is_err(), "{reference}");
        }
    }
}
