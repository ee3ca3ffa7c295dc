//! The client side of the transport of MCP 2024-11-05: one event stream, and a POST for each message.
//!
//! The client falls back to it as the later revisions advise: a server that refuses the first POST with 400, 404 or 405
//! may serve it on the same URL.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use rescind_core::{ExchangeId, Inbound, LogText, TransportError, TransportErrorKind};
use tokio::sync::oneshot;

use crate::client::{
    self, EventStream, Failed, Media, Requester, ResponseBody, beginning, is_page, is_same_origin, media_of,
};
use crate::envelope::{EVENT_STREAM, Envelope, whole};
use crate::inbound_queue::InboundQueue;
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
        let text = format!("the server sent no event `endpoint` within {within:?}");
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
        let mut events = EventStream::new(body, max_frame, &queue);
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
        let is_taken = (event.is_message() || event.is_error()) && !event.data.is_empty();
        if is_taken && queue.send(Inbound::new(event.data)).await.is_err() {
            return;
        }
    }
    let text = format!("{} ended its event stream", address(requester.uri()));
    queue.fail(TransportError::new(TransportErrorKind::Closed, text));
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

/// Reads the response to a POST. The answer to a request comes on the stream, so a success is not its end, unless it is a page.
/// Some servers answer here as well.
pub(super) async fn take(
    client: &Client,
    target: &Uri,
    (exchange, asked): (ExchangeId, bool),
    response: Response<ResponseBody>,
) -> Result<(), Failed> {
    let max_frame = client.max_frame;
    let status = response.status();
    let is_json = response.headers().get(CONTENT_TYPE).map(media_of) == Some(Media::Json);
    if !is_json {
        if !status.is_success() {
            let text = unexpected("POST", target, response).await;
            return Err(refused(status, text));
        }
        let (head, body) = response.into_parts();
        let body = beginning(body, max_frame).await.0;
        if status == StatusCode::ACCEPTED || !is_page(&body) {
            return Ok(());
        }
        let text = shown("POST", target, status, head.headers.get(CONTENT_TYPE), &body);
        if asked {
            return Err(client.count_unanswered(Failed::new(true, text)));
        }
        client.note_page(&body, || text);
        return Ok(());
    }
    let (head, body) = response.into_parts();
    let body = tokio::time::timeout(BODY, whole(body, max_frame)).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    let answer = Envelope::of(&body);
    let (is_answer, answers_one) = (answer.is_answer(), answer.has_id() && answer.is_answer());
    let text = (!status.is_success() && !answers_one)
        .then(|| shown("POST", target, status, head.headers.get(CONTENT_TYPE), &body));
    if is_answer {
        // The driver reads the error of a refusal too. Without an id, it answers no call.
        let inbound = Inbound { body, exchange, principal: None, address: None, trace: None };
        let _ = client.inbound_queue.send(inbound).await;
    }
    match text {
        Some(text) => Err(refused(status, text)),
        None => Ok(()),
    }
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
