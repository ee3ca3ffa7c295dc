//! A client opens a connection to check that its server can be reached, and sends its first request on the same
//! connection.

use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026, Role};
use rescind_core::{CallNumber, ExchangeId, Peer, Transport};
use rescind_http::{AcpTransport, HttpClient, StatelessTransport, StreamableTransport};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

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
