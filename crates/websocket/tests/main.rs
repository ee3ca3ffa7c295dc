//! The tests of WebSocket connections, except `thousand.rs`, which measures the memory of its own process.
//!
//! This file checks the transport against the contract: over real sockets, over a narrow pipe, over TLS and through a
//! route.
//!
//! Three rules need features that a WebSocket does not have: it cannot continue after a message that it refuses, and
//! it cannot be closed in one direction.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod admission;
mod common;
mod sessions;

use std::io;

use rescind_core::{BoxFuture, Link, Listener, Transport};
use rescind_testkit::conformance::{Harness, RawBytes};
use rescind_websocket::{LinkOptions, UpgradeOptions, WebSocketListener, connect};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{accept_async, client_async};

fn options() -> LinkOptions {
    LinkOptions::new().max_frame(400 * 1024)
}

/// Either side of a connection may be the client. `true`: the server's end comes first.
#[derive(Debug)]
struct Tcp(bool);

impl Harness for Tcp {
    async fn connect(&self) -> (Link, Link) {
        let upgrade = UpgradeOptions::new().link(options());
        let listener = WebSocketListener::builder().options(upgrade).bind("127.0.0.1:0").await.unwrap();
        let transport = Box::new(connect(&listener.endpoint().0).options(options()));
        let mut listener = Box::pin(listener);
        let (server, client) = tokio::join!(listener.accept(), transport.open());
        let (server, client) = (server.unwrap().unwrap(), client.unwrap());
        if self.0 { (server, client) } else { (client, server) }
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        if !self.0 {
            let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let transport =
                Box::new(connect(&format!("ws://{}", socket.local_addr().unwrap())).options(options()));
            let (raw, link) = tokio::join!(raw_server(socket), transport.open());
            return Some((link.unwrap(), Box::new(raw)));
        }
        let upgrade = UpgradeOptions::new().link(options());
        let listener = WebSocketListener::builder().options(upgrade).bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.endpoint();
        let raw = raw_client(&endpoint.0);
        let mut listener = Box::pin(listener);
        let (link, raw) = tokio::join!(listener.accept(), raw);
        Some((link.unwrap().unwrap(), Box::new(raw)))
    }
}

/// The raw frames of one end, after the handshake.
struct RawFrames {
    stream: TcpStream,
    /// A client masks its frames.
    mask: Option<[u8; 4]>,
}

/// A client's end.
async fn raw_client(url: &str) -> RawFrames {
    let authority = url.trim_start_matches("ws://");
    let address = authority.split('/').next().unwrap_or(authority);
    let stream = TcpStream::connect(address).await.unwrap();
    let (socket, _) = client_async(url, stream).await.unwrap();
    RawFrames { stream: socket.into_inner(), mask: Some([1, 2, 3, 4]) }
}

/// A server's end, for the first client that connects.
async fn raw_server(socket: TcpListener) -> RawFrames {
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

mod from_the_client {
    rescind_testkit::conformance!(
        super::Tcp(false),
        without {
            oversize_then_a_valid_frame: "RFC 6455 has it close the connection (1009): nothing valid can follow",
            bad_utf8_then_a_valid_frame: "RFC 6455 has it close the connection (1007): nothing valid can follow",
            a_closed_side_still_reads: "RFC 6455 has a close answered by a close: both ways end at once",
        }
    );
}

mod from_the_server {
    rescind_testkit::conformance!(
        super::Tcp(true),
        without {
            oversize_then_a_valid_frame: "RFC 6455 has it close the connection (1009): nothing valid can follow",
            bad_utf8_then_a_valid_frame: "RFC 6455 has it close the connection (1007): nothing valid can follow",
            a_closed_side_still_reads: "RFC 6455 has a close answered by a close: both ways end at once",
        }
    );
}

#[cfg(feature = "rustls")]
mod tls {
    use super::*;

    #[derive(Debug)]
    struct Tls;

    impl Harness for Tls {
        async fn connect(&self) -> (Link, Link) {
            let authority = common::tls::Authority::new();
            let upgrade = UpgradeOptions::new().link(options());
            let listener = WebSocketListener::builder()
                .options(upgrade)
                .tls(authority.server())
                .bind("127.0.0.1:0")
                .await
                .unwrap();
            let transport =
                Box::new(connect(&listener.endpoint().0).options(options()).tls(authority.client()));
            let mut listener = Box::pin(listener);
            let (server, client) = tokio::join!(listener.accept(), transport.open());
            (client.unwrap(), server.unwrap().unwrap())
        }
    }

    mod over_tls {
        rescind_testkit::conformance!(
            super::Tls,
            without {
                one_byte_at_a_time: "TLS hands the frames on as it likes; over TCP it is tried",
                end_of_input_inside_a_frame: "TLS hands the frames on as it likes; over TCP it is tried",
                oversize_then_a_valid_frame: "RFC 6455 has it close the connection (1009): nothing valid can follow",
                bad_utf8_then_a_valid_frame: "RFC 6455 has it close the connection (1007): nothing valid can follow",
                a_closed_side_still_reads: "RFC 6455 has a close answered by a close: both ways end at once",
            }
        );
    }
}

#[cfg(feature = "axum")]
mod route {
    use super::*;

    #[derive(Debug)]
    struct Route;

    impl Harness for Route {
        async fn connect(&self) -> (Link, Link) {
            let (listener, url, _serving) = common::route::serve(UpgradeOptions::new().link(options())).await;
            let mut listener = Box::pin(listener);
            let transport = Box::new(connect(&url).options(options()));
            let (server, client) = tokio::join!(listener.accept(), transport.open());
            (client.unwrap(), server.unwrap().unwrap())
        }

        async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
            let (listener, url, _serving) = common::route::serve(UpgradeOptions::new().link(options())).await;
            let raw = raw_client(&url);
            let mut listener = Box::pin(listener);
            let (link, raw) = tokio::join!(listener.accept(), raw);
            Some((link.unwrap().unwrap(), Box::new(raw)))
        }
    }

    mod through_axum {
        rescind_testkit::conformance!(
            super::Route,
            without {
                oversize_then_a_valid_frame: "RFC 6455 has it close the connection (1009): nothing valid can follow",
                bad_utf8_then_a_valid_frame: "RFC 6455 has it close the connection (1007): nothing valid can follow",
                a_closed_side_still_reads: "RFC 6455 has a close answered by a close: both ways end at once",
            }
        );
    }
}
