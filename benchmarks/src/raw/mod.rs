//! The floor of each transport between two processes: an echo of the same bytes with the same underlying library,
//! without our code.

mod content_length;
mod http;
mod lines;
mod websocket;

use bytes::Bytes;
use rescind_core::Incoming;
use rescind_core::dialect::{ACP, ReplyTo};

use crate::clock;
use crate::cross_process::{Far, Wire};

/// The calling side.
#[derive(Debug)]
pub enum RawClient {
    /// One line for each frame.
    Lines(lines::Lines),
    /// A header with its length before each frame.
    Headed(content_length::Headed),
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
            Wire::ContentLength => {
                let (input, output) = far.take_pipes();
                Self::Headed(content_length::of_pipes(input, output))
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
            Self::Headed(headed) => headed.exchange(frame).await.len(),
            Self::WebSocket(socket) => websocket::exchange(socket, frame.clone()).await.len(),
            Self::Http(poster) => poster.exchange(frame.clone()).await.len(),
        };
        let took = clock() - begin;
        assert_eq!(echoed, frame.len());
        took
    }

    /// Sends this frame, and returns the answered one.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn exchange(&mut self, frame: Bytes) -> Bytes {
        match self {
            Self::Lines(lines) => lines.exchange(&frame).await,
            Self::Headed(headed) => headed.exchange(&frame).await,
            Self::WebSocket(socket) => websocket::exchange(socket, frame).await,
            Self::Http(poster) => poster.exchange(frame).await,
        }
    }
}

/// The frame that our client would send.
#[must_use]
pub fn frame(wire: Wire, bytes: usize) -> Bytes {
    let params = wire.params(bytes);
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":1234,"method":"echo","params":{params}}}"#))
}

/// What a server answers a frame with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// The same bytes.
    Same,
    /// The envelope of a request is read, and an answer with its params is written.
    Envelope,
}

impl Answers {
    /// The answer to a frame.
    ///
    /// # Panics
    /// If an envelope is not that of a request with params.
    fn to(self, frame: Bytes) -> Bytes {
        if self == Self::Same {
            return frame;
        }
        let Incoming::Request(request) = ACP.codec().decode(&frame) else { panic!("a request is echoed") };
        let params = request.params.expect("an echo has params");
        let mut out = Vec::with_capacity(params.get().len() + 128);
        let to = ReplyTo { id: &request.id, tag: request.tag, server_cancellable: false };
        ACP.codec().encode_value(ACP.rules(), &mut out, &to, params);
        Bytes::from(out)
    }
}

/// Echoes until this process is asked to end.
pub(crate) async fn serve(wire: Wire, answers: Answers, listens: fn(&str)) {
    match wire {
        Wire::Stdio => {
            let (input, output) = crate::cross_process::own_pipes();
            let pipes = lines::of_pipes(input, output);
            listens("stdio");
            pipes.answer_all(answers).await;
        }
        Wire::ContentLength => {
            let (input, output) = crate::cross_process::own_pipes();
            let pipes = content_length::of_pipes(input, output);
            listens("stdio");
            pipes.answer_all(answers).await;
        }
        Wire::NamedPipe => lines::serve(answers, listens).await,
        Wire::WebSocket => websocket::serve(answers, listens).await,
        Wire::Streamable | Wire::Streamable2 | Wire::Stateless | Wire::Stateless2 | Wire::Acp => {
            http::serve(wire, answers, listens).await;
        }
    }
}
