//! A WebSocket on a free port of the loopback interface.

use rescind_core::{BoxFuture, Link, Listener as _, Transport};

use super::bridge::Listens;
use super::loopback::Loopback;
use super::{Served, Wire};
use crate::vector::Scenario;

pub(super) struct WebSocket;

async fn listen() -> Result<Loopback, String> {
    let listener = rescind_websocket::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    let url = listener.endpoint().0;
    let transport = move || -> Box<dyn Transport> { Box::new(rescind_websocket::connect(&url)) };
    Ok(Loopback { listener: Box::pin(listener), transport: Box::new(transport), half_close: false })
}

impl Wire for WebSocket {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move { Ok(listen().await?.serve(super::fixture(scenario)?)) })
    }

    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move { listen().await?.pair().await })
    }
}

impl Listens for WebSocket {
    fn listen<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<Loopback, String>> {
        Box::pin(listen())
    }
}
