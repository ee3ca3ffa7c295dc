use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use rescind_core::{BoxFuture, Link, PeerInfo, Transport, TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::generate_request;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::handshake::has_token;
use crate::link::{self, CountingIo};
use crate::options::LinkOptions;
#[cfg(feature = "rustls")]
use crate::options::PROTOCOLS;

/// The most bytes of a refusal's body that are shown.
const MAX_SHOWN_BYTES: usize = 200;
/// The most bytes of the head of a server's answer to the handshake.
const MAX_ANSWER_BYTES: usize = 16 * 1024;
/// The most headers of that answer.
const MAX_ANSWER_HEADERS: usize = 100;

/// A connection to this URL, `ws://` or, with the feature `rustls`, `wss://`.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use rescind_core::{Peer, dialect};
///
/// let transport = rescind_websocket::connect("ws://127.0.0.1:9000/agent").header("Authorization", "Bearer a-secret");
/// let peer = Peer::builder(dialect::ACP).connect(transport).await?;
/// # drop(peer);
/// # Ok(())
/// # }
/// ```
pub fn connect(url: &str) -> WebSocketTransport {
    WebSocketTransport::new(url)
}

/// The client of a WebSocket.
#[derive(Clone)]
#[must_use = "a transport does nothing until it is opened"]
pub struct WebSocketTransport {
    url: String,
    headers: Vec<(String, String)>,
    subprotocols: Vec<String>,
    requires_subprotocol: bool,
    timeout: Duration,
    options: LinkOptions,
    on_answer: Option<AnswerHook>,
    #[cfg(feature = "rustls")]
    tls: crate::ClientTls,
}

type AnswerHook = Arc<dyn Fn(&Answer<'_>) + Send + Sync>;

/// A server's answer to the handshake, for a hook.
#[derive(Clone, Copy)]
pub struct Answer<'a>(&'a HeaderMap);

impl<'a> Answer<'a> {
    /// The first header with this name, ignoring case, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.0.get(name)?.to_str().ok()
    }

    /// The negotiated subprotocol.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&'a str> {
        self.header(SEC_WEBSOCKET_PROTOCOL.as_str())
    }
}

impl fmt::Debug for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("subprotocol", &self.subprotocol()).finish_non_exhaustive()
    }
}

impl WebSocketTransport {
    /// A connection to this URL. An invalid URL is an error when the connection opens.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            headers: Vec::new(),
            subprotocols: Vec::new(),
            requires_subprotocol: false,
            timeout: Duration::from_secs(10),
            options: LinkOptions::new(),
            on_answer: None,
            #[cfg(feature = "rustls")]
            tls: crate::ClientTls::system(),
        }
    }

    /// Sends this header with the handshake, such as `Authorization`. It is never logged.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Offers this subprotocol, after those offered before. If the server selects none, opening fails.
    pub fn subprotocol(mut self, name: &str) -> Self {
        self.requires_subprotocol = true;
        self.offer_subprotocol(name)
    }

    /// Offers this subprotocol, after those offered before. The server may select none.
    pub fn offer_subprotocol(mut self, name: &str) -> Self {
        self.subprotocols.push(name.to_owned());
        self
    }

    /// The time in which the connection must open, including name resolution. Default: 10 s.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// The options of the connection.
    pub fn options(mut self, options: LinkOptions) -> Self {
        self.options = options;
        self
    }

    /// The authorities that the client trusts, and the certificate that it shows. Default:
    /// [`ClientTls::system`](crate::ClientTls::system).
    #[cfg(feature = "rustls")]
    pub fn tls(mut self, tls: crate::ClientTls) -> Self {
        self.tls = tls;
        self
    }

    /// Calls this function with the server's answer before the connection is used. It must not block.
    pub fn on_answer(mut self, hook: impl Fn(&Answer<'_>) + Send + Sync + 'static) -> Self {
        self.on_answer = Some(Arc::new(hook));
        self
    }

    async fn connect(&self) -> Result<Link, TransportError> {
        let target = Target::of(&self.url)?;
        let request = self.request(&target)?;
        let socket = TcpStream::connect((target.host.as_str(), target.port))
            .await
            .map_err(|error| failed(format!("{target}: {error}")))?;
        // Small frames must not wait for the acknowledgement of earlier ones.
        socket.set_nodelay(true)?;
        if !target.secure {
            return self.handshake(&target, request, socket).await;
        }
        #[cfg(feature = "rustls")]
        {
            let socket = self.tls.connect(&target.host, socket, PROTOCOLS).await;
            let socket = socket.map_err(|error| failed(format!("TLS with {}: {error}", target.host)))?;
            self.handshake(&target, request, socket).await
        }
        #[cfg(not(feature = "rustls"))]
        Err(failed("wss needs the feature `rustls`"))
    }

    fn request(&self, target: &Target) -> Result<Request<()>, TransportError> {
        let unusable = |what: &str| failed(format!("{what} cannot be part of a handshake"));
        let mut request =
            target.uri.clone().into_client_request().map_err(|error| failed(error.to_string()))?;
        for (name, value) in &self.headers {
            let header = HeaderName::from_bytes(name.as_bytes()).ok();
            let header = header.filter(|header| !request.headers().contains_key(header));
            let header = header.filter(|header| !header.as_str().starts_with("sec-websocket-"));
            let value = HeaderValue::from_str(value).ok().zip(header);
            let Some((mut value, header)) = value else {
                return Err(unusable(&format!("the header {name:?}")));
            };
            value.set_sensitive(true);
            request.headers_mut().append(header, value);
        }
        // Added after the check above, which refuses such a header of the caller.
        if !self.subprotocols.is_empty() {
            let offered = HeaderValue::from_str(&self.subprotocols.join(", "))
                .map_err(|_| unusable("a subprotocol"))?;
            request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, offered);
        }
        Ok(request)
    }

    async fn handshake<S>(&self, target: &Target, request: Request<()>, io: S) -> Result<Link, TransportError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut io = CountingIo::new(io);
        let (answer, rest) =
            self.exchange_heads(&mut io, request).await.map_err(|why| failed(format!("{target}: {why}")))?;
        let config = Some(link::config(&self.options));
        let stream = WebSocketStream::from_partially_read(io, rest, Role::Client, config).await;
        if let Some(hook) = &self.on_answer {
            hook(&Answer(answer.headers()));
        }
        Ok(link::link(
            stream,
            Role::Client,
            &self.options,
            PeerInfo::of_peer(&target.to_string()),
            None,
            None,
        ))
    }
}

// The handshake. tungstenite's own takes `Connection: upgrade` for the only spelling: RFC 6455, 4.1 asks for a header that
// contains this token, and proxies send `keep-alive, Upgrade`.

impl WebSocketTransport {
    /// Sends the request, and checks the answer. Returns it with the bytes that came after it.
    async fn exchange_heads(
        &self,
        io: &mut (impl AsyncRead + AsyncWrite + Unpin),
        request: Request<()>,
    ) -> Result<(Response<()>, Vec<u8>), String> {
        let (head, key) = generate_request(request).map_err(|error| error.to_string())?;
        io.write_all(&head).await.map_err(|error| error.to_string())?;
        io.flush().await.map_err(|error| error.to_string())?;
        let mut read = Vec::new();
        let (response, length) = loop {
            if io.read_buf(&mut read).await.map_err(|error| error.to_string())? == 0 {
                return Err("the server ended the connection in the handshake".to_owned());
            }
            if let Some(parsed) = parse_answer(&read)? {
                break parsed;
            }
            if read.len() > MAX_ANSWER_BYTES {
                return Err(format!(
                    "the head of the server's answer is longer than {MAX_ANSWER_BYTES} bytes"
                ));
            }
        };
        let rest = read.split_off(length);
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(format!("the server answered {}{}", response.status(), body_text(&rest)));
        }
        self.check_answer(response.headers(), &key)?;
        Ok((response, rest))
    }

    /// RFC 6455, 4.1: what the answer of a server must have.
    fn check_answer(&self, headers: &HeaderMap, key: &str) -> Result<(), String> {
        if !(has_token(headers, UPGRADE, "websocket") && has_token(headers, CONNECTION, "upgrade")) {
            return Err("the server's answer does not upgrade to a WebSocket".to_owned());
        }
        if headers.get(SEC_WEBSOCKET_ACCEPT).is_none_or(|accept| *accept != derive_accept_key(key.as_bytes()))
        {
            return Err("the Sec-WebSocket-Accept of the server's answer does not fit the request".to_owned());
        }
        match headers.get(SEC_WEBSOCKET_PROTOCOL) {
            None if !self.requires_subprotocol => Ok(()),
            None => Err("the server selected none of the subprotocols that were offered".to_owned()),
            Some(selected) if self.subprotocols.iter().any(|name| selected == name.as_str()) => Ok(()),
            Some(_) => Err("the server selected a subprotocol that was not offered".to_owned()),
        }
    }
}

impl Transport for WebSocketTransport {
    fn name(&self) -> &'static str {
        "websocket"
    }

    /// # Panics
    /// Outside a tokio runtime whose I/O and time drivers are enabled.
    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let opened = tokio::time::timeout(self.timeout, self.connect()).await;
            opened.unwrap_or_else(|_| Err(failed("the server did not answer the handshake in time")))
        })
    }
}

impl fmt::Debug for WebSocketTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The query of a URL and the headers may contain secrets.
        let url = self.url.split(['?', '#']).next().unwrap_or_default();
        f.debug_struct("WebSocketTransport")
            .field("url", &url)
            .field("subprotocols", &self.subprotocols)
            .field("timeout", &self.timeout)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Does the handshake of a client on an open stream, without connecting to a server.
///
/// # Errors
/// The server refused the handshake, or did not answer in time.
///
/// # Cancel safety
/// Dropping the future drops the stream.
#[cfg(feature = "verify")]
pub async fn open_given<S>(transport: &WebSocketTransport, io: S) -> Result<Link, TransportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let target = Target::of(&transport.url)?;
    let request = transport.request(&target)?;
    tokio::time::timeout(transport.timeout, transport.handshake(&target, request, io))
        .await
        .unwrap_or_else(|_| Err(failed("the handshake took too long")))
}

/// The server to which a URL leads.
struct Target {
    uri: Uri,
    secure: bool,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

impl Target {
    fn of(url: &str) -> Result<Self, TransportError> {
        // The URL itself is not shown: it may contain a secret.
        let uri: Uri = url.parse().map_err(|error| failed(format!("this is not a URL: {error}")))?;
        let secure = match uri.scheme_str() {
            Some("ws") => false,
            Some("wss") => true,
            _ => return Err(failed("the URL must begin with ws:// or wss://")),
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(failed("a URL with a user in it is not taken: send a header"));
        }
        let host = uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
        if host.is_empty() {
            return Err(failed("the URL names no host"));
        }
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Ok(Self { uri, secure, host, port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uri.authority() {
            Some(authority) => f.write_str(authority.as_str()),
            None => f.write_str(&self.host),
        }
    }
}

/// The head of an answer and its length, once it is complete.
fn parse_answer(read: &[u8]) -> Result<Option<(Response<()>, usize)>, String> {
    let not_http = |error: &dyn fmt::Display| format!("the server's answer is not HTTP/1.1: {error}");
    let mut headers = [httparse::EMPTY_HEADER; MAX_ANSWER_HEADERS];
    let mut parsed = httparse::Response::new(&mut headers);
    let length = match parsed.parse(read).map_err(|error| not_http(&error))? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    if parsed.version != Some(1) {
        return Err(not_http(&"its version is 1.0"));
    }
    let mut response = Response::builder().status(parsed.code.unwrap_or_default());
    for header in parsed.headers.iter() {
        response = response.header(header.name, header.value);
    }
    let response = response.body(()).map_err(|error| not_http(&error))?;
    Ok(Some((response, length)))
}

/// The beginning of a refusal's body.
fn body_text(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body.get(..MAX_SHOWN_BYTES).unwrap_or(body));
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!(": {}", text.escape_debug()) }
}

fn failed(text: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TransportError {
    TransportError::new(TransportErrorKind::Open, text)
}
