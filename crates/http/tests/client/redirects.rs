//! Redirects: followed with method and body, within limits, and without credentials to other servers.

use rescind_core::dialect::{ACP, MCP_2026};
use rescind_http::{AcpTransport, Authorization, HttpClient, StatelessTransport, StreamableTransport};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};

use super::server::{Asked, Client, RawServer, held, response, well};

fn moved(status: &str, location: &str) -> String {
    response(status, &[&format!("Location: {location}")], "<a>moved</a>")
}

#[tokio::test]
async fn a_redirect_is_followed_with_method_and_body() {
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        for location in ["/mcp/", "mcp/", "//HOST/mcp/", "http://HOST/mcp/", "./mcp/"] {
            let mut server = RawServer::start(move |asked| match &*asked.path {
                "/mcp" => {
                    let location = location.replace("HOST", asked.header("host").unwrap());
                    Some(moved(status, &location))
                }
                _ => Some(well(asked)),
            })
            .await;
            let mut client = Client::open(&server.url).await;
            client.works().await;
            let is_permanent = status.starts_with("301") || status.starts_with("308");
            let get = server.next("GET").await;
            let path = if is_permanent { "/mcp/" } else { "/mcp" };
            assert_eq!((&*get.path, get.header("mcp-session-id")), (path, Some("one")));
            let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
            assert!(deviation.contains("redirected"), "{deviation}");
            let posts: Vec<Asked> = server
                .all()
                .into_iter()
                .filter(|asked| asked.what() == "echo" && asked.path == "/mcp/")
                .collect();
            assert!(
                matches!(&posts[..], [post] if post.method == "POST" && post.body["params"] == json!({"n": 1}))
            );
            // After a permanent redirect the new address is asked at once.
            let first =
                server.all().iter().filter(|asked| asked.path == "/mcp" && asked.what() == "echo").count();
            assert_eq!(first, usize::from(!is_permanent), "{status}");
        }
    }
}

#[tokio::test]
async fn every_binding_follows() {
    let redirect = |asked: &Asked| match &*asked.path {
        "/mcp" => Some(moved("307 Temporary", "/mcp/")),
        _ => Some(well(asked)),
    };
    let server = RawServer::start(redirect).await;
    let transport = StatelessTransport::new(HttpClient::new(&server.url).unwrap());
    Client::connect(transport, MCP_2026).await.works().await;
    let server = RawServer::start(redirect).await;
    let transport = AcpTransport::new(HttpClient::new(&server.url).unwrap()).http1();
    let client = Client::connect(transport, ACP).await;
    in_time("a call", client.peer.call::<_, Value>("initialize", &json!({"n": 1}))).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_followed_ends_the_call_with_its_reason() {
    for (location, why) in [
        ("file:///etc/passwd", "neither http nor https"),
        ("ftp://127.0.0.1/mcp", "neither http nor https"),
        ("javascript:alert(1)", "neither http nor https"),
        ("http://user:secret@127.0.0.1/", "user name"),
        ("http://", "its host is not valid"),
        ("/a", "go in a circle"),
        ("/mcp", "go in a circle"),
        ("/0", "too many redirects"),
    ] {
        let server = RawServer::start(move |asked| match (asked.what(), &*asked.path) {
            ("work", "/mcp") => Some(moved("307 Temporary", location)),
            ("work", "/a") => Some(moved("307 Temporary", "/b")),
            ("work", "/b") => Some(moved("307 Temporary", "/a")),
            ("work", path) => {
                let number: usize = path[1..].parse().unwrap();
                Some(moved("302 Found", &format!("/{}", number + 1)))
            }
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        let said = client.fails("work").await;
        assert!(said.contains(why) && said.contains(&server.url), "{location}: {said}");
        assert!(!said.contains("secret"), "{said}");
        assert!(server.count("work") <= 6, "at most five redirects");
        client.works().await;
    }
    let server = RawServer::start(|asked| match asked.what() {
        "work" => Some(response("307 Temporary", &[], "")),
        _ => Some(well(asked)),
    })
    .await;
    let said = Client::open(&server.url).await.fails("work").await;
    assert!(said.contains("307 Temporary Redirect and no Location"), "{said}");
}

/// The body of a request is kept for further attempts only up to 1 MiB.
#[tokio::test]
async fn a_large_request_is_sent_once_and_its_error_says_so() {
    for (status, why) in [
        (moved("307 Temporary", "/other"), "redirects http://"),
        (response("404 Not Found", &[], ""), "did not know the session any more, which was opened again"),
    ] {
        let server = RawServer::start(move |asked| match asked.what() {
            "work" => Some(status.clone()),
            _ => Some(well(asked)),
        })
        .await;
        let mut client = Client::open(&server.url).await;
        client.works().await;
        let large = json!({"text": "x".repeat(1024 * 1024)});
        in_time("a call", client.peer.call::<_, Value>("work", &large)).await.unwrap_err();
        let said = in_time("the reason", client.errors.recv()).await.unwrap();
        assert!(said.contains(why) && said.contains("larger than 1 MiB"), "{said}");
        assert_eq!(server.count("work"), 1);
        client.works().await;
    }
}

#[tokio::test]
async fn another_server_gets_no_credentials() {
    let other = RawServer::start(|asked| Some(well(asked))).await;
    let to = other.url.clone();
    let server = RawServer::start(move |asked| match asked.what() {
        "echo" => Some(moved("308 Permanent", &to)),
        _ => Some(well(asked)),
    })
    .await;
    let authorization = Authorization::new("Bearer secret").unwrap();
    let http = HttpClient::new(&server.url).unwrap().authorization(&authorization);
    let http = http.header("X-Api-Key", "secret").unwrap().header("Cookie", "a=b").unwrap();
    let client = Client::with(StreamableTransport::new(http)).await;
    client.works().await;
    client.works().await;
    let asked = other.all();
    assert_eq!(asked.len(), 2);
    for asked in asked {
        let names = ["authorization", "cookie", "x-api-key"];
        assert!(names.iter().all(|name| asked.header(name).is_none()), "{asked:?}");
        assert_eq!(
            asked.header("host"),
            Some(other.url.trim_start_matches("http://").trim_end_matches("/mcp"))
        );
    }
    for asked in server.all() {
        assert_eq!(
            (asked.header("authorization"), asked.header("cookie")),
            (Some("Bearer secret"), Some("a=b"))
        );
    }
}

/// A cookie of another server is not kept for the first one.
#[tokio::test]
async fn another_server_sets_no_cookies() {
    let other = RawServer::start(|asked| {
        let sent = well(asked);
        Some(sent.replacen("\r\n", "\r\nSet-Cookie: evil=1\r\n", 1))
    })
    .await;
    let to = other.url.clone();
    let server = RawServer::start(move |asked| match asked.what() {
        "first" => Some(moved("307 Temporary", &to)),
        _ => Some(well(asked)),
    })
    .await;
    let transport = AcpTransport::new(HttpClient::new(&server.url).unwrap()).http1();
    let client = Client::connect(transport, ACP).await;
    for method in ["initialize", "first", "last"] {
        in_time(method, client.peer.call::<_, Value>(method, &json!({}))).await.unwrap();
    }
    assert!(server.all().iter().all(|asked| asked.header("cookie").is_none()));
    assert_eq!(other.count("first"), 1);
}

/// An address to which a server moved for good, and that is gone.
#[tokio::test]
async fn the_first_address_is_asked_again_when_the_new_one_is_gone() {
    let other = RawServer::start(|asked| Some(well(asked))).await;
    let to = std::sync::Mutex::new(Some(other.url.clone()));
    let server = RawServer::start(move |asked| {
        let to = if asked.what() == "echo" { to.lock().unwrap().take() } else { None };
        Some(to.map_or_else(|| well(asked), |to| moved("308 Permanent", &to)))
    })
    .await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    client.works().await;
    assert_eq!((other.count("echo"), server.count("echo")), (2, 1));
    let host = other.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    drop(other);
    in_time("the port closes", async {
        while tokio::net::TcpStream::connect(&host).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    client.fails("echo").await;
    client.works().await;
}

/// No request is sent after its cancel: the redirect comes after that.
#[tokio::test]
async fn a_cancelled_call_is_not_redirected() {
    let mut server = RawServer::start(move |asked| match asked.what() {
        "work" => Some(held(&moved("307 Temporary", "/late"))),
        _ => Some(well(asked)),
    })
    .await;
    let transport = StreamableTransport::new(HttpClient::new(&server.url).unwrap()).exchanges(1);
    let client = Client::with(transport).await;
    let call = client.peer.call::<_, Value>("work", &json!({})).no_timeout().start().unwrap();
    server.next("work").await;
    call.canceller().cancel("enough");
    assert!(in_time("the end", call.outcome()).await.is_cancelled());
    server.next("notifications/cancelled").await;
    server.gate.notify_one();
    // With one request at a time, the next one is sent when nothing is left of the first.
    client.works().await;
    assert!(server.all().iter().all(|asked| asked.path != "/late"));
}
