//! The contract of a transport over each binding: our client's end is the one that sends, the server's end reads.
//!
//! The rules are the testkit's own. They send bodies of their own making, and HTTP carries messages: [`wrapped`] puts each
//! body into a message on its way into a link and takes it out where it is read, and accepts what is read as the driver
//! would. What the rules say of a link, its readiness and its end is the wire's own.
//!
//! Two rules ask for what HTTP has not, and are left out by name: a link is a session, a connection of ACP's or a whole
//! listener, so the end of one HTTP connection is not the end of its input; and none of them can be closed one way.
//!
//! The server's end does not take its turn at sending: the rules' frames are notifications, and those of a server give way
//! where a stream is not read fast enough (N4), so that not each of them arrives.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(clippy::expect_used, reason = "what the tests share is part of them")]

mod first_connection;
mod raw;
mod wrapped;

use rescind_core::{Link, TransportEvent};
use rescind_http::{
    Acp, AcpTransport, HttpClient, HttpServer, Stateless, StatelessTransport, Streamable, StreamableTransport,
};
use rescind_testkit::conformance::{Harness, RawBytes};

use self::raw::RawHttp;
use self::wrapped::{Says, connect, serve};

/// So that a frame over the limit is small enough to be written whole.
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
        // The client has its stream open: what is told of that is not the rules' concern.
        let told = std::future::poll_fn(|cx| server.rx.as_mut().poll_event(cx)).await;
        assert!(matches!(told, Some(Ok(TransportEvent::ExchangeResumed { .. }))), "{told:?}");
        (client, server)
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let listener = HttpServer::new(Acp::new()).max_frame(SMALL).bind("127.0.0.1:0").await.unwrap();
        let (raw, link) =
            serve(RawHttp::opening(&listener, "acp-connection-id"), listener, Says::Plain).await;
        Some((link, Box::new(raw)))
    }
}

/// The server's end speaks on a request that is open all the time: there is no other way.
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

    /// Each POST stands for itself, and notifications are posted beside each other.
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
