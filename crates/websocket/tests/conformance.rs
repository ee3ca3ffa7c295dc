//! Checks the WebSocket transport against the contract: over real sockets, over a narrow pipe, over TLS and through a
//! route.
//!
//! Three rules need features that a WebSocket does not have: it cannot continue after a message that it refuses, and
//! it cannot be closed in one direction.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use crate::common;
use crate::raw;

use rescind_core::{Link, Listener, Transport};
use rescind_testkit::conformance::{Harness, RawBytes};
use rescind_websocket::{LinkOptions, UpgradeOptions, WebSocketListener, connect};
use tokio::net::TcpListener;

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
            let (raw, link) = tokio::join!(raw::server(socket), transport.open());
            return Some((link.unwrap(), Box::new(raw)));
        }
        let upgrade = UpgradeOptions::new().link(options());
        let listener = WebSocketListener::builder().options(upgrade).bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.endpoint();
        let raw = raw::client(&endpoint.0);
        let mut listener = Box::pin(listener);
        let (link, raw) = tokio::join!(listener.accept(), raw);
        Some((link.unwrap().unwrap(), Box::new(raw)))
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
            let raw = raw::client(&url);
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
