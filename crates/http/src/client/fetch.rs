//! One request outside of a protocol: for the documents and tokens that a client needs before it can connect.

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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// The request that a server got, and how its response was taken.
    async fn fetched(response: &str) -> (String, Result<Response<Bytes>, TransportError>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/document?x=1", listener.local_addr().unwrap());
        let client = HttpClient::new("http://other.example/mcp").unwrap().header("x-secret", "s").unwrap();
        let client = client.authorization(&crate::Authorization::new("Bearer secret").unwrap());
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut read = vec![0; 4096];
            let length = socket.read(&mut read).await.unwrap();
            socket.write_all(response.as_bytes()).await.unwrap();
            String::from_utf8_lossy(read.get(..length).unwrap()).into_owned()
        };
        let request = Request::builder().uri(&url).body(Bytes::new()).unwrap();
        tokio::join!(server, client.fetch(request, 8))
    }

    #[tokio::test]
    async fn a_document_is_fetched_without_credentials_and_redirects_and_is_bounded() {
        let (sent, response) = fetched("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678").await;
        assert!(sent.starts_with("GET /document?x=1 HTTP/1.1\r\n") && !sent.contains("secret"), "{sent}");
        assert_eq!(response.unwrap().body(), "12345678");
        let (_, response) = fetched("HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(response.unwrap().status(), 302);
        let (_, response) = fetched("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789").await;
        assert!(response.unwrap_err().source.to_string().contains("over the limit of 8 bytes"));
    }
}
