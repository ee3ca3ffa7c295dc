//! The fallback to the transport of MCP 2024-11-05, as the later revisions advise: a server that refuses the first POST
//! with 400, 404 or 405 may serve it on the same URL.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use rescind_core::{LogText, TransportError, TransportErrorKind};
use tokio::sync::oneshot;

use super::listen;
use super::state::Client;
use crate::headers::EVENT_STREAM;
use crate::legacy_sse::read_stream;

/// How long a server that has refused the first POST has to send the event `endpoint`.
const FALLBACK: Duration = Duration::from_secs(2);

/// Whether the POSTs go to the endpoint of an event stream from now on. `status`: that of the first POST.
pub(super) async fn fell_back(client: &Arc<Client>, status: Option<StatusCode>) -> bool {
    const REFUSALS: [StatusCode; 3] =
        [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
    let is_refused = status.is_some_and(|status| REFUSALS.contains(&status));
    if !is_refused || !client.settings.falls_back || client.legacy.get().is_some() {
        return false;
    }
    let opened = open(client, FALLBACK).await;
    if let Err(error) = &opened {
        tracing::debug!(error = %LogText::text(error), "the server does not speak the transport of 2024-11-05 either");
    }
    opened.is_ok()
}

/// Opens the event stream of a server, and sets its endpoint.
pub(super) async fn open(client: &Arc<Client>, within: Duration) -> Result<(), TransportError> {
    let (told, endpoint) = oneshot::channel();
    let headers = client.headers(EVENT_STREAM);
    let queue = Arc::clone(&client.inbound_queue);
    let reading = read_stream(client.requester.clone(), headers, client.max_frame, queue, told);
    listen::launch(client, &mut client.state(), None, reading);
    let late = || {
        let text = format!("the server sent no event `endpoint` within {within:?}");
        TransportError::new(TransportErrorKind::Open, text)
    };
    let closed = || TransportError::new(TransportErrorKind::Closed, "the link is closed");
    let endpoint = tokio::time::timeout(within, endpoint).await.map_err(|_| late())?;
    let _ = client.legacy.set(endpoint.map_err(|_| closed())??);
    Ok(())
}
