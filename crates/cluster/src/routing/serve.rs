//! Answers the messages of other nodes that are no requests of clients.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use rescind_http::{RouteRefusal, RoutedBody};

use crate::hop::message::{About, HopKind, SignalMessage, Unverified};
use crate::process::{Process, refused};

/// The longest message between nodes, in bytes.
const MAX_MESSAGE: usize = 16 * 1024;
/// The time in which a message must arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers a message.
pub(crate) async fn serve(
    cluster: Arc<Process>,
    message: Unverified,
    request: Request<RoutedBody>,
) -> Result<Response<RoutedBody>, RouteRefusal> {
    let (head, body) = request.into_parts();
    let Ok(Some(body)) = tokio::time::timeout(MESSAGE_TIMEOUT, read(body)).await else {
        return Err(RouteRefusal::new(StatusCode::BAD_REQUEST, "the message could not be read".to_owned()));
    };
    let about = About { method: &head.method, uri: &head.uri, subject: &body };
    let hop = cluster.verify(message, about)?;
    match hop.kind {
        HopKind::Hello => Ok(answer(serde_json::to_vec(&cluster.hello()).unwrap_or_default())),
        HopKind::Status => Ok(answer(cluster.status().to_string().into_bytes())),
        HopKind::Signal => {
            let signal = read_signal(&body)?;
            cluster
                .engine
                .receive(&signal.name, &signal.value, Duration::from_millis(signal.keep_ms))
                .await
                .map_err(|error| RouteRefusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
            Ok(answer(Vec::new()))
        }
        HopKind::Watch => {
            let watch = cluster.signals.watch(&read_signal(&body)?.name.into());
            // The head shows that it is watched. The body follows when the signal comes.
            let come = async move { Ok(Frame::data(Bytes::from(watch.come().await.as_bytes().to_vec()))) };
            let body = StreamBody::new(stream::once(come));
            Ok(Response::new(body.boxed_unsync()))
        }
        HopKind::Forward => Err(refused()),
    }
}

/// Reads a whole message. `None`: it is too long, or broke off.
async fn read(mut body: RoutedBody) -> Option<Bytes> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if whole.len() + data.len() > MAX_MESSAGE {
            return None;
        }
        whole.extend_from_slice(&data);
    }
    Some(whole.freeze())
}

fn read_signal(body: &[u8]) -> Result<SignalMessage, RouteRefusal> {
    let unreadable = |_| RouteRefusal::new(StatusCode::BAD_REQUEST, "the message is not a signal".to_owned());
    serde_json::from_slice(body).map_err(unreadable)
}

fn answer(body: Vec<u8>) -> Response<RoutedBody> {
    Response::new(Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync())
}
