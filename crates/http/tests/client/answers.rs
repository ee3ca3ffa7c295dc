//! Each POST ends its call, whatever its response holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_core::Outcome;
use rescind_core::dialect::{ACP, MCP_2026};
use rescind_http::{AcpTransport, HttpClient, StatelessTransport, StreamableTransport};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};

use crate::client::{Asked, Client, EVENTS, JSON, RawServer, answer, held, opened, response, result, well};

const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Responses that do not answer a request, and what the error of the call says.
fn no_answers() -> Vec<(&'static str, String, &'static [&'static str])> {
    vec![
        (
            "an object",
            response("200 OK", &[JSON], r#"{"detail":"Not authenticated"}"#),
            &["200 OK", r#"{"detail":"Not authenticated"}"#],
        ),
        ("an empty body of JSON", response("200 OK", &[JSON], ""), &["200 OK and application/json"]),
        ("no content", response("204 No Content", &[], ""), &["204 No Content and no message"]),
        ("accepted", response("202 Accepted", &[], ""), &["202 Accepted and no message"]),
        (
            "a page",
            response("200 OK", &["Content-Type: text/html; charset=utf-8"], "<html>\n<b>Log in</b>"),
            &["200 OK and text/html", r"<html>\n<b>Log in</b>"],
        ),
        ("a page as JSON", response("200 OK", &[JSON], "<html>"), &["200 OK and application/json", "<html>"]),
        ("text without a type", response("200 OK", &[], "hello"), &["200 OK and no message", "hello"]),
        ("a scalar", response("200 OK", &[JSON], "null"), &["200 OK", ": null"]),
        (
            "the answer to another call",
            response("200 OK", &[JSON], r#"{"jsonrpc":"2.0","id":4711,"result":{}}"#),
            &["200 OK", "4711"],
        ),
        (
            "a notification",
            response("200 OK", &[JSON], r#"{"jsonrpc":"2.0","method":"told"}"#),
            &["200 OK", "told"],
        ),
        (
            "an error page",
            response("500 Oops", &["Content-Type: text/html"], "<b>"),
            &["500 Internal", "<b>"],
        ),
        (
            "an error of a framework",
            response("403 No", &[JSON], r#"{"error":"forbidden"}"#),
            &["403 Forbidden", r#"{"error":"forbidden"}"#],
        ),
        (
            "an error of a failing server",
            response("503 No", &[JSON], r#"{"jsonrpc":"2.0","error":{"code":-32603,"message":"down"}}"#),
            &["503 Service Unavailable", "down"],
        ),
        ("a stream that ends", response("200 OK", &[EVENTS], ""), &["ended without the answer", "200 OK"]),
        (
            "a stream with another answer",
            response("200 OK", &[EVENTS], "data: {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}\n\n"),
            &["ended without the answer", r#""id":4711"#],
        ),
        (
            "a stream of objects",
            response("200 OK", &[EVENTS], "data: {\"detail\":\"no\"}\n\n"),
            &["ended without the answer", r#"{"detail":"no"}"#],
        ),
        (
            "half of an answer",
            response("200 OK", &[EVENTS], "data: {\"jsonrpc\":\"2.0\",\"id\":"),
            &["ended without the answer", r#"{"jsonrpc":"2.0","id":"#],
        ),
        (
            "an event stream that is labelled as JSON",
            response("200 OK", &[JSON], "data: {\"jsonrpc\":\"2.0\"}\n\n"),
            &["200 OK", r#"data: {"jsonrpc":"2.0"}"#],
        ),
        (
            "a page that is labelled as an event stream",
            response("200 OK", &[EVENTS], "<!doctype html>\n<title>x</title>\n"),
            &["ended without the answer", "<!doctype html>"],
        ),
        ("a stream that is cut", format!("{CHUNKED}8\r\ndata: {{"), &["ended without the answer"]),
        (
            "a body that is cut",
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{\"jso"
                .to_owned(),
            &["200 OK broke off after 5 bytes", "{\"jso"],
        ),
        ("a head that is cut", "HTTP/1.1 200 O".to_owned(), &[]),
        (
            "a compressed body",
            response("200 OK", &[JSON, "Content-Encoding: gzip"], "\u{1f}x"),
            &["200 OK and Content-Encoding: gzip", "only identity"],
        ),
        (
            "a compressed stream",
            response("200 OK", &[EVENTS, "Content-Encoding: br"], "x"),
            &["200 OK and Content-Encoding: br"],
        ),
        ("another status of success", response("201 Created", &[JSON], "{}"), &["201 Created", ": {}"]),
    ]
}

#[tokio::test]
async fn a_response_that_is_no_answer_ends_its_call_with_the_address_the_status_and_the_body() {
    for (how, sent, words) in no_answers() {
        let server = RawServer::start(move |asked| match asked.what() {
            "work" => Some(sent.clone()),
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        let why = client.fails("work").await;
        for word in words {
            assert!(why.contains(word), "{how}: {why}");
        }
        assert!(words.is_empty() || why.contains(&server.url), "{how}: the address: {why}");
        client.works().await;
        assert_eq!(server.count("work"), 1, "{how}: it is not sent again");
    }
}

#[tokio::test]
async fn without_sessions_too() {
    for (how, sent, words) in no_answers() {
        let server = RawServer::start(move |_| Some(sent.clone())).await;
        let transport = StatelessTransport::new(HttpClient::new(&server.url).unwrap());
        let mut client = Client::connect(transport, MCP_2026).await;
        let why = client.fails("work").await;
        // A stream is read there as one response.
        for word in words.iter().filter(|word| !word.contains("ended without")) {
            assert!(why.contains(word), "{how}: {why}");
        }
    }
}

#[tokio::test]
async fn in_the_binding_of_acp_too() {
    // There an answer comes on a stream, after 202.
    let (accepted, created) = ("accepted", "another status of success");
    for (how, sent, words) in no_answers().into_iter().filter(|(how, ..)| *how != accepted && *how != created)
    {
        let server = RawServer::start(move |_| Some(sent.clone())).await;
        let transport = AcpTransport::new(HttpClient::new(&server.url).unwrap()).http1();
        let mut client = Client::connect(transport, ACP).await;
        let why = client.fails("initialize").await;
        for word in words.iter().filter(|word| !word.contains("ended without")) {
            assert!(why.contains(word), "{how}: {why}");
        }
    }
}

#[tokio::test]
async fn an_answer_is_taken_whatever_its_content_type_is() {
    for header in
        ["Content-Type: text/plain; charset=utf-8", "Content-Type: application/json-rpc", "X-None: 1"]
    {
        let server = RawServer::start(move |asked| match asked.what() {
            "echo" => Some(response("200 OK", &[header], &answer(asked, &json!({"n": 1})))),
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        client.works().await;
        let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
        assert!(deviation.contains("content type"), "{deviation}");
    }
}

#[tokio::test]
async fn the_last_event_counts_without_a_blank_line_after_it() {
    for end in ["", "\n", "\r"] {
        let server = RawServer::start(move |asked| match asked.what() {
            "echo" => {
                let body = format!("id: 1\ndata: {}{end}", answer(asked, &json!({"n": 1})));
                Some(response("200 OK", &[EVENTS], &body))
            }
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        client.works().await;
        let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
        assert!(deviation.contains("has no end"), "{deviation}");
        assert!(
            server.all().iter().all(|asked| asked.header("last-event-id").is_none()),
            "it is not resumed"
        );
    }
}

/// The answer to one call in the response to another, which has none.
#[tokio::test]
async fn an_answer_in_the_response_of_another_call_reaches_its_own() {
    let first = Arc::new(std::sync::Mutex::new(None));
    let mut server = RawServer::start(move |asked| match asked.what() {
        // Its response never begins.
        "first" => {
            *first.lock().unwrap() = Some(asked.clone());
            None
        }
        "second" => {
            let first: Asked = first.lock().unwrap().clone().unwrap();
            Some(response("200 OK", &[JSON], &answer(&first, &json!("the first"))))
        }
        _ => Some(well(asked)),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    let call = client.peer.call::<_, Value>("first", &json!({})).no_timeout().start().unwrap();
    server.next("first").await;
    client.fails("second").await;
    let outcome = in_time("the first call", call.outcome()).await;
    assert!(matches!(&outcome, Outcome::Completed(value) if *value == json!("the first")), "{outcome:?}");
}

/// The driver knows spellings that a transport does not read. The call has one end.
#[tokio::test]
async fn an_answer_in_another_spelling_ends_its_call_once() {
    for spelling in [r#""N""#, "N.0", "Ne0"] {
        for kind in [JSON, EVENTS] {
            let server = RawServer::start(move |asked| {
                if asked.what() != "echo" {
                    return Some(well(asked));
                }
                let id = spelling.replace('N', &asked.body["id"].to_string());
                let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"n":1}}}}"#);
                let body = if kind == EVENTS { format!("id: 1\ndata: {body}\n\n") } else { body };
                Some(response("200 OK", &[kind], &body))
            })
            .await;
            let mut client = Client::open(&server.url).await;
            client.works().await;
            client.works().await;
            assert!(client.errors.try_recv().is_err(), "{spelling}: no call failed");
        }
    }
}

#[tokio::test]
async fn an_error_without_an_id_ends_the_call_of_its_response() {
    for id in ["", r#""id":null,"#] {
        let body = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32000,"message":"not ready"}}}}"#);
        for status in ["400 Bad Request", "200 OK"] {
            let (body, status) = (body.clone(), status.to_owned());
            let server = RawServer::start(move |asked| match asked.what() {
                "work" => Some(response(&status, &[JSON], &body)),
                _ => Some(well(asked)),
            })
            .await;
            let client = Client::open(&server.url).await;
            let error = client.error("work").await;
            assert_eq!((error.code.0, &*error.message), (-32000, "not ready"));
        }
    }
}

#[tokio::test]
async fn each_request_accepts_only_what_is_not_compressed() {
    let mut server = RawServer::start(|asked| Some(well(asked))).await;
    let client = Client::open(&server.url).await;
    client.works().await;
    server.next("GET").await;
    client.peer.shutdown(std::time::Duration::ZERO).await;
    server.next("DELETE").await;
    for asked in server.all() {
        assert_eq!(asked.header("accept-encoding"), Some("identity"), "{}", asked.what());
    }
}

#[tokio::test]
async fn a_get_without_a_stream_leaves_the_calls_alone() {
    for status in
        ["404 Not Found", "405 Method Not Allowed", "400 Bad Request", "500 Oops", "200 OK", "401 No"]
    {
        let mut server = RawServer::start(move |asked| match asked.what() {
            "GET" => Some(response(status, &["Content-Type: text/html"], "<html>no</html>")),
            _ => Some(well(asked)),
        })
        .await;
        let client = Client::open(&server.url).await;
        server.next("GET").await;
        for _ in 0..3 {
            client.works().await;
        }
        assert!(!client.peer.is_closed());
        assert_eq!((server.count("GET"), server.count("initialize")), (1, 1), "{status}: it is asked once");
    }
}

/// Servers without sessions may have a stream too: the GET names the revision.
#[tokio::test]
async fn the_stream_of_a_server_without_sessions_is_read() {
    let mut server = RawServer::start(|asked| match asked.what() {
        "initialize" => {
            let opened = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "raw", "version": "1"}});
            Some(result(asked, &opened))
        }
        "GET" => {
            let asks = json!({"jsonrpc": "2.0", "id": 7, "method": "answer", "params": {"n": 5}});
            let event = format!("data: {asks}\n\n");
            Some(format!("{CHUNKED}{:x}\r\n{event}\r\n\0", event.len()))
        }
        _ => Some(well(asked)),
    })
    .await;
    let client = Client::open(&server.url).await;
    let get = server.next("GET").await;
    assert_eq!(
        (get.header("mcp-session-id"), get.header("mcp-protocol-version")),
        (None, Some("2025-11-25"))
    );
    let answered = server.next("POST").await;
    assert_eq!((&answered.body["id"], &answered.body["result"]), (&json!(7), &json!({"n": 5})));
    client.works().await;
}

/// Each call has a POST of its own, so what is on the stream of the session and names no call is about none.
#[tokio::test]
async fn an_error_without_an_id_on_the_stream_of_the_session_ends_no_call() {
    for (sent, word) in [
        (r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"stray"}}"#, "stray"),
        (r#"{"jsonrpc":"2.0","result":5}"#, "5"),
        ("{INFO: x}", "INFO"),
    ] {
        let mut server = RawServer::start(move |asked| match asked.what() {
            "GET" => Some(held(&open_stream(&format!("data: {sent}\n\n")))),
            "work" => Some(held(&result(asked, &json!(5)))),
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        server.next("GET").await;
        let call = client.peer.call::<_, Value>("work", &json!({})).start().unwrap();
        server.next("work").await;
        server.gate.notify_one();
        let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
        assert!(deviation.contains("dropped") && deviation.contains(word), "{deviation}");
        server.gate.notify_one();
        let outcome = in_time("the answer", call.outcome()).await;
        assert!(matches!(&outcome, Outcome::Completed(value) if *value == json!(5)), "{sent}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_stream_that_is_resumed_and_gets_no_response_ends_its_call() {
    let server = RawServer::start(|asked| match asked.what() {
        "cut" => Some(response("200 OK", &[EVENTS], "id: 1\nretry: 1\ndata: \n\n")),
        "GET" if asked.header("last-event-id").is_some() => None,
        _ => Some(well(asked)),
    })
    .await;
    let transport = StreamableTransport::new(HttpClient::new(&server.url).unwrap());
    let mut client = Client::with(transport.give_up_after(std::time::Duration::from_millis(300))).await;
    let why = client.fails("cut").await;
    assert!(why.contains("ended without the answer"), "{why}");
    client.works().await;
}

#[tokio::test]
async fn the_revision_is_in_the_header_from_the_first_message_after_the_handshake() {
    for (revision, has_header) in [
        ("2024-11-05", false),
        ("2025-03-26", true),
        ("2025-06-18", true),
        ("2025-11-25", true),
        ("2030-01-01", true),
    ] {
        let mut server = RawServer::start(move |asked| match asked.what() {
            "initialize" => Some(super::opened_with(asked, "one", revision)),
            _ => Some(well(asked)),
        })
        .await;
        let client = Client::open(&server.url).await;
        client.works().await;
        server.next("GET").await;
        client.peer.shutdown(std::time::Duration::ZERO).await;
        server.next("DELETE").await;
        for asked in server.all() {
            let expected = (has_header && asked.what() != "initialize").then_some(revision);
            assert_eq!(asked.header("mcp-protocol-version"), expected, "{revision}: {}", asked.what());
        }
    }
}

/// No growth, no lock-out, and no more than a warning.
#[tokio::test]
async fn many_responses_of_unclear_meaning_end_their_calls_and_leave_nothing() {
    const CALLS: usize = 640;
    const AT_ONCE: usize = 64;
    let count = AtomicUsize::new(0);
    let kinds: Vec<String> =
        no_answers().into_iter().filter(|(how, ..)| !how.contains("cut")).map(|(_, sent, _)| sent).collect();
    let server = RawServer::start(move |asked| match asked.what() {
        "work" => kinds.get(count.fetch_add(1, Ordering::SeqCst) % kinds.len()).cloned(),
        _ => Some(well(asked)),
    })
    .await;
    let client = Client::open(&server.url).await;
    for _ in 0..CALLS / AT_ONCE {
        let calls: Vec<_> = (0..AT_ONCE)
            .map(|_| client.peer.call::<_, Value>("work", &json!({})).no_timeout().start().unwrap())
            .collect();
        for call in calls {
            let outcome = in_time("an end", call.outcome()).await;
            assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
        }
    }
    assert!(client.peer.stats().deviations >= (CALLS / 2) as u64, "each is counted");
    client.works().await;
}

#[tokio::test]
async fn ten_thousand_events_that_are_no_answer_come_before_one_that_is() {
    let server = RawServer::start(|asked| match asked.what() {
        "echo" => {
            let mut events = String::new();
            for n in 0..10_000 {
                events += match n % 4 {
                    0 => "data: {\"detail\":1}\n\n",
                    1 => "data: {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}\n\n",
                    2 => "data: [1\n\n",
                    _ => "data: {\"result\":\"x\"}\n\n",
                };
            }
            let body = format!("{events}data: {}\n\n", answer(asked, &json!({"n": 1})));
            Some(response("200 OK", &[EVENTS], &body))
        }
        _ => Some(well(asked)),
    })
    .await;
    let client = Client::open(&server.url).await;
    client.works().await;
    client.works().await;
}

#[tokio::test]
async fn a_byte_order_mark_before_an_answer_is_dropped() {
    let server = RawServer::start(|asked| match asked.what() {
        "echo" => Some(response("200 OK", &[JSON], &format!("\u{feff}{}", answer(asked, &json!({"n": 1}))))),
        _ => Some(well(asked)),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
    assert!(deviation.contains("byte order mark"), "{deviation}");
}

/// The beginning of an event stream that stays open, with this in it.
fn open_stream(text: &str) -> String {
    format!("{CHUNKED}{:x}\r\n{text}\r\n\0", text.len())
}

#[tokio::test]
async fn a_stream_that_stays_open_after_what_is_no_answer_ends_its_call() {
    let cases = [
        (
            "data: {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}\n\n",
            &["without the answer to request 2, but with one to request 4711, which is not open", "{}"][..],
        ),
        // The id of the handshake, which was over before the call.
        ("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n", &["one to request 1, which is not open"]),
        ("data: Internal Server Error\n\n", &["not a message", "Internal Server Error"]),
        ("data: {\"detail\":\"no\"}\n\n", &["not a message", r#"{"detail":"no"}"#]),
        ("<!doctype html>\n<title>x</title>\n", &["not a message", "<!doctype html>"]),
        ("Internal Server Error\n", &["not a message", "Internal Server Error"]),
        // It has ids, and could be resumed.
        ("id: 1\ndata: down for repairs\n\n", &["not a message", "down for repairs"]),
    ];
    let cases = cases.map(|(sent, words)| work_fails(open_stream(sent), words));
    futures_util::future::join_all(cases).await;
}

/// The call that gets this response fails with these words, and the next one does not.
async fn work_fails(sent: String, words: &[&str]) {
    let server = RawServer::start(move |asked| match asked.what() {
        "work" => Some(sent.clone()),
        _ => Some(well(asked)),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    let why = client.fails("work").await;
    for word in words.iter().chain(&["200 OK", &*server.url]) {
        assert!(why.contains(word), "{word}: {why}");
    }
    client.works().await;
}

#[tokio::test]
async fn without_sessions_too_a_stream_with_another_answer_ends_its_call() {
    for (sent, word) in [
        ("data: {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}\n\n", "but with one to request 4711"),
        ("data: Internal Server Error\n\n", "not a message"),
    ] {
        let server = RawServer::start(move |_| Some(open_stream(sent))).await;
        let transport = StatelessTransport::new(HttpClient::new(&server.url).unwrap());
        let mut client = Client::connect(transport, MCP_2026).await;
        let why = client.fails("work").await;
        assert!(why.contains(word) && why.contains(&server.url), "{why}");
    }
}

#[tokio::test]
async fn a_response_that_stops_in_the_middle_ends_its_call() {
    let body =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{\"jso\0".to_owned();
    let event = open_stream("data: {\"jsonrpc\":\"2.0\",\"id\":");
    tokio::join!(
        work_fails(body, &["stopped after 5 bytes", "nothing more came within 5 s", "{\"jso"]),
        work_fails(event, &["in the middle of an event", "nothing more came within 5 s", "\"id\":"]),
    );
}

/// A server may work for hours, so only the server ends the polls.
#[tokio::test]
async fn a_stream_that_is_empty_each_time_is_resumed_until_the_server_does_not_know_it() {
    const POLLS: usize = 12;
    let polls = AtomicUsize::new(0);
    let server = RawServer::start(move |asked| match asked.what() {
        "work" => Some(response("200 OK", &[EVENTS], "id: 1\nretry: 0\ndata: \n\n")),
        "GET" if asked.header("last-event-id").is_some() => {
            let is_known = polls.fetch_add(1, Ordering::SeqCst) < POLLS;
            let empty = || response("200 OK", &[EVENTS], "id: 1\nretry: 0\ndata: \n\n");
            Some(if is_known { empty() } else { response("404 Not Found", &[], "") })
        }
        _ => Some(well(asked)),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    let why = client.fails("work").await;
    assert!(why.contains("ended without the answer"), "{why}");
    client.works().await;
    let resumed = server.all().iter().filter(|asked| asked.header("last-event-id").is_some()).count();
    assert_eq!(resumed, POLLS + 1);
}

/// A page in front of the server, such as that of a login, is no sign that the server has the message.
#[tokio::test]
async fn a_page_in_the_response_to_a_cancel_is_reported() {
    for (status, kind) in
        [("200 OK", "Content-Type: text/html"), ("200 OK", JSON), ("203 Other", "Content-Type: text/html")]
    {
        let mut server = RawServer::start(move |asked| match asked.what() {
            "work" => None,
            "notifications/cancelled" => Some(response(status, &[kind], "\n<html>Sign in</html>")),
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        let call = client.peer.call::<_, Value>("work", &json!({})).no_timeout().start().unwrap();
        server.next("work").await;
        call.canceller().cancel("enough");
        let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
        for part in ["not a request with a page", &status[..3], "Sign in", &server.url] {
            assert!(deviation.contains(part), "{part}: {deviation}");
        }
    }
}

#[tokio::test]
async fn other_bodies_in_the_response_to_a_notification_are_no_deviation() {
    for (status, kind, body) in [
        ("202 Accepted", "Content-Type: text/html", "<p>Accepted</p>"),
        ("200 OK", "Content-Type: text/plain", "ok"),
        ("200 OK", JSON, "{}"),
        ("200 OK", JSON, ""),
    ] {
        let mut server = RawServer::start(move |asked| match asked.what() {
            "told" => Some(response(status, &[kind], body)),
            _ => Some(well(asked)),
        })
        .await;
        let client = Client::open(&server.url).await;
        in_time("a notification", client.peer.notify("told", &json!({}))).await.unwrap();
        server.next("told").await;
        client.works().await;
        assert_eq!(client.peer.stats().deviations, 0, "{status} {body}");
    }
}

#[tokio::test]
async fn a_session_id_that_mcp_does_not_allow_is_reported_and_sent_back() {
    for (id, sent_back, said) in [
        ("my session", Some("my session"), "byte 2 of mcp-session-id is 0x20"),
        ("s\u{e9}", Some("s\u{e9}"), "byte 1 of mcp-session-id is 0xc3"),
        ("", None, "mcp-session-id is empty"),
    ] {
        let server = RawServer::start(move |asked| match asked.what() {
            "initialize" => Some(opened(asked, id)),
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        client.works().await;
        let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
        assert!(deviation.contains("the id of a session") && deviation.contains(said), "{deviation}");
        let all = server.all();
        let echo = all.iter().find(|asked| asked.what() == "echo").unwrap();
        assert_eq!(echo.header("mcp-session-id"), sent_back);
    }
}
