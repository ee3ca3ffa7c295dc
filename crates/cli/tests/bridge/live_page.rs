//! `rescind bridge --page`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use rescind::Outcome;
use serde_json::{Value, json};

use crate::bridge::program::{connect, fixture, hello, soon, transport, words};
use crate::common::rescind;

/// A bridge with a page. Killed on drop.
struct WithPage {
    child: Child,
    page: String,
    endpoint: String,
}

impl WithPage {
    fn start(dialect: &str) -> Self {
        let mut child = rescind(&[
            "bridge",
            "--dialect",
            dialect,
            "--listen",
            "ws://127.0.0.1:0/",
            "--page",
            "127.0.0.1:0",
        ])
        .args(words(&fixture(dialect)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let page = lines.next().unwrap().strip_prefix("page on ").unwrap().to_owned();
        let endpoint = lines.next().unwrap().strip_prefix("listening on ").unwrap().to_owned();
        // Its later lines are read too, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, page, endpoint }
    }

    fn open(&self, method: &str, path: &str) -> BufReader<TcpStream> {
        let (host, token) = self.page.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let head = format!("{method} /{token}{path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n");
        write!(stream, "{head}Content-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        BufReader::new(stream)
    }

    /// The first view that this reader of the page gets and that fits.
    fn view(&self, fits: impl Fn(&Value) -> bool) -> Value {
        for line in self.open("GET", "events").lines().map(Result::unwrap) {
            let Some(data) = line.strip_prefix("data:") else { continue };
            let event: Value = serde_json::from_str(data.trim()).unwrap();
            let view = event["view"].clone();
            if fits(&view) {
                return view;
            }
        }
        panic!("the page has ended")
    }

    fn stop(&self, key: &str) -> String {
        let mut response = String::new();
        self.open("POST", &format!("stop/{key}")).read_to_string(&mut response).unwrap();
        response
    }
}

impl Drop for WithPage {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
async fn a_request_is_shown_with_its_call_and_stopped_at_the_child() {
    let bridge = WithPage::start("lsp");
    let client = connect("lsp", transport(&bridge.endpoint)).await;
    soon("the handshake", client.call::<_, Value>("initialize", &hello("lsp"))).await.unwrap();
    let slow = client.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    let (bridge, shown) = soon(
        "the request on the page",
        tokio::task::spawn_blocking(move || {
            let both = |view: &Value| {
                let requests = view["requests"].as_array().unwrap();
                requests.iter().filter(|request| request["method"] == "test/wait").count() == 2
            };
            let view = bridge.view(both);
            (bridge, view)
        }),
    )
    .await
    .unwrap();
    let requests = shown["requests"].as_array().unwrap();
    let one = |direction: &str| requests.iter().find(|request| request["direction"] == direction).unwrap();
    assert_eq!(one("made")["parent"], one("received")["key"], "{shown}");
    let key = one("received")["key"].as_str().unwrap().to_owned();
    let stopped = soon("the stop", tokio::task::spawn_blocking(move || (bridge.stop(&key), bridge)));
    let (response, _bridge) = stopped.await.unwrap();
    assert!(response.starts_with("HTTP/1.1 204"), "{response}");

    let error = match soon("the answer", slow.outcome()).await {
        Outcome::Failed(error) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(&*error.message, "Request cancelled by an operator");
    let stats: Value = soon("the counters", client.call("test/stats", &json!({}))).await.unwrap();
    assert_eq!((&stats["cancelled"], &stats["running"]), (&json!(1), &json!(0)), "{stats}");
}

#[test]
fn a_page_beyond_this_machine_is_refused_before_a_child_is_started() {
    let arguments =
        ["bridge", "--dialect", "acp", "--listen", "stdio", "--page", "0.0.0.0:0", "--", "no-such-program"];
    let output = rescind(&arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("not a loopback address") && said.lines().count() == 1, "{said}");
}
