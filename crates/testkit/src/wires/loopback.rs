//! The common part of the transports that listen: the fixture behind a listener in this process.

use std::pin::Pin;

use rescind_core::{BoxFuture, Link, Listener, Transport};

use super::Served;
use crate::fixture::Fixture;
use crate::support::Serving;

/// A listener and the transport that connects to it.
pub(super) struct Loopback {
    pub(super) listener: Pin<Box<dyn Listener>>,
    pub(super) transport: Box<dyn Fn() -> Box<dyn Transport> + Send>,
    /// Whether a client can end its input alone.
    pub(super) half_close: bool,
}

impl Loopback {
    /// Serves this fixture to all clients until the end is awaited or dropped.
    pub(super) fn serve(self, fixture: Fixture) -> Served {
        self.serve_by(|listener| serve_all(fixture, listener))
    }

    /// The same by a task that accepts the clients.
    pub(super) fn serve_by<T>(self, task: impl FnOnce(Pin<Box<dyn Listener>>) -> T) -> Served
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let Self { listener, transport, half_close } = self;
        let serving = Serving::spawn(task(listener));
        let connect = move || -> BoxFuture<'static, Result<Link, String>> {
            let opening = transport().open();
            Box::pin(async move { opening.await.map_err(|error| error.to_string()) })
        };
        Served {
            connect: Box::new(connect),
            many_lines: true,
            half_close,
            exit_report: None,
            end: Box::pin(serving.stop()),
        }
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
