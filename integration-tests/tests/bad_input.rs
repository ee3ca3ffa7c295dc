//! Bad input at every level, in one session over bytes: each bad frame gets its own error, and the session continues
//! as if it had not arrived. Also child commands that are not servers.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "what the tests share is part of them"
)]

use rescind::transport::{Decoded, Decoder};
use rescind::{ByteStream, CallContext, Framing, HandlerError, Peer};
use rescind_testkit::Options;
use rescind_testkit::fixture::Fixture;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// In bytes. The deepest frame here fits.
const LIMIT: usize = 256 * 1024;
const FRAMINGS: [Framing; 2] = [Framing::Newline, Framing::ContentLength];

/// A client that writes bytes, connected to a served fixture.
struct Session {
    stream: DuplexStream,
    framing: Framing,
    frames: Decoder,
    asked: u64,
}

impl Session {
    fn open(framing: Framing) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let fixture = Fixture::new("acp", Options::default()).unwrap();
        let router = fixture.router().method("test/secret", |_: CallContext, _: Value| async {
            Err::<Value, HandlerError>(std::io::Error::other("the password is swordfish").into())
        });
        let link = ByteStream::whole(theirs).framing(framing).max_frame(LIMIT).into_link();
        Peer::builder(fixture.dialect().clone()).serve(router).attach(link).unwrap();
        Self { stream: ours, framing, frames: framing.decoder(LIMIT), asked: 1_000_000 }
    }

    fn framed(&self, body: &[u8]) -> Vec<u8> {
        match self.framing {
            Framing::ContentLength => {
                [format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
            }
            Framing::Newline => [body, b"\n"].concat(),
        }
    }

    async fn send(&mut self, body: &[u8]) {
        let bytes = self.framed(body);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// The next frame. `None`: the connection was closed.
    async fn recv(&mut self) -> Option<Value> {
        loop {
            if let Some(Decoded::Frame(body)) = self.frames.next_frame() {
                return Some(serde_json::from_slice(&body).unwrap());
            }
            let mut bytes = [0; 4096];
            let read = self.stream.read(&mut bytes);
            let count =
                tokio::time::timeout(std::time::Duration::from_secs(20), read).await.expect("hangs").unwrap();
            if count == 0 {
                return None;
            }
            self.frames.push(bytes.get(..count).unwrap());
        }
    }

    /// The frames before the answer to a request that is sent now. The answer must arrive.
    async fn until_answered(&mut self) -> Vec<Value> {
        self.asked += 1;
        let id = self.asked;
        let echo = json!({"jsonrpc": "2.0", "id": id, "method": "test/echo", "params": {"value": id}});
        self.send(echo.to_string().as_bytes()).await;
        let mut before = Vec::new();
        loop {
            let frame = self.recv().await.expect("the session goes on");
            if frame["id"] == id {
                assert_eq!(frame["result"], json!({"value": id}));
                return before;
            }
            before.push(frame);
        }
    }

    /// Sends one bad frame: it gets this code with this id, and it has no other effect.
    async fn refused(&mut self, body: &[u8], code: i64, id: Value) {
        let shown = String::from_utf8_lossy(body.get(..body.len().min(100)).unwrap()).into_owned();
        self.send(body).await;
        let came = self.until_answered().await;
        assert_eq!(came.len(), 1, "{:?} {shown}: {came:?}", self.framing);
        let answer = came.first().unwrap();
        assert_eq!(
            (&answer["error"]["code"], &answer["id"]),
            (&json!(code), &id),
            "{:?} {shown}",
            self.framing
        );
    }
}

fn deep(depth: usize) -> Vec<u8> {
    let (open, close) = ("[".repeat(depth), "]".repeat(depth));
    format!(r#"{{"jsonrpc":"2.0","id":5,"method":"test/echo","params":{{"value":{open}{close}}}}}"#)
        .into_bytes()
}

#[tokio::test]
async fn a_frame_that_is_not_json_is_refused_and_the_session_continues() {
    for framing in FRAMINGS {
        let mut session = Session::open(framing);
        assert!(session.until_answered().await.is_empty());
        let frames: [&[u8]; 8] = [
            b"\xff\xfe\x00",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\x28\"}",
            b"{",
            b"nonsense",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"test/echo\"}}",
            b"\0",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\0b\"}",
            br#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#,
        ];
        for frame in frames {
            session.refused(frame, -32_700, Value::Null).await;
        }
        let marked = b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"test/echo\",\"params\":{}}";
        // A byte order mark before a message is dropped.
        session.send(marked).await;
        let came = session.until_answered().await;
        assert_eq!(came.iter().map(|answer| &answer["id"]).collect::<Vec<_>>(), [1], "{came:?}");
        assert_eq!(came.first().unwrap()["error"], Value::Null, "{came:?}");
        for depth in [128, 100_000] {
            session.refused(&deep(depth), -32_700, Value::Null).await;
        }
    }
}

#[tokio::test]
async fn json_that_is_not_a_message_is_refused_and_the_session_continues() {
    for framing in FRAMINGS {
        let mut session = Session::open(framing);
        for frame in ["[]", r#"[{"jsonrpc":"2.0","id":1,"method":"test/echo"}]"#, "7", "{}", "null"] {
            session.refused(frame.as_bytes(), -32_600, Value::Null).await;
        }
        for id in ["1.5", "1e-1", "-0.5", "9223372036854775808", "null", "true", "[1]"] {
            let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"test/echo","params":{{}}}}"#);
            session.refused(frame.as_bytes(), -32_600, Value::Null).await;
        }
    }
}

#[tokio::test]
async fn ids_that_look_alike_are_not_confused() {
    for framing in FRAMINGS {
        let mut session = Session::open(framing);
        let ids = ["1", "\"1\"", "9007199254740993", "9007199254740992"];
        for id in ids {
            let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"test/wait","params":{{}}}}"#);
            session.send(frame.as_bytes()).await;
        }
        for id in ids {
            let cancel =
                format!(r#"{{"jsonrpc":"2.0","method":"$/cancel_request","params":{{"requestId":{id}}}}}"#);
            session.send(cancel.as_bytes()).await;
            let answer = session.recv().await.unwrap();
            assert_eq!((answer["id"].to_string().as_str(), &answer["error"]["code"]), (id, &json!(-32_800)));
        }
    }
}

#[tokio::test]
async fn bad_frames_do_not_affect_the_good_frames_between_them() {
    for framing in FRAMINGS {
        let mut session = Session::open(framing);
        let mut bytes = Vec::new();
        for id in 0..20 {
            let good =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"test/echo","params":{{"value":{id}}}}}"#);
            bytes.extend(session.framed(good.as_bytes()));
            bytes.extend(session.framed(b"{\"jsonrpc\""));
        }
        for byte in bytes {
            session.stream.write_all(&[byte]).await.unwrap();
        }
        let came = session.until_answered().await;
        let refused = came.iter().filter(|frame| frame["id"].is_null()).count();
        let mut answered: Vec<_> =
            came.iter().filter_map(|frame| frame["result"]["value"].as_u64()).collect();
        while answered.len() < 20 {
            answered.push(session.recv().await.unwrap()["result"]["value"].as_u64().unwrap());
        }
        answered.sort_unstable();
        assert_eq!((refused, answered), (20, (0..20).collect()));
    }
}

#[tokio::test]
async fn an_oversize_frame_is_refused_and_the_next_is_answered() {
    for framing in FRAMINGS {
        let mut session = Session::open(framing);
        session.refused(&vec![b'x'; LIMIT * 4], -32_700, Value::Null).await;
    }
}

#[test]
fn an_endless_line_or_body_is_not_kept_in_memory() {
    for framing in FRAMINGS {
        let mut frames = framing.decoder(LIMIT);
        frames.push(if framing == Framing::ContentLength {
            b"Content-Length: 99999999999\r\n\r\n"
        } else {
            b"{"
        });
        for _ in 0..1000 {
            frames.push(&[b' '; 4096]);
            assert!(!matches!(frames.next_frame(), Some(Decoded::Frame(_))));
            assert!(frames.buffer_mut().capacity() <= 2 * LIMIT, "I11: {}", frames.buffer_mut().capacity());
        }
    }
}

#[tokio::test]
async fn a_false_content_length_ends_the_connection_if_no_frame_can_be_found() {
    let mut session = Session::open(Framing::ContentLength);
    assert!(session.until_answered().await.is_empty());
    session.stream.write_all(b"Content-Length: 1\r\n\r\n{}Content-Length: -1\r\n\r\n").await.unwrap();
    while let Some(frame) = session.recv().await {
        assert_eq!((&frame["error"]["code"], &frame["id"]), (&json!(-32_700), &Value::Null));
    }
}

#[tokio::test]
async fn a_length_that_is_too_short_costs_only_its_own_frame() {
    let mut session = Session::open(Framing::ContentLength);
    assert!(session.until_answered().await.is_empty());
    session.stream.write_all(b"Content-Length: 1\r\n\r\n{}not a header\r\n\r\n").await.unwrap();
    let came = session.until_answered().await;
    assert_eq!(came.len(), 1, "{came:?}");
    assert_eq!(came.first().unwrap()["error"]["code"], -32_700);
}

#[tokio::test]
async fn handlers_that_fail_answer_for_their_own_request() {
    for framing in FRAMINGS {
        let mut session = Session::open(framing);
        for (method, params, code) in [
            ("test/sleep", json!({"ms": "soon"}), -32_602),
            ("test/sleep", json!([1, 2]), -32_602),
            ("test/panic", json!({}), -32_603),
            ("test/secret", json!({}), -32_603),
            ("no/such", json!({}), -32_601),
        ] {
            let frame = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
            session.send(frame.as_bytes()).await;
            let answer = session.recv().await.unwrap();
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(code)), "{method}");
            assert!(!answer.to_string().contains("swordfish"), "{answer}");
            assert!(session.until_answered().await.is_empty());
        }
    }
}

#[cfg(unix)]
mod children {
    use rescind::dialect;
    use rescind::stdio::Command;
    use rescind::{Outcome, Peer};
    use serde_json::{Value, json};

    #[tokio::test]
    async fn a_child_that_cannot_be_started_is_named() {
        let error = Command::new("no-such-program-here").start().unwrap_err().to_string();
        assert!(error.contains("no-such-program-here"), "{error}");
    }

    #[tokio::test]
    async fn a_child_that_exits_at_once_is_named_with_its_status_and_stderr() {
        let (link, _child) = Command::new("sh").args(["-c", "echo no licence >&2; exit 3"]).start().unwrap();
        let peer = Peer::builder(dialect::ACP).attach(link).unwrap();
        let call = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
        assert!(matches!(call.outcome().await, Outcome::Disconnected { .. }));
        let error = peer.closed().await.unwrap_err();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        for word in ["sh", "exit status: 3", "no licence"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[tokio::test]
    async fn noise_before_the_first_frame_affects_nothing_else() {
        let script = r#"
            echo Starting up...
            while read -r line; do
                case "$line" in *test/echo*)
                    id="${line#*\"id\":}"; id="${id%%[,\}]*}"
                    echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":7}";;
                esac
            done"#;
        let (link, _child) = Command::new("sh").args(["-c", script]).start().unwrap();
        let peer = Peer::builder(dialect::ACP).attach(link).unwrap();
        let call = peer.call::<_, Value>("test/echo", &json!({})).start().unwrap();
        let outcome =
            tokio::time::timeout(std::time::Duration::from_secs(20), call.outcome()).await.expect("hangs");
        assert!(matches!(outcome, Outcome::Completed(value) if value == 7));
    }
}
