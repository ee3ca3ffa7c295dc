//! The WebSocket wire against the contract: over real sockets, over a narrow pipe, over TLS and through a route.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod common;

use std::future::poll_fn;
use std::pin::pin;

use rescind_core::{Link, Listener, Transport};
use rescind_testkit::conformance::Harness;
use rescind_websocket::{LinkOptions, UpgradeOptions, WebSocketListener, connect};

fn options() -> LinkOptions {
    LinkOptions::new().max_frame(400 * 1024)
}

/// Either side of a connection may be the client: `true` gives the server's end first.
#[derive(Debug)]
struct Tcp(bool);

impl Harness for Tcp {
    async fn connect(&self) -> (Link, Link) {
        let upgrade = UpgradeOptions::new().link(options());
        let listener = WebSocketListener::builder().options(upgrade).bind("127.0.0.1:0").await.unwrap();
        let transport = Box::new(connect(&listener.endpoint().0).options(options()));
        let mut listener = pin!(listener);
        let (server, client) =
            tokio::join!(poll_fn(|cx| listener.as_mut().poll_accept(cx)), transport.open());
        let (server, client) = (server.unwrap().unwrap(), client.unwrap());
        if self.0 { (server, client) } else { (client, server) }
    }

    fn half_closes(&self) -> bool {
        false
    }
}

mod from_the_client {
    rescind_testkit::conformance!(super::Tcp(false));
}

mod from_the_server {
    rescind_testkit::conformance!(super::Tcp(true));
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
            let mut listener = pin!(listener);
            let (server, client) =
                tokio::join!(poll_fn(|cx| listener.as_mut().poll_accept(cx)), transport.open());
            (client.unwrap(), server.unwrap().unwrap())
        }

        fn half_closes(&self) -> bool {
            false
        }
    }

    mod over_tls {
        rescind_testkit::conformance!(super::Tls);
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
            let mut listener = pin!(listener);
            let transport = Box::new(connect(&url).options(options()));
            let (server, client) =
                tokio::join!(poll_fn(|cx| listener.as_mut().poll_accept(cx)), transport.open());
            (client.unwrap(), server.unwrap().unwrap())
        }

        fn half_closes(&self) -> bool {
            false
        }
    }

    mod through_axum {
        rescind_testkit::conformance!(super::Route);
    }
}
