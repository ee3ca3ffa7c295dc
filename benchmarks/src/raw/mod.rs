//! The floor of each transport between two processes: an echo of the same bytes with the same underlying library,
//! without our code.

mod http;
mod lines;
mod websocket;

use bytes::Bytes;

use crate::clock;
use crate::cross_process::{Far, Wire};

/// The calling side.
#[derive(Debug)]
pub enum RawClient {
    /// One line for each frame.
    Lines(lines::Lines),
    /// One message for each frame.
    WebSocket(Box<websocket::Socket>),
    /// One POST for each frame.
    Http(http::Poster),
}

impl RawClient {
    /// A client of a server of [`Serves::Raw`](crate::cross_process::Serves::Raw).
    ///
    /// # Panics
    /// If it cannot connect.
    pub async fn open(wire: Wire, far: &mut Far) -> Self {
        match wire {
            Wire::Stdio => {
                let (input, output) = far.take_pipes();
                Self::Lines(lines::of_pipes(input, output))
            }
            Wire::NamedPipe => Self::Lines(lines::connect(&far.endpoint).await),
            Wire::WebSocket => Self::WebSocket(Box::new(websocket::connect(&far.endpoint).await)),
            Wire::Streamable | Wire::Streamable2 | Wire::Stateless | Wire::Stateless2 | Wire::Acp => {
                Self::Http(http::connect(wire, &far.endpoint).await)
            }
        }
    }

    /// One round trip, in nanoseconds.
    ///
    /// # Panics
    /// If the server does not echo.
    pub async fn echo(&mut self, frame: &Bytes) -> u64 {
        let begin = clock();
        let echoed = match self {
            Self::Lines(lines) => lines.echo(frame).await,
            Self::WebSocket(socket) => websocket::echo(socket, frame).await,
            Self::Http(poster) => poster.echo(frame).await,
        };
        let took = clock() - begin;
        assert_eq!(echoed, frame.len());
        took
    }
}

/// The frame that our client would send.
#[must_use]
pub fn frame(wire: Wire, bytes: usize) -> Bytes {
    let params = wire.params(bytes);
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":1234,"method":"echo","params":{params}}}"#))
}

/// Echoes until this process is asked to end.
pub(crate) async fn serve(wire: Wire, listens: fn(&str)) {
    match wire {
        Wire::Stdio => {
            let (input, output) = crate::cross_process::own_pipes();
            let pipes = lines::of_pipes(input, output);
            listens("stdio");
            pipes.echo_all().await;
        }
        Wire::NamedPipe => lines::serve(listens).await,
        Wire::WebSocket => websocket::serve(listens).await,
        Wire::Streamable | Wire::Streamable2 | Wire::Stateless | Wire::Stateless2 | Wire::Acp => {
            http::serve(wire, listens).await;
        }
    }
}
