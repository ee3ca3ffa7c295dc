//! Two pipes as a wire, as between a process and its child, with both ends in this process.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rescind::Endpoint;
use rescind::stdio::Descriptors;
use rescind::transport::{BoxFuture, Link, Listener, Transport, TransportError, TransportErrorKind};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

/// A listener and the transport that connects to it.
pub(crate) fn pipes() -> (PipesListener, Pipes) {
    let (connecting, accepted) = mpsc::unbounded_channel();
    (PipesListener(accepted), Pipes(connecting))
}

pub(crate) struct PipesListener(mpsc::UnboundedReceiver<Link>);

impl Listener for PipesListener {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        Poll::Ready(ready!(self.0.poll_recv(cx)).map(Ok))
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint("pipes".to_owned())
    }
}

/// Each connection is a separate pair of pipes.
#[derive(Clone)]
pub(crate) struct Pipes(mpsc::UnboundedSender<Link>);

impl Transport for Pipes {
    fn name(&self) -> &'static str {
        "pipes"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let failed = |error: std::io::Error| TransportError::new(TransportErrorKind::Open, error);
            let descriptors = || {
                let (output, input) = pipe::pipe()?;
                Ok::<_, std::io::Error>((input.into_blocking_fd()?, output.into_blocking_fd()?))
            };
            let ((there, forth), (here, back)) =
                (descriptors().map_err(failed)?, descriptors().map_err(failed)?);
            let server = Box::new(Descriptors::new(there, back)).open().await?;
            self.0
                .send(server)
                .map_err(|_| TransportError::new(TransportErrorKind::Open, "nobody accepts"))?;
            Box::new(Descriptors::new(here, forth)).open().await
        })
    }
}
