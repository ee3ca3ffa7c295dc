//! The common part of the transports that listen: the fixture behind a listener in this process.

use std::pin::Pin;

use rescind_core::{BoxFuture, Link, Listener, Transport};

use super::Reached;
use crate::fixture::Fixture;
use crate::runner::LinkSubject;
use crate::support::Serving;

/// A listener and the transport that connects to it.
pub(super) struct Loopback {
    pub(super) listener: Pin<Box<dyn Listener>>,
    pub(super) transport: Box<dyn Fn() -> Box<dyn Transport> + Send>,
}

impl Loopback {
    /// Serves this fixture to all clients until the end is awaited or dropped.
    pub(super) fn reach(self, fixture: Fixture) -> Reached {
        let Self { listener, transport } = self;
        let serving = Serving::spawn(serve_all(fixture, listener));
        let connect = move || -> BoxFuture<'static, Result<Link, String>> {
            let opening = transport().open();
            Box::pin(async move { opening.await.map_err(|error| error.to_string()) })
        };
        let subject = LinkSubject::new(Box::new(connect)).with_many_lines().with_options();
        Reached { subject, end: Box::pin(serving.stop()) }
    }

    /// The client's end of a connection and the server's end.
    pub(super) async fn pair(mut self) -> Result<(Link, Link), String> {
        let accepted = self.listener.accept();
        let (near, far) = tokio::join!((self.transport)().open(), accepted);
        let near = near.map_err(|error| error.to_string())?;
        let far = far.ok_or("the listener ended")?.map_err(|error| error.to_string())?;
        Ok((near, far))
    }
}

async fn serve_all(fixture: Fixture, mut listener: Pin<Box<dyn Listener>>) {
    while let Some(accepted) = listener.accept().await {
        if let Ok(link) = accepted {
            // The scenario decides whether a connection that does not open is an error.
            let _peer = fixture.serve(link);
        }
    }
}
