//! The requests and responses with which a browser permits a page of another origin to use a server. On every binding
//! they work for allowed origins, and for any other origin the response has no CORS header.

use rescind_core::dialect::{ACP, MCP, MCP_2026};
use rescind_http::{Acp, HttpServer, McpRevisions, ServerBinding, Stateless, Streamable};

use crate::refusals::support::{Change, Column, Served, begin, head_of, serve};

const APP: &str = "https://app.example";

/// The binding of a column, with the content of its preflight answer and the exposed headers.
struct PageRow {
    served: Served,
    methods: &'static str,
    headers: &'static [&'static str],
    exposed: &'static [&'static str],
}

fn allowing<B: ServerBinding>(binding: B) -> HttpServer<B> {
    HttpServer::new(binding).allow_origin(APP).unwrap()
}

async fn rows() -> Vec<PageRow> {
    let streamable = serve(allowing(Streamable::new()), &[MCP], Column::Streamable).await;
    let stateless = serve(allowing(Stateless::new()), &[MCP_2026], Column::Stateless).await;
    let acp = serve(allowing(Acp::new()), &[ACP], Column::Acp).await;
    let both = serve(allowing(McpRevisions::default()), &[MCP, MCP_2026], Column::Streamable).await;
    vec![
        PageRow {
            served: streamable,
            methods: "get, post, delete",
            headers: &["mcp-session-id", "mcp-protocol-version", "last-event-id"],
            exposed: &["mcp-session-id"],
        },
        PageRow {
            served: stateless,
            methods: "post",
            headers: &["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-region"],
            exposed: &[],
        },
        PageRow {
            served: acp,
            methods: "get, post, delete",
            headers: &["acp-connection-id", "acp-session-id", "last-event-id"],
            exposed: &["acp-connection-id", "acp-session-id"],
        },
        PageRow {
            served: both,
            methods: "get, post, delete",
            headers: &["mcp-session-id", "last-event-id", "mcp-method", "mcp-name", "mcp-param-region"],
            exposed: &["mcp-session-id"],
        },
    ]
}

/// The head of the answer to a request with these changes.
async fn asked(served: &Served, changes: &[Change<'_>], body: Option<&str>) -> String {
    head_of(&mut begin(&served.address, &served.request(changes, body)).await).await
}

/// A preflight for a page of this origin.
async fn preflight(served: &Served, origin: &str, changes: &[Change<'_>]) -> String {
    let mut all = vec![
        (":method", "OPTIONS"),
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type,mcp-param-region"),
        // A browser sends a preflight without credentials.
        ("X-User", "nobody"),
        ("Content-Type", ""),
        ("Content-Length", ""),
    ];
    all.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    all.extend(changes);
    asked(served, &all, Some("")).await
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let values: Vec<_> =
        head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect();
    assert!(values.len() <= 1, "{name} is there once: {head}");
    values.first().copied()
}

fn lists(head: &str, name: &str, value: &str) -> bool {
    field(head, name).is_some_and(|values| values.split(',').any(|one| one.trim() == value))
}

#[tokio::test]
async fn a_preflight_of_an_allowed_page_is_answered_on_every_binding() {
    for row in rows().await {
        let head = preflight(&row.served, APP, &[]).await;
        assert!(head.starts_with("http/1.1 204"), "{head}");
        assert_eq!(field(&head, "access-control-allow-origin"), Some(APP), "{head}");
        assert_eq!(field(&head, "access-control-allow-methods"), Some(row.methods), "{head}");
        for name in ["accept", "authorization", "content-type"].iter().chain(row.headers) {
            assert!(lists(&head, "access-control-allow-headers", name), "{name}: {head}");
        }
        assert!(lists(&head, "vary", "origin"), "{head}");
        assert!(field(&head, "access-control-max-age").is_some(), "{head}");
        assert_eq!(field(&head, "access-control-allow-credentials"), None, "{head}");
        assert_eq!(field(&head, "access-control-allow-private-network"), None, "{head}");
        let private = [("Access-Control-Request-Private-Network", "true")];
        let head = preflight(&row.served, APP, &private).await;
        assert_eq!(field(&head, "access-control-allow-private-network"), Some("true"), "{head}");
        let head = preflight(&row.served, "http://localhost:3000", &[]).await;
        assert_eq!(field(&head, "access-control-allow-origin"), Some("http://localhost:3000"), "{head}");
    }
}

#[tokio::test]
async fn a_page_of_another_origin_gets_no_cors_headers() {
    for row in rows().await {
        for origin in
            ["https://evil.example", "null", "http://app.example", "https://app.example.evil.example"]
        {
            let preflight = preflight(&row.served, origin, &[]).await;
            let post = asked(&row.served, &[("Origin", origin)], None).await;
            for head in [preflight, post] {
                assert!(head.starts_with("http/1.1 403"), "{origin}: {head}");
                assert!(!head.contains("access-control-"), "{origin}: {head}");
                assert!(lists(&head, "vary", "origin"), "{origin}: {head}");
            }
        }
        let two =
            asked(&row.served, &[("Origin", "https://app.example\r\nOrigin: https://app.example")], None);
        assert!(!two.await.contains("access-control-"));
        let elsewhere = preflight(&row.served, APP, &[("Host", "evil.example")]).await;
        assert!(elsewhere.starts_with("http/1.1 421"), "{elsewhere}");
        assert!(!elsewhere.contains("access-control-"), "{elsewhere}");
    }
}

#[tokio::test]
async fn answers_and_refusals_can_be_read_by_an_allowed_page() {
    for row in rows().await {
        let events = ("Accept", "text/plain");
        for (changes, body, status) in [
            (&[][..], None, "200"),
            (&[("X-User", "nobody")], None, "401"),
            (&[(":path", "/elsewhere")], None, "404"),
            (&[(":method", "PUT")], None, "405"),
            (&[events], None, "406"),
            (&[("Content-Length", "5000")], None, "413"),
            (&[("Content-Type", "text/plain")], None, "415"),
        ] {
            // ACP's binding does not check `Accept` of a POST.
            if status == "406" && row.exposed.contains(&"acp-connection-id") {
                continue;
            }
            let mut all = vec![("Origin", APP)];
            all.extend(changes);
            let head = asked(&row.served, &all, body).await;
            assert!(head.starts_with(&format!("http/1.1 {status}")), "{changes:?}: {head}");
            assert_eq!(field(&head, "access-control-allow-origin"), Some(APP), "{changes:?}: {head}");
            assert!(lists(&head, "vary", "origin"), "{changes:?}: {head}");
            for name in ["www-authenticate", "retry-after"].iter().chain(row.exposed) {
                assert!(lists(&head, "access-control-expose-headers", name), "{name}: {head}");
            }
        }
        let head = asked(&row.served, &[], None).await;
        assert!(!head.contains("access-control-"), "no page asks: {head}");
    }
}

#[tokio::test]
async fn an_options_request_without_preflight_headers_is_refused_as_a_method() {
    for row in rows().await {
        for changes in [&[(":method", "OPTIONS")][..], &[(":method", "OPTIONS"), ("Origin", APP)]] {
            let head = asked(&row.served, changes, None).await;
            assert!(head.starts_with("http/1.1 405"), "{changes:?}: {head}");
        }
        let head = preflight(&row.served, APP, &[(":path", "/elsewhere")]).await;
        assert!(head.starts_with("http/1.1 404"), "{head}");
    }
}

#[tokio::test]
async fn credentials_and_further_headers_are_allowed_by_setting_only() {
    let http = || HttpServer::new(Streamable::new()).allow_header("X-Api-Key").unwrap().allow_credentials();
    let served = serve(http().allow_origin(APP).unwrap(), &[MCP], Column::Streamable).await;
    let head = preflight(&served, APP, &[]).await;
    assert!(lists(&head, "access-control-allow-headers", "x-api-key"), "{head}");
    assert!(!lists(&head, "access-control-allow-headers", "mcp-param-region"), "{head}");
    assert_eq!(field(&head, "access-control-allow-credentials"), Some("true"), "{head}");
    let head = asked(&served, &[("Origin", APP)], None).await;
    assert_eq!(field(&head, "access-control-allow-credentials"), Some("true"), "{head}");

    // A page of another origin must not act with the cookies of its reader.
    let open = serve(http().allow_any_origin(), &[MCP], Column::Streamable).await;
    for head in
        [preflight(&open, "https://any.example", &[]).await, asked(&open, &[("Origin", "null")], None).await]
    {
        assert!(field(&head, "access-control-allow-origin").is_some(), "{head}");
        assert_eq!(field(&head, "access-control-allow-credentials"), None, "{head}");
    }
    assert!(HttpServer::new(Streamable::new()).allow_header("not a name").is_err());
}
