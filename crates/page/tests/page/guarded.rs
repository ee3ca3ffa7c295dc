//! The checks of the token, the host and the origin, and the bounds.

use std::net::SocketAddr;

use rescind_core::{Outcome, RequestLog};
use rescind_page::{Page, PageError};
use serde_json::{Value, json};

use crate::serve;

#[tokio::test]
async fn the_page_is_at_its_token_and_a_wrong_token_is_as_any_unknown_path() {
    let shown = serve().await;
    let page = shown.get(&shown.path).await;
    assert_eq!(page.status, 200);
    for wanted in [
        "cache-control: no-store",
        "referrer-policy: no-referrer",
        "x-frame-options: deny",
        "x-content-type-options: nosniff",
        "content-security-policy: default-src 'none'; script-src 'nonce-",
        "require-trusted-types-for 'script'",
        "content-type: text/html; charset=utf-8",
    ] {
        assert!(page.head.contains(wanted), "{wanted}: {}", page.head);
    }
    assert!(!page.body.contains("{nonce}") && page.body.contains("<title>Rescind</title>"));
    let nonce = |head: &str| head.split("'nonce-").nth(1).unwrap()[..64].to_owned();
    assert_ne!(nonce(&page.head), nonce(&shown.get(&shown.path).await.head), "each response has its own");

    let unknown = shown.get("/nothing").await;
    assert_eq!(unknown.status, 404);
    let wrong = format!("/{}/", "0".repeat(64));
    let cut = format!("{}/", &shown.path[..shown.path.len() - 2]);
    let longer = format!("{}0/", shown.path.trim_end_matches('/'));
    for token in [
        &*wrong,
        &cut,
        &longer,
        "/",
        "//",
        "/%00/",
        &shown.path.to_uppercase().replace(char::is_numeric, "A"),
    ] {
        for (method, rest) in [("GET", ""), ("GET", "events"), ("POST", "stop/1-received-0-0")] {
            let path = format!("{token}{rest}");
            let origin = format!("http://{}", shown.address);
            let refused = shown.ask(method, &path, &[("Host", &shown.host()), ("Origin", &origin)]).await;
            assert_eq!((refused.status, &refused.body), (404, &unknown.body), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn another_host_is_refused_everywhere_so_that_no_name_leads_a_browser_here() {
    let shown = serve().await;
    let loopback = format!("localhost:{}", shown.address.port());
    assert_eq!(shown.ask("GET", &shown.path, &[("Host", &loopback)]).await.status, 200);
    for path in [&*shown.path, &shown.under("events"), "/metrics", "/healthz", "/readyz", "/"] {
        for host in ["evil.example", "127.0.0.1.evil.example", "192.0.2.7"] {
            let refused = shown.ask("GET", path, &[("Host", host)]).await;
            assert_eq!(refused.status, 421, "{host} {path}");
        }
        assert_eq!(shown.ask("GET", path, &[]).await.status, 400, "without a host: {path}");
        let two = [("Host", "localhost"), ("Host", "localhost")];
        assert_eq!(shown.ask("GET", path, &two).await.status, 400, "two hosts: {path}");
    }
}

#[tokio::test]
async fn a_stop_needs_a_page_of_the_same_origin_and_a_post() {
    let shown = serve().await;
    let client = shown.client().await;
    let call = shown.wait(&client).await;
    let log = shown.handle.request_log();
    let key = log.requests(10).into_iter().find(|request| request.parent.is_none()).unwrap().key.to_string();
    let path = shown.under(&format!("stop/{key}"));
    let host = shown.host();
    for origin in [
        &[][..],
        &[("Origin", "null")],
        &[("Origin", "http://evil.example")],
        &[("Origin", "http://localhost")],
    ] {
        let headers: Vec<_> = [("Host", &*host)].into_iter().chain(origin.iter().copied()).collect();
        assert_eq!(shown.ask("POST", &path, &headers).await.status, 403, "{origin:?}");
    }
    assert_eq!(shown.get(&path).await.status, 405, "a link or an image cannot stop it");
    assert!(log.requests(10).iter().all(|request| request.cancel.is_none()), "nothing was stopped");
    for unknown in ["", "x", "1-received-0", "%3Cscript%3E"] {
        assert_eq!(shown.stop(unknown).await.status, 404, "{unknown}");
    }
    assert_eq!(shown.stop("99999-received-0-0").await.status, 409, "it is nobody's");
    assert_eq!(shown.stop(&key).await.status, 204);
    assert!(call.outcome().await.is_cancelled());
    assert_eq!(shown.stop(&key).await.status, 409, "it has ended");
}

#[tokio::test]
async fn only_loopback_is_bound_unless_the_program_says_otherwise() {
    let log = RequestLog::new();
    let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let refused = Page::new(&log).unwrap().bind(any).await;
    assert!(matches!(refused, Err(PageError::NotLoopback(address)) if address == any), "{refused:?}");
    let page = Page::new(&log).unwrap().beyond_loopback().bind(any).await.unwrap();
    assert!(page.url().starts_with("http://0.0.0.0:"));
    let (one, other) = (Page::new(&log).unwrap(), Page::new(&log).unwrap());
    assert_ne!(one.path(), other.path(), "each start has a token of its own");
    assert!(Page::new(&log).unwrap().allow_host("http://not-a-host/").is_err());
    assert!(!format!("{one:?}{page:?}").contains(one.path().trim_matches('/')), "the token is not in a log");
}

#[tokio::test]
async fn viewers_are_bounded_and_one_that_does_not_read_stops_nobody() {
    let shown = serve().await;
    let mut viewers = Vec::new();
    for _ in 0..32 {
        let mut viewer = shown.events().await;
        assert!(viewer.status().await.contains("200"), "it may look");
        viewers.push(viewer);
    }
    assert!(shown.events().await.status().await.contains("503"), "I11");
    // No viewer reads while many requests run. A viewer that reads then gets the newest view, not all of them.
    let client = shown.client().await;
    for number in 0..300 {
        let _: serde_json::Value = client.call("echo", &serde_json::json!({"number": number})).await.unwrap();
    }
    let mut last = viewers.pop().unwrap();
    last.until(|view| view["received"]["completed"] == 300).await;
    drop(last);
    loop {
        let metrics = shown.get("/metrics").await.body;
        if metrics.contains("rescind_page_viewers 31\n") {
            break;
        }
        tokio::task::yield_now().await;
    }
}

// Texts of peers that are not what they seem.

const SCRIPT: &str = "</script><script>alert(1)</script><img src=x onerror=alert(1)>";

#[tokio::test]
async fn a_method_that_is_html_is_a_string_of_json_and_long_ones_are_cut() {
    let shown = serve().await;
    let client = shown.client().await;
    let long = "\u{202e}".repeat(100_000);
    for method in
        [SCRIPT, "a\r\ndata: {\"now\":0}\r\n\r\nevent: evil", &long, "\u{1b}[2J\0", "\u{2028}\u{2029}"]
    {
        assert!(matches!(
            client.call::<_, Value>(method, &json!({})).start().unwrap().outcome().await,
            Outcome::Failed(_)
        ));
    }
    let mut events = shown.events().await;
    let view = events.until(|view| view["ended"].as_array().is_some_and(|ended| ended.len() == 5)).await;
    let methods: Vec<_> = view["ended"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ended| ended["request"]["method"].as_str().unwrap())
        .collect();
    assert!(methods.contains(&SCRIPT), "it is a string, which the page shows as text: {methods:?}");
    for method in methods {
        assert!(method.len() <= 400, "{} bytes", method.len());
        assert!(
            method.chars().all(|shown| !shown.is_control() && !('\u{2028}'..='\u{202e}').contains(&shown)),
            "{method:?}"
        );
    }
    let page = shown.get(&shown.path).await.body;
    assert!(!page.contains("alert("), "nothing of a peer is in the page itself");
    assert!(view.to_string().len() < 20_000, "{} bytes", view.to_string().len());
}

#[test]
fn the_page_has_no_code_that_makes_html_of_a_text_and_takes_nothing_from_elsewhere() {
    let page = include_str!("../../src/page.html");
    for forbidden in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function",
        "setAttribute(\"on",
        "srcdoc",
        "javascript:",
        "<iframe",
        "<link rel=\"stylesheet\"",
        "@import",
        "url(",
        "import(",
    ] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    // The one URL is the name of a format.
    assert!(page.matches("://").count() == 1 && page.contains("xmlns='http://www.w3.org/2000/svg'"));
    assert_eq!((page.matches("<script").count(), page.matches("<style").count()), (1, 1));
    assert_eq!(page.matches("nonce=\"{nonce}\"").count(), 2);
}

#[tokio::test]
async fn a_log_of_no_connection_is_an_empty_page() {
    let page = rescind_page::Page::new(&RequestLog::new()).unwrap().bind("127.0.0.1:0").await.unwrap();
    assert_eq!(page.url().len(), format!("http://{}//", page.address()).len() + 64);
}
