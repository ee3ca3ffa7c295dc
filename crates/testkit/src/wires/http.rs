//! HTTP on a free port of the loopback interface, with each binding.

use std::pin::Pin;

use rescind_core::{BoxFuture, Capabilities, Link, Listener, Transport};
use rescind_http::{
    Acp, AcpTransport, HttpClient, HttpListener, HttpServer, LegacySse, LegacySseTransport, ServerBinding,
    Stateless, StatelessTransport, Streamable, StreamableTransport,
};

use super::bridge::Listens;
use super::late_connection::late;
use super::loopback::Loopback;
use super::{Served, Wire};
use crate::vector::Scenario;

/// A binding: its server side and its client side.
pub(super) struct Http<B, T> {
    server: fn() -> B,
    pub(super) client: fn(HttpClient) -> T,
}

/// Any message opens a session here, so that scenarios without a handshake run in every protocol. Frames are sent in
/// order, as the scenarios list them.
pub(super) const STREAMABLE: Http<Streamable, StreamableTransport> = Http {
    server: || Streamable::new().opened_by_any_message(),
    client: |client| StreamableTransport::new(client).in_order(),
};

/// A listener has one link for all of its clients.
pub(super) const STATELESS: Http<Stateless, StatelessTransport> =
    Http { server: Stateless::new, client: StatelessTransport::new };

/// In HTTP/2, as its protocol requires.
pub(super) const ACP: Http<Acp, AcpTransport> = Http { server: Acp::new, client: AcpTransport::new };

/// Each stream is a session, so any message may come first. Frames are sent in order, as over `STREAMABLE`.
pub(super) const LEGACY_SSE: Http<LegacySse, LegacySseTransport> =
    Http { server: LegacySse::new, client: |client| LegacySseTransport::new(client).in_order() };

impl<B: ServerBinding, T> Http<B, T> {
    pub(super) fn server(&self) -> HttpServer<B> {
        HttpServer::new((self.server)())
    }
}

impl<B: ServerBinding + Send, T: Transport + Clone> Http<B, T> {
    async fn listen(&self) -> Result<(HttpListener, T), String> {
        let listener = self.server().bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let client = HttpClient::new(&listener.endpoint().0).map_err(|error| error.to_string())?;
        Ok((listener, (self.client)(client)))
    }

    async fn loopback(&self) -> Result<Loopback, String> {
        let (listener, transport) = self.listen().await?;
        let transport = move || -> Box<dyn Transport> { Box::new(transport.clone()) };
        Ok(Loopback { listener: Box::pin(listener), transport: Box::new(transport), half_close: false })
    }
}

impl<B: ServerBinding + Send, T: Transport + Clone> Wire for Http<B, T> {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move { Ok(self.loopback().await?.serve(super::fixture(scenario)?)) })
    }

    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move {
            let (listener, transport) = self.listen().await?;
            let near = Box::new(transport).open().await.map_err(|error| error.to_string())?;
            let listener: Pin<Box<dyn Listener>> = Box::pin(listener);
            let far = late(listener, Capabilities { opens_exchanges: false, ..near.traits });
            Ok((near, far))
        })
    }
}

impl<B: ServerBinding + Send, T: Transport + Clone> Listens for Http<B, T> {
    fn listen<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<Loopback, String>> {
        Box::pin(self.loopback())
    }
}
