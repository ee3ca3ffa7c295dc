//! The raw frames of one end, after the handshake.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::io;

use rescind_core::BoxFuture;
use rescind_testkit::conformance::RawBytes;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{accept_async, client_async};

pub(crate) struct RawFrames {
    stream: TcpStream,
    /// A client masks its frames.
    mask: Option<[u8; 4]>,
}

/// A client's end.
pub(crate) async fn client(url: &str) -> RawFrames {
    let authority = url.trim_start_matches("ws://");
    let address = authority.split('/').next().unwrap_or(authority);
    let stream = TcpStream::connect(address).await.unwrap();
    let (socket, _) = client_async(url, stream).await.unwrap();
    RawFrames { stream: socket.into_inner(), mask: Some([1, 2, 3, 4]) }
}

/// A server's end, for the first client that connects.
pub(crate) async fn server(socket: TcpListener) -> RawFrames {
    let (stream, _) = socket.accept().await.unwrap();
    let socket = accept_async(stream).await.unwrap();
    RawFrames { stream: socket.into_inner(), mask: None }
}

impl RawBytes for RawFrames {
    /// One text message in one frame, with a length of one byte.
    fn frame(&self, body: &[u8]) -> Vec<u8> {
        let length = u8::try_from(body.len()).unwrap();
        assert!(length < 126, "a body of a few bytes");
        let masked = if self.mask.is_some() { 0x80 } else { 0 };
        let mut frame = vec![0x81, masked | length];
        let mask = self.mask.unwrap_or_default();
        frame.extend(self.mask.iter().flatten());
        frame.extend(body.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(self.stream.write_all(bytes))
    }

    fn end(&mut self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(self.stream.shutdown())
    }
}
