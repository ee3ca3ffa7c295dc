//! The language server of `docs/language-server.md`, as a program: its client's frames are written and read by hand.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

/// A client that implements `Content-Length` framing without the library.
struct Client {
    server: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn start() -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_language_server"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let output = BufReader::new(server.stdout.take().expect("it is piped"));
        let input = server.stdin.take().expect("it is piped");
        Self { server, input, output }
    }

    fn tell(&mut self, frame: &Value) {
        let body = frame.to_string();
        let input = &mut self.input;
        write!(input, "Content-Length: {}\r\n\r\n{body}", body.len()).expect("the server reads");
        input.flush().expect("the server reads");
    }

    fn hears(&mut self) -> Value {
        let mut length = None;
        loop {
            let mut line = String::new();
            assert_ne!(
                self.output.read_line(&mut line).expect("the server writes text"),
                0,
                "the output ended"
            );
            match line.trim_end().split_once(": ") {
                Some(("Content-Length", value)) => length = value.parse().ok(),
                Some(_) => {}
                None => {
                    assert_eq!(line, "\r\n", "no header");
                    break;
                }
            }
        }
        let mut body = vec![0; length.expect("a header says how long the body is")];
        self.output.read_exact(&mut body).expect("the body is whole");
        serde_json::from_slice(&body).expect("the body is JSON")
    }

    fn asks(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.tell(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let answer = self.hears();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    fn initializes(&mut self) {
        let answer =
            self.asks(0, "initialize", &json!({"processId": null, "rootUri": null, "capabilities": {}}));
        assert_eq!(answer["result"]["capabilities"]["hoverProvider"], true, "{answer}");
        self.tell(&json!({"jsonrpc": "2.0", "method": "initialized", "params": {}}));
    }

    /// Checks that nothing more arrives and that the process ends, although its input is open.
    fn ends(mut self) -> ExitStatus {
        let mut rest = Vec::new();
        self.output.read_to_end(&mut rest).expect("the output ends");
        assert_eq!(rest, b"", "{}", String::from_utf8_lossy(&rest));
        self.server.wait().expect("it is our child")
    }
}

fn at_line(line: u64) -> Value {
    json!({"textDocument": {"uri": "file:///a"}, "position": {"line": line, "character": 0}})
}

#[test]
fn a_language_server_uses_content_length_framing_by_default() {
    let mut client = Client::start();
    client.initializes();
    let answer = client.asks(1, "textDocument/hover", &at_line(0));
    assert_eq!(answer["result"]["contents"], "This is line 0.", "{answer}");
    client.tell(&json!({"jsonrpc": "2.0", "id": 2, "method": "textDocument/hover", "params": at_line(3600)}));
    client.tell(&json!({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 2}}));
    let answer = client.hears();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(-32800)), "{answer}");
    assert_eq!(client.asks(3, "shutdown", &Value::Null)["result"], Value::Null);
    assert_eq!(client.asks(4, "textDocument/hover", &at_line(0))["error"]["code"], -32600);
    client.tell(&json!({"jsonrpc": "2.0", "method": "exit"}));
    assert_eq!(client.ends().code(), Some(0));
}

#[test]
fn a_language_server_serves_nothing_before_initialize_and_fails_without_shutdown() {
    let mut client = Client::start();
    assert_eq!(client.asks(1, "textDocument/hover", &at_line(0))["error"]["code"], -32002);
    client.initializes();
    client.tell(&json!({"jsonrpc": "2.0", "method": "exit"}));
    assert_eq!(client.ends().code(), Some(1));
}

/// The code on the page is the code that is compiled and run here.
#[test]
fn the_page_shows_this_server() {
    let page = include_str!("../../docs/language-server.md");
    let (_, rest) = page.split_once("```rust,no_run\n").expect("the page has a block of Rust");
    let (shown, _) = rest.split_once("```").expect("the block ends");
    let program = include_str!("../../examples/language_server.rs");
    let (_, program) = program.split_once("\n\n").expect("the program begins with a comment");
    assert_eq!(shown, program);
}

/// Sends `initialize` over a transport without a framing setting.
async fn begins(peer: rescind::Peer) {
    let asked = json!({"processId": null, "rootUri": null, "capabilities": {}});
    let reported = peer.call::<_, Value>("initialize", &asked).await.expect("it answers");
    assert_eq!(reported["capabilities"]["hoverProvider"], true);
}

#[tokio::test]
async fn a_child_is_spoken_to_in_the_framing_of_the_dialect() {
    let command = rescind::stdio::Command::new(env!("CARGO_BIN_EXE_language_server"));
    begins(rescind::Peer::builder(rescind::dialect::LSP).connect(command).await.expect("it starts")).await;
}

#[cfg(unix)]
#[tokio::test]
async fn a_named_pipe_is_read_and_written_in_the_framing_of_the_dialect() {
    use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
    use rescind::{CallContext, Peer, Router, Server, dialect};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let name = format!("rescind-language-server-{}", std::process::id());
    let address = PipeAddress::name(&name).expect("a name");
    let listener = NamedPipeListener::bind(&address).await.expect("a pipe of our own");
    let file = listener.file().to_owned();
    let router = Router::new().method("initialize", |_: CallContext, _: Value| async {
        Ok(json!({"capabilities": {"hoverProvider": true}}))
    });
    tokio::spawn(Server::builder([dialect::LSP]).serve(router).listen(listener).run());

    let mut bare = tokio::net::UnixStream::connect(file).await.expect("it listens");
    let ask = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    bare.write_all(format!("Content-Length: {}\r\n\r\n{ask}", ask.len()).as_bytes()).await.expect("it reads");
    let mut first = [0; 15];
    bare.read_exact(&mut first).await.expect("it answers");
    assert_eq!(&first, b"Content-Length:");

    begins(Peer::builder(dialect::LSP).connect(NamedPipeTransport::new(address)).await.expect("it listens"))
        .await;
}
