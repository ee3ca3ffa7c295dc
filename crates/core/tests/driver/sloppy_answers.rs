//! Answers that are not exact: each is taken where its meaning is certain, and otherwise ends its call with an error.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rescind_core::dialect::{self, Dialect};
use rescind_core::{BadMessage, ByteStream, Call, Deviation, Framing, Outcome, Peer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

/// A client, and the raw other side of its connection.
struct Bench {
    client: Peer,
    server: BufReader<DuplexStream>,
    deviations: Arc<Mutex<Vec<Deviation>>>,
}

impl Bench {
    fn new(dialect: Dialect) -> Self {
        let (ours, theirs) = tokio::io::duplex(1024 * 1024);
        let deviations = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&deviations);
        let client = Peer::builder(dialect)
            .on_deviation(move |report| noted.lock().unwrap().push(report.deviation))
            .attach(ByteStream::whole(ours).framing(Framing::Newline).into_link())
            .unwrap();
        Self { client, server: BufReader::new(theirs), deviations }
    }

    /// Starts a call, and waits until it is written.
    async fn call(&mut self) -> Call<Value> {
        let call = self.client.call::<_, Value>("m", &json!({})).no_timeout().start().unwrap();
        let mut line = String::new();
        self.server.read_line(&mut line).await.unwrap();
        assert!(line.contains("\"m\""), "{line}");
        call
    }

    async fn says(&mut self, line: &str) {
        self.server.write_all(line.as_bytes()).await.unwrap();
        self.server.write_all(b"\n").await.unwrap();
    }

    fn deviations(&self) -> Vec<Deviation> {
        std::mem::take(&mut *self.deviations.lock().unwrap())
    }
}

async fn outcome(call: Call<Value>) -> Outcome<Value> {
    tokio::time::timeout(Duration::from_secs(60), call.outcome()).await.expect("the call ends")
}

fn unreadable(what: &str) -> Outcome<Value> {
    Outcome::Unreadable { what: what.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn each_answer_to_the_first_call_ends_it() {
    let completed = || Outcome::Completed(json!(5));
    for (answer, expected, deviation) in [
        (r#"{"jsonrpc":"2.0","id":"1","result":5}"#, completed(), Deviation::IdSpelling),
        (r#"{"jsonrpc":"2.0","id":1.0,"result":5}"#, completed(), Deviation::IdSpelling),
        (r#"{"id":1,"result":5}"#, completed(), Deviation::NoVersion),
        (r#"[{"jsonrpc":"2.0","id":1,"result":5}]"#, completed(), Deviation::BatchOfAnswers),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":5,"error":{"code":1,"message":"m"}}"#,
            unreadable("it has a result and an error"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#,
            unreadable("its error is not an object: \"no\""),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{},"result":5}"#,
            unreadable("it has a method beside its result or error"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1}"#,
            unreadable("it has neither a result nor an error"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":NaN}"#,
            unreadable("it is not JSON at byte 33"),
            Deviation::InvalidAnswer,
        ),
        (r#"{"jsonrpc":"2.0","result":5}"#, unreadable("it has no id"), Deviation::InvalidAnswer),
        (
            r#"{"jsonrpc":"2.0","id":"undefined","result":5}"#,
            unreadable("it has no id"),
            Deviation::InvalidAnswer,
        ),
        (
            r#"{"jsonrpc":"2.0","result":{"a":1 /* one */},"id":1}"#,
            unreadable("it is not JSON at byte 33"),
            Deviation::InvalidAnswer,
        ),
    ] {
        let mut bench = Bench::new(dialect::LSP);
        let call = bench.call().await;
        bench.says(answer).await;
        assert_eq!(outcome(call).await, expected, "{answer}");
        assert_eq!(bench.deviations(), [deviation], "{answer}");
        assert_eq!(bench.client.stats().deviations, 1, "{answer}");
        // The connection goes on.
        let call = bench.call().await;
        bench.says(r#"{"jsonrpc":"2.0","id":2,"result":6}"#).await;
        assert_eq!(outcome(call).await, Outcome::Completed(json!(6)), "{answer}");
        assert_eq!(bench.deviations(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_names_no_call_ends_the_only_open_one_and_never_one_of_two() {
    for id in ["", r#""id":null,"#, r#""id":-1,"#, r#""id":"","#, r#""id":"undefined","#, r#""id":[1],"#] {
        let mut bench = Bench::new(dialect::MCP);
        let error = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32700,"message":"no"}}}}"#);
        // None is open.
        bench.says(&error).await;
        let (first, second) = (bench.call().await, bench.call().await);
        bench.says(&error).await;
        bench.says(r#"{"jsonrpc":"2.0","id":1,"result":1}"#).await;
        assert_eq!(outcome(first).await, Outcome::Completed(json!(1)), "{id}");
        bench.says(&error).await;
        match outcome(second).await {
            Outcome::Failed(error) => assert_eq!((error.code.0, &*error.message), (-32700, "no")),
            other => panic!("{id}: {other:?}"),
        }
        let unnamed = Deviation::Dropped(BadMessage::NoId);
        assert_eq!(bench.deviations(), [unnamed, unnamed, Deviation::NoId], "{id}");
    }
}

/// Each names no call, or not certainly one, or another one. None of them may end the open call.
#[tokio::test(start_paused = true)]
async fn ten_thousand_answers_of_unclear_meaning_end_no_call() {
    let mut bench = Bench::new(dialect::MCP);
    let call = bench.call().await;
    let other = bench.call().await;
    let unclear = [
        r#"{"jsonrpc":"2.0","result":{"id":1,"x":NaN}}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":"01","result":1}"#,
        r#"{"jsonrpc":"2.0","id":1.5,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":[1],"result":1}"#,
        r#"{"jsonrpc":"2.0","id":9,"result":NaN}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"notifications/m","params":NaN}"#,
        r#"{"jsonrpc":"2.0","result":{"text":"he said "hi"},"id":1,"x":"}"#,
        r#"{"jsonrpc":"2.0","error":{"code":1,"message":"to nobody"}}"#,
        r#"[{"jsonrpc":"2.0","id":"x","result":1},[{"jsonrpc":"2.0","id":1,"result":1}]]"#,
    ];
    for _ in 0..1000 {
        for line in unclear {
            bench.says(line).await;
        }
        // This side answers bad frames, up to a limit.
        let drained = bench.server.fill_buf();
        if let Ok(Ok(buffer)) = tokio::time::timeout(Duration::from_millis(1), drained).await {
            let read = buffer.len();
            bench.server.consume(read);
        }
    }
    bench.says(r#"{"jsonrpc":"2.0","id":1,"result":1}"#).await;
    assert_eq!(outcome(call).await, Outcome::Completed(json!(1)));
    bench.says(r#"{"jsonrpc":"2.0","id":2,"result":2}"#).await;
    assert_eq!(outcome(other).await, Outcome::Completed(json!(2)));
    let stats = bench.client.stats();
    assert_eq!((stats.calls, stats.late_answers), (0, 0));
    assert!(stats.deviations >= 5000, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_ends_with_an_answer_that_cannot_be_read() {
    let mut bench = Bench::new(dialect::LSP);
    let call = bench.call().await;
    call.canceller().cancel("");
    let mut line = String::new();
    bench.server.read_line(&mut line).await.unwrap();
    bench.says(r#"{"jsonrpc":"2.0","id":"1","error":{"code":-32800,"message":"cancelled"}}"#).await;
    assert!(matches!(outcome(call).await, Outcome::Cancelled(cancelled) if cancelled.confirmed));
    let call = bench.call().await;
    call.canceller().cancel("");
    line.clear();
    bench.server.read_line(&mut line).await.unwrap();
    let cancel: Value = serde_json::from_str(&line).unwrap();
    bench.says(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"cut":"#, cancel["params"]["id"])).await;
    assert_eq!(outcome(call).await, unreadable("it is cut off at byte 40"));
}

#[tokio::test(start_paused = true)]
async fn an_error_without_an_id_in_an_array_ends_the_only_open_call() {
    let mut bench = Bench::new(dialect::LSP);
    let call = bench.call().await;
    bench.says(r#"[{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}]"#).await;
    assert!(matches!(outcome(call).await, Outcome::Failed(error) if error.message == "no"));
    assert_eq!(bench.deviations(), [Deviation::NoId, Deviation::BatchOfAnswers]);
    // A notification in an array is refused and reported.
    bench.says(r#"[{"jsonrpc":"2.0","method":"note"}]"#).await;
    let mut refusal = String::new();
    bench.server.read_line(&mut refusal).await.unwrap();
    assert!(refusal.contains("error"), "{refusal}");
    assert_eq!(bench.deviations(), [Deviation::Dropped(BadMessage::BatchNotAllowed)]);
}
