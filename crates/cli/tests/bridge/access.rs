//! Who may connect to a bridge.

use rescind::http::{HttpClient, StreamableTransport};
use serde_json::{Value, json};

use crate::bridge::program::{Bridge, connect, error_of, fixture, hello, soon, words};
use crate::common::Files;

const TOKEN: &str = "a-long-and-secret-token";

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_with_a_token_serves_only_clients_that_show_it() {
    let files = Files::new();
    let file = files.write("token", &format!("{TOKEN}\n"));
    let child = fixture("mcp");
    let more = [&["--token-file", &file], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &more);
    for (shown, is_served) in [
        (None, false),
        (Some("Bearer wrong-and-long-token"), false),
        (Some("Bearer a-long-and-secret-token"), true),
    ] {
        let mut client = HttpClient::new(&bridge.endpoint).unwrap();
        if let Some(shown) = shown {
            client = client.header("authorization", shown).unwrap();
        }
        let peer = connect("mcp", Box::new(StreamableTransport::new(client))).await;
        let answer = soon("the answer", peer.call::<_, Value>("initialize", &hello("mcp"))).await;
        assert_eq!(answer.is_ok(), is_served, "{shown:?}: {answer:?}");
    }
    // A bridge in front of it without the token gets 401, and with the token it is served.
    let front = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&bridge.endpoint]);
    let error = error_of(&front.stranger("mcp").await, "initialize", &hello("mcp")).await;
    assert!(error.message.contains("401 Unauthorized"), "{error}");
    let front = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &["--to-token-file", &file, &bridge.endpoint]);
    let client = front.client("mcp").await;
    let echoed: Value = soon("an echo", client.call("test/echo", &json!({"value": 1}))).await.unwrap();
    assert_eq!(echoed["value"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_of_another_origin_is_refused_unless_it_is_allowed() {
    for (allowed, is_served) in
        [(None, false), (Some("https://app.example"), true), (Some("https://other.example"), false)]
    {
        let child = fixture("acp");
        let mut more = Vec::new();
        if let Some(origin) = allowed {
            more.extend(["--allow-origin", origin]);
        }
        more.extend(words(&child));
        let bridge = Bridge::listen("acp", "ws://127.0.0.1:0/acp", &more);
        let page = rescind::websocket::connect(&bridge.endpoint).header("origin", "https://app.example");
        let opened = soon("the upgrade", rescind::transport::Transport::open(Box::new(page))).await;
        assert_eq!(opened.is_ok(), is_served, "{allowed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_on_both_sides_of_a_bridge() {
    let files = Files::new();
    let write = |name: &str, host: &str| {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        let certificate = files.write(&format!("{name}.pem"), &made.cert.pem());
        (certificate, files.write(&format!("{name}.key"), &made.signing_key.serialize_pem()))
    };
    let (certificate, key) = write("server", "localhost");
    let (stranger, _) = write("stranger", "localhost");
    let child = fixture("mcp");
    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    let far =
        Bridge::listen("mcp", "https://127.0.0.1:0/mcp", &[&tls[..], words(&child).as_slice()].concat());
    let url = far.endpoint.replace("127.0.0.1", "localhost");
    for (authority, is_served) in [(&certificate, true), (&stranger, false)] {
        let near = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &["--tls-ca", authority, &url]);
        let client = near.stranger("mcp").await;
        if is_served {
            soon("the handshake", client.call::<_, Value>("initialize", &hello("mcp"))).await.unwrap();
        } else {
            let error = error_of(&client, "initialize", &hello("mcp")).await;
            assert!(error.message.contains("could not be reached"), "{error}");
        }
    }
    // With an authority for clients it refuses a client that shows no certificate.
    let more = [&tls[..], &["--client-ca", &stranger], words(&child).as_slice()].concat();
    let strict = Bridge::listen("mcp", "https://127.0.0.1:0/mcp", &more);
    let url = strict.endpoint.replace("127.0.0.1", "localhost");
    let near = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &["--tls-ca", &certificate, &url]);
    error_of(&near.stranger("mcp").await, "initialize", &hello("mcp")).await;
}
