//! The contract of a transport over each binding: our client's end sends, and the server's end reads.
//!
//! The rules are those of the testkit. They send arbitrary bodies, and HTTP carries messages: [`wrapped`] puts each
//! body into a message before it enters a link and takes it out when it is read. It also accepts what is read, as the
//! driver would. The link, its readiness and its end are those of the transport.
//!
//! Two rules need features that HTTP does not have, and are left out by name. A link is a session, a connection of
//! ACP's binding or a whole listener, so the end of one HTTP connection is not the end of its input. And no link can
//! be closed in one direction.
//!
//! The server's end does not send in turn. The frames of the rules are notifications, and a server drops
//! notifications if a stream is read too slowly (N4), so not all of them would arrive.

#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(clippy::expect_used, reason = "what the tests share is part of them")]

mod raw;
mod wrapped;

use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026, Role};
use rescind_core::{CallNumber, ExchangeId, Link, Peer, Transport, TransportEvent};
use rescind_http::{
    Acp, AcpTransport, HttpClient, HttpServer, LegacySse, LegacySseTransport, Stateless, StatelessTransport,
    Streamable, StreamableTransport,
};
use rescind_testkit::conformance::{Harness, RawBytes};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::contract::raw::RawHttp;
use crate::contract::wrapped::{Says, connect, serve};

/// Small, so that a frame over the limit can be written whole.
const SMALL: usize = 16 * 1024;

#[derive(Debug)]
struct OverStreamable;

impl Harness for OverStreamable {
    async fn connect(&self) -> (Link, Link) {
        let listener = HttpServer::new(Streamable::new()).bind("127.0.0.1:0").await.unwrap();
        connect(listener, |url| StreamableTransport::new(HttpClient::new(url).unwrap()), Says::Plain).await
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let small = HttpServer::new(Streamable::new()).max_frame(SMALL);
        let listener = small.bind("127.0.0.1:0").await.unwrap();
        let (raw, link) = serve(RawHttp::opening(&listener, "mcp-session-id"), listener, Says::Plain).await;
        Some((link, Box::new(raw)))
    }
}

#[derive(Debug)]
struct OverAcp;

impl Harness for OverAcp {
    async fn connect(&self) -> (Link, Link) {
        let listener = HttpServer::new(Acp::new()).bind("127.0.0.1:0").await.unwrap();
        let (client, mut server) =
            connect(listener, |url| AcpTransport::new(HttpClient::new(url).unwrap()), Says::Plain).await;
        // The client has opened its stream. The rules ignore the event for it.
        let reported = std::future::poll_fn(|cx| server.rx.as_mut().poll_event(cx)).await;
        assert!(matches!(reported, Some(Ok(TransportEvent::ExchangeResumed { .. }))), "{reported:?}");
        (client, server)
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let listener = HttpServer::new(Acp::new()).max_frame(SMALL).bind("127.0.0.1:0").await.unwrap();
        let (raw, link) =
            serve(RawHttp::opening(&listener, "acp-connection-id"), listener, Says::Plain).await;
        Some((link, Box::new(raw)))
    }
}

#[derive(Debug)]
struct OverLegacySse;

impl Harness for OverLegacySse {
    async fn connect(&self) -> (Link, Link) {
        let listener = HttpServer::new(LegacySse::new()).bind("127.0.0.1:0").await.unwrap();
        connect(listener, |url| LegacySseTransport::new(HttpClient::new(url).unwrap()), Says::Plain).await
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let small = HttpServer::new(LegacySse::new()).max_frame(SMALL);
        let listener = small.bind("127.0.0.1:0").await.unwrap();
        let (raw, link) = serve(RawHttp::legacy_sse(&listener), listener, Says::Plain).await;
        Some((link, Box::new(raw)))
    }
}

/// The server's end sends on a request that stays open, because there is no other way.
#[derive(Debug)]
struct OverStateless;

impl Harness for OverStateless {
    async fn connect(&self) -> (Link, Link) {
        let listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
        connect(listener, |url| StatelessTransport::new(HttpClient::new(url).unwrap()), Says::Version).await
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let small = HttpServer::new(Stateless::new()).max_frame(SMALL);
        let listener = small.bind("127.0.0.1:0").await.unwrap();
        let (raw, link) = serve(RawHttp::stateless(&listener), listener, Says::Version).await;
        Some((link, Box::new(raw)))
    }

    /// Each POST is separate, and notifications are posted concurrently.
    fn keeps_order(&self) -> bool {
        false
    }
}

mod streamable {
    rescind_testkit::conformance!(
        super::OverStreamable,
        without {
            end_of_input_inside_a_frame: "a session outlives its connections: the end of one is not the end of its input",
            a_closed_side_still_reads: "a session ends both ways at once",
        }
    );
}

mod acp {
    rescind_testkit::conformance!(
        super::OverAcp,
        without {
            end_of_input_inside_a_frame: "ACP's connection outlives those of HTTP: the end of one is not the end of its input",
            a_closed_side_still_reads: "ACP's connection ends both ways at once",
        }
    );
}

mod stateless {
    rescind_testkit::conformance!(
        super::OverStateless,
        without {
            end_of_input_inside_a_frame: "the link is the listener's: no connection's end is the end of its input",
            a_closed_side_still_reads: "the link is the listener's: a client cannot close its side of it",
        }
    );
}

mod legacy_sse {
    rescind_testkit::conformance!(
        super::OverLegacySse,
        without {
            end_of_input_inside_a_frame: "the input is POSTs: the end of one connection is not its end",
            a_closed_side_still_reads: "a session ends both ways at once, with its stream",
        }
    );
}

/// A client of one binding, and its dialect.
type Row = (fn(HttpClient) -> Box<dyn Transport>, Dialect);

#[tokio::test]
async fn the_first_request_uses_the_connection_of_the_reachability_check() {
    let rows: [Row; 3] = [
        (|client| Box::new(StreamableTransport::new(client)), MCP),
        (|client| Box::new(StatelessTransport::new(client)), MCP_2026),
        (|client| Box::new(AcpTransport::new(client).http1()), ACP),
    ];
    for (transport, dialect) in rows {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = HttpClient::new(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let (link, accepted) = tokio::join!(transport(client).open(), listener.accept());
        let (mut first, _) = accepted.unwrap();
        let peer = Peer::builder(dialect).role(Role::Client).attach(link.unwrap()).unwrap();
        let _call = peer.call::<_, Value>("initialize", &json!({"protocolVersion": 1})).start().unwrap();
        let mut head = [0; 5];
        let read =
            tokio::time::timeout(std::time::Duration::from_secs(30), first.read_exact(&mut head)).await;
        assert!(read.expect("it hangs").is_ok(), "the first connection was thrown away");
        assert_eq!(&head, b"POST ");
    }
}

/// The driver aborts an exchange only if ids belong to it. Otherwise a message cancels.
#[tokio::test]
async fn an_exchange_can_be_aborted_only_if_that_is_how_requests_are_cancelled() {
    type Over = fn(HttpClient) -> Box<dyn Transport>;
    let rows: [(Over, bool); 3] = [
        (|client| Box::new(StreamableTransport::new(client)), false),
        (|client| Box::new(StatelessTransport::new(client)), true),
        (|client| Box::new(AcpTransport::new(client).http1()), false),
    ];
    for (transport, is_scope) in rows {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = HttpClient::new(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let mut link = transport(client).open().await.unwrap();
        assert!(link.traits.opens_exchanges);
        let given_up = link.tx.as_mut().abort_exchange(ExchangeId::of_call(CallNumber(1)));
        assert_eq!((link.traits.exchange_scoped, given_up.is_ok()), (is_scope, is_scope));
    }
}
