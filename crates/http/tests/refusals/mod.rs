//! The tables of refusals in the crate's docs: the tests provoke each status that they name for a binding over a
//! socket, and find no other.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cors;
mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use rescind_core::dialect::{ACP, MCP, MCP_2026};
use rescind_core::{Limits, ServerLimits};
use rescind_http::{Acp, HttpServer, LegacySse, Stateless, Streamable};

use rescind_testkit::support::http1::read_until;

use crate::refusals::support::{Change, Column, Id, Served, begin, ended, head_of, serve};

const TABLE: &str = include_str!("../../src/refusals.md");

/// The statuses that the tables name: those of every binding, and those of this column, where `-` means none.
fn documented(column: Column) -> BTreeSet<u16> {
    let rows = TABLE.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let reported = rows.filter(|cells| cells.len() == 4 || cells.len() == 7 && cells[column as usize] != "-");
    reported.filter_map(|cells| cells[1].split(',').next()?.parse().ok()).collect()
}

/// The refusals that every binding has in common, each as a change of a valid request: the changes, the body if it
/// differs, the status, a part of the head.
type Row<'a> = (&'a [Change<'a>], Option<&'a str>, u16, &'a str);

const ALIKE: &[Row<'static>] = &[
    (&[("Host", "")], None, 400, ""),
    (&[("Host", "127.0.0.1\r\nHost: 127.0.0.1")], None, 400, ""),
    (&[], Some(""), 400, ""),
    (&[], Some("7"), 400, ""),
    (&[], Some("{"), 400, ""),
    (&[("X-User", "nobody")], None, 401, "www-authenticate: bearer"),
    (&[("Origin", "https://evil.example")], None, 403, ""),
    (&[("Origin", "null")], None, 403, ""),
    (&[(":path", "/elsewhere")], None, 404, ""),
    (&[("Content-Length", "")], None, 411, ""),
    (&[("Content-Length", "5000")], None, 413, ""),
    (&[("Content-Type", "")], None, 415, ""),
    (&[("Content-Type", "text/plain")], None, 415, ""),
    (&[("Content-Type", "application/json; charset=latin1")], None, 415, ""),
    (&[("Host", "evil.example")], None, 421, ""),
    (&[("Host", "192.0.2.1")], None, 421, ""),
];

/// Sends the requests that every binding refuses, then these. Returns the statuses.
async fn play(served: &Served, rows: &[Row<'_>]) -> BTreeSet<u16> {
    let mut seen = BTreeSet::new();
    for (changes, body, status, holds) in ALIKE.iter().chain(rows) {
        let got = served.refused(changes, *body).await;
        assert_eq!(got.status, *status, "{changes:?} {body:?}: {}", got.body);
        assert!(got.head.contains(holds), "{changes:?} must hold {holds:?}: {}", got.head);
        seen.insert(got.status);
    }
    seen
}

/// A server whose clients are too slow.
async fn too_slow(served: &Served) -> u16 {
    served.refused(&[("Content-Length", "4000")], None).await.status
}

#[tokio::test]
async fn streamable_refuses_as_the_table_says() {
    let served = serve(HttpServer::new(Streamable::new()).sessions(1), &[MCP], Column::Streamable).await;
    let session = served.open("mcp-session-id").await;
    let of = ("Mcp-Session-Id", session.as_str());
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let wait = r#"{"jsonrpc":"2.0","id":5,"method":"wait"}"#;
    let batch = format!("[{ping}]");
    let held = begin(&served.address, &served.request(&[of], Some(wait))).await;
    served.started().await;
    let events = ("Accept", "text/event-stream");
    let mut seen = play(
        &served,
        &[
            (&[of], Some("{}"), 400, ""),
            (&[of], Some(&batch), 400, ""),
            (&[], Some(ping), 400, ""),
            (&[of, ("MCP-Protocol-Version", "1999-01-01")], Some(ping), 400, ""),
            (&[of, events, (":method", "GET"), ("Last-Event-ID", "7-1")], Some(""), 400, ""),
            (&[("Mcp-Session-Id", "00000000000000000000000000000000")], Some(ping), 404, ""),
            (&[of, ("X-User", "bert")], Some(ping), 404, ""),
            (&[(":method", "PUT")], None, 405, "allow: get, post, delete"),
            (&[("Accept", "application/json")], None, 406, ""),
            (&[events], None, 406, ""),
            (&[of, (":method", "GET"), ("Accept", "application/json")], Some(""), 406, ""),
            (&[of], Some(wait), 409, ""),
            (&[], None, 429, "retry-after: 1"),
        ],
    )
    .await;
    drop(held);
    let slow = HttpServer::new(Streamable::new()).body_timeout(Duration::from_millis(50));
    seen.insert(too_slow(&serve(slow, &[MCP], Column::Streamable).await).await);
    seen.insert(full(HttpServer::new(Streamable::new()), Column::Streamable).await);
    assert_eq!(seen, documented(Column::Streamable));
}

/// A server whose application accepts no sessions.
async fn full<B: rescind_http::ServerBinding>(http: HttpServer<B>, column: Column) -> u16 {
    let mut none = ServerLimits::default();
    none.max_connections = 0;
    let served = support::serve_with(http, &[MCP, ACP], column, Limits::default(), none).await;
    let got = served.refused(&[], None).await;
    assert!(got.head.contains("retry-after: 1"), "{}", got.head);
    got.status
}

#[tokio::test]
async fn stateless_refuses_as_the_table_says() {
    let mut limits = Limits::default();
    (limits.max_running_handlers, limits.max_queued_requests) = (1, 0);
    let http = HttpServer::new(Stateless::new());
    let served =
        support::serve_with(http, &[MCP_2026], Column::Stateless, limits, ServerLimits::default()).await;
    let list = served.good();
    let (batch, other) = (format!("[{list}]"), list.replace("2026-07-28", "v999"));
    let bare = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
    let of = |method: &str| list.replace("tools/list", method);
    let (picky, nobody, wait) = (of("picky"), of("nobody/serves"), of("wait"));
    let mut seen = play(
        &served,
        &[
            (&[], Some(&batch), 400, ""),
            (&[], Some(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), 400, ""),
            (&[("Mcp-Method", "")], None, 400, ""),
            (&[("Mcp-Method", "tools/call")], None, 400, ""),
            (&[("MCP-Protocol-Version", "")], None, 400, ""),
            (&[], Some(&other), 400, ""),
            (&[("MCP-Protocol-Version", "v999")], Some(&other), 400, ""),
            (&[], Some(bare), 400, ""),
            (&[("Mcp-Method", "picky")], Some(&picky), 400, ""),
            (&[("Mcp-Method", "nobody/serves")], Some(&nobody), 404, ""),
            (&[(":method", "GET")], Some(""), 405, "allow: post"),
            (&[(":method", "DELETE")], Some(""), 405, "allow: post"),
            (&[("Accept", "application/json")], None, 406, ""),
            (&[("Accept", "text/event-stream")], None, 406, ""),
        ],
    )
    .await;
    let held = begin(&served.address, &served.request(&[("Mcp-Method", "wait")], Some(&wait))).await;
    served.started().await;
    seen.insert(served.refused(&[], None).await.status);
    drop(held);
    let slow = HttpServer::new(Stateless::new()).body_timeout(Duration::from_millis(50));
    seen.insert(too_slow(&serve(slow, &[MCP_2026], Column::Stateless).await).await);
    seen.insert(ended(HttpServer::new(Stateless::new()), Column::Stateless).await);
    assert_eq!(seen, documented(Column::Stateless));
}

#[tokio::test]
async fn acp_refuses_as_the_table_says() {
    let served = serve(HttpServer::new(Acp::new()).sessions(1), &[ACP], Column::Acp).await;
    let connection = served.open("acp-connection-id").await;
    let of = ("Acp-Connection-Id", connection.as_str());
    let new = r#"{"jsonrpc":"2.0","id":1,"method":"session/new"}"#;
    let prompt = r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s1"}}"#;
    let (batch, events) = (format!("[{new}]"), ("Accept", "text/event-stream"));
    // A connection that is in use is not closed to make room for another.
    let mut using = begin(&served.address, &served.request(&[of], Some(new))).await;
    assert!(head_of(&mut using).await.starts_with("http/1.1 202"));
    let mut seen = play(
        &served,
        &[
            (&[of], Some("[]"), 400, ""),
            (&[of], None, 400, ""),
            (&[], Some(new), 400, ""),
            (&[of], Some(prompt), 400, ""),
            (&[of, ("Acp-Session-Id", "s2")], Some(prompt), 400, ""),
            (&[of, events, (":method", "GET"), ("Last-Event-ID", "7-1")], Some(""), 400, ""),
            (&[of, events, (":method", "GET"), ("Last-Event-ID", "0-9")], Some(""), 400, ""),
            (&[("Acp-Connection-Id", "0")], Some(new), 404, ""),
            (&[of, ("X-User", "bert")], Some(new), 404, ""),
            (&[of, (":method", "PUT")], None, 405, "allow: get, post, delete"),
            (&[of, (":method", "GET"), ("Accept", "application/json")], Some(""), 406, ""),
            (&[], None, 429, "retry-after: 1"),
            (&[of], Some(&batch), 501, ""),
        ],
    )
    .await;
    let slow = HttpServer::new(Acp::new()).body_timeout(Duration::from_millis(50));
    seen.insert(too_slow(&serve(slow, &[ACP], Column::Acp).await).await);
    seen.insert(full(HttpServer::new(Acp::new()), Column::Acp).await);
    assert_eq!(ended(HttpServer::new(Acp::new()), Column::Acp).await, 503);
    assert_eq!(seen, documented(Column::Acp));
}

#[tokio::test]
async fn legacy_sse_refuses_as_the_table_says() {
    const GET: [Change<'static>; 2] = [(":method", "GET"), ("Accept", "text/event-stream")];
    let opens = [GET[0], GET[1], (":path", "/here")];
    let mut served = serve(HttpServer::new(LegacySse::new()).sessions(1), &[MCP], Column::LegacySse).await;
    let mut stream = begin(&served.address, &served.request(&opens, Some(""))).await;
    let named = read_until(&mut stream, "\n\n").await;
    served.target = named.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    // A session that is in use is not ended to make room for another.
    for _ in 0..2 {
        let mut socket = begin(&served.address, &served.request(&[], None)).await;
        assert!(head_of(&mut socket).await.starts_with("http/1.1 202"));
    }
    let batch = format!("[{}]", served.good());
    let guessed = format!("/here?sessionId={}", "0".repeat(32));
    let mut seen = play(
        &served,
        &[
            (&[], Some("[]"), 400, ""),
            (&[], Some(&batch), 400, ""),
            (&[(":path", "/here")], None, 400, ""),
            (&[("X-User", "bert")], None, 403, ""),
            (&[(":path", guessed.as_str())], None, 404, ""),
            (&[(":method", "DELETE")], None, 405, "allow: get, post"),
            (&[(":method", "GET"), ("Accept", "application/json")], Some(""), 406, ""),
            (&opens, Some(""), 429, "retry-after: 1"),
        ],
    )
    .await;
    let mut slow = serve(
        HttpServer::new(LegacySse::new()).body_timeout(Duration::from_millis(50)),
        &[MCP],
        Column::LegacySse,
    )
    .await;
    let mut waiting = begin(&slow.address, &slow.request(&opens, Some(""))).await;
    let named = read_until(&mut waiting, "\n\n").await;
    slow.target = named.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    seen.insert(too_slow(&slow).await);
    seen.insert(ended(HttpServer::new(LegacySse::new()), Column::LegacySse).await);
    assert_eq!(seen, documented(Column::LegacySse));
}

#[tokio::test]
async fn a_non_loopback_listener_accepts_ip_addresses_as_host_and_no_name() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let served = support::serve_on(HttpServer::new(Acp::new()), &[ACP], Column::Acp, address).await;
        for (host, status) in
            [("127.0.0.1", 200), ("[::1]:9", 200), ("192.0.2.1:9", 200), ("[::]:9", 200), ("localhost", 200)]
        {
            let mut socket = begin(&served.address, &served.request(&[("Host", host)], None)).await;
            let head = head_of(&mut socket).await;
            assert!(head.starts_with(&format!("http/1.1 {status}")), "{address} {host}: {head}");
        }
        assert_eq!(served.refused(&[("Host", "evil.example")], None).await.status, 421, "{address}");
    }
}

#[tokio::test]
async fn a_head_with_too_many_fields_gets_431_and_ends_its_connection() {
    let served = serve(HttpServer::new(Acp::new()), &[ACP], Column::Acp).await;
    let fields: Vec<_> = (0..65).map(|n| (format!("X-{n}"), "x")).collect();
    let fields: Vec<Change<'_>> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut socket = begin(&served.address, &served.request(&fields, Some(""))).await;
    let head = head_of(&mut socket).await;
    assert!(head.starts_with("http/1.1 431"), "{head}");
    assert!(head.contains("connection: close"), "{head}");
}

#[test]
fn an_id_of_a_refusal_is_null_or_not_there() {
    assert!(Id::Null.fits(&serde_json::json!({"id": null})));
    assert!(!Id::Null.fits(&serde_json::json!({})));
    assert!(Id::Absent.fits(&serde_json::json!({})));
}
