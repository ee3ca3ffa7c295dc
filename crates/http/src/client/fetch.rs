//! One request that is no message of a protocol: for the documents and tokens that a client needs before it can connect.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use rescind_core::{TransportError, TransportErrorKind};

use crate::client::HttpClient;
use crate::client::pool::Urgency;
use crate::client::requester::Requester;
use crate::inbound_queue::InboundQueue;

impl HttpClient {
    /// Sends this request to its own URL, on a connection of its own, with the timeout, the TLS and the version of HTTP of
    /// this client. The headers and the [`Authorization`](crate::Authorization) of the client are not sent, and no redirect
    /// is followed. Returns the response with its body, of at most `max_body` bytes.
    ///
    /// It has no time limit after the connection is open.
    ///
    /// # Errors
    /// The URL is not `http` or `https`, no response came, or its body is larger.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the request, which may have reached the server.
    pub async fn fetch(
        &self,
        request: Request<Bytes>,
        max_body: usize,
    ) -> Result<Response<Bytes>, TransportError> {
        let (head, body) = request.into_parts();
        let own = Self::new(&head.uri.to_string())?;
        let client = Self { uri: own.uri, headers: HeaderMap::new(), authorization: None, ..self.clone() };
        let requester = Requester::new(&client, &InboundQueue::new(max_body));
        let target = requester.target();
        let (request, _) = requester.request(&target, head.method, head.headers, body, None);
        let sent = Requester::send_one(&target, request, Urgency::Usual).await;
        let (head, mut body) = sent.map_err(|failed| failed.error)?.into_parts();
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let data = frame.map_err(|error| io(error.to_string()))?.into_data().unwrap_or_default();
            if read.len() + data.len() > max_body {
                return Err(io(format!("the response is over the limit of {max_body} bytes")));
            }
            read.extend_from_slice(&data);
        }
        Ok(Response::from_parts(head, read.freeze()))
    }
}

fn io(text: String) -> TransportError {
    TransportError::new(TransportErrorKind::Io, text)
}
