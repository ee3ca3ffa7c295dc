//! Stateless HTTP on a free port of the loopback interface. A listener has one link for all of its clients.

use std::pin::Pin;

use rescind_core::{BoxFuture, Link, LinkTraits, Listener, Transport};
use rescind_http::{HttpClient, HttpListener, HttpServer, Stateless, StatelessTransport};

use super::late::late;
use super::loopback::Loopback;
use super::{Reached, Wire};
use crate::vector::Scenario;

pub(super) struct HttpStateless;

async fn listen() -> Result<(HttpListener, StatelessTransport), String> {
    let server = HttpServer::new(Stateless::new());
    let listener = server.bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    let client = HttpClient::new(&listener.endpoint().0).map_err(|error| error.to_string())?;
    Ok((listener, StatelessTransport::new(client)))
}

impl Wire for HttpStateless {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Reached, String>> {
        Box::pin(async move {
            let (listener, transport) = listen().await?;
            let transport = move || -> Box<dyn Transport> { Box::new(transport.clone()) };
            let loopback = Loopback { listener: Box::pin(listener), transport: Box::new(transport) };
            Ok(loopback.reach(super::fixture(scenario)?))
        })
    }

    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move {
            let (listener, transport) = listen().await?;
            let near = Box::new(transport).open().await.map_err(|error| error.to_string())?;
            let listener: Pin<Box<dyn Listener>> = Box::pin(listener);
            let far = late(listener, LinkTraits { exchanges_abortable: false, ..near.traits });
            Ok((near, far))
        })
    }
}
