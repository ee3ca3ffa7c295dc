//! A client that writes LSP's frames by hand. It measures servers alone: each has the same client. It keeps what any client
//! must: which caller waits for which id. Its callers write frames themselves, and one task reads.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::sync::oneshot;

use crate::clock;
use crate::generic_driver::{End, Library, Returned, Slots, Tasks, one_by_one};
use crate::subject::Told;

/// The configuration of a server under this client, if its library has a client of its own too.
pub const SERVER_ALONE: &str = "server alone, raw client";
/// The same for a server whose handlers are quick.
pub const SERVER_ALONE_QUICK: &str = "server alone, raw client, quick handlers";

/// An initialized client at this end, and the task that reads. It sends no `initialized`, for which each library has other params.
/// `slots`: how many handlers the server runs at once.
pub async fn connect(end: impl End, slots: usize) -> (impl Library, Tasks) {
    let (client, tasks) = client(end);
    let initialized = client.ask("initialize", json!({"capabilities": {}})).await.answered().await;
    assert!(initialized.result.is_some(), "the server is initialized: {initialized:?}");
    (Connected { client, slots }, tasks)
}

struct Connected<O> {
    client: RawClient<O>,
    slots: usize,
}

impl<O: AsyncWrite + Send + Unpin + 'static> Library for Connected<O> {
    type Text = &'static str;
    type Parked = Asked;

    fn slots(&self) -> Slots {
        Slots::Wait(self.slots)
    }

    async fn echo(&self, text: &'static str) -> usize {
        let answer = self.client.ask("echo", [text]).await.answered().await;
        let text = answer.result.expect("the server echoes");
        serde_json::from_str::<String>(text.get()).expect("an echo is a text").len()
    }

    async fn park(&self) -> Asked {
        self.client.ask("park", ["x"]).await
    }

    async fn cancel(&self, parked: Asked) -> Returned {
        self.client.notify("$/cancelRequest", json!({"id": parked.id})).await;
        let answer = parked.answered().await;
        assert_eq!(answer.code, Some(-32_800), "a cancelled request is answered so: {answer:?}");
        Returned { answer_read: Some(answer.read) }
    }

    async fn unknown_cancels(&self, count: usize) -> Told {
        one_by_one(self, count, || self.client.notify("$/cancelRequest", json!({"id": "unknown"}))).await
    }
}

/// An answer, and when its last byte was read.
#[derive(Debug)]
struct Answer {
    /// Its `result`. `None`: an error.
    result: Option<Box<RawValue>>,
    /// Its error's code.
    code: Option<i64>,
    /// The time on [`clock`].
    read: u64,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// The calling side.
struct RawClient<O> {
    output: tokio::sync::Mutex<O>,
    waiting: Waiting,
    next_id: AtomicU64,
}

/// A request that was written.
#[derive(Debug)]
struct Asked {
    /// Its id.
    id: u64,
    answer: oneshot::Receiver<Answer>,
}

impl Asked {
    /// Waits for its answer.
    async fn answered(self) -> Answer {
        self.answer.await.expect("the server answers")
    }
}

#[derive(Serialize)]
struct Message<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

#[derive(Deserialize)]
struct Response {
    id: u64,
    result: Option<Box<RawValue>>,
    error: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    code: i64,
}

/// A client at this end, and the task that reads.
fn client(end: impl End) -> (RawClient<impl AsyncWrite + Send + Unpin + 'static>, Tasks) {
    let (input, output) = end.split();
    let waiting = Waiting::default();
    let mut tasks = Tasks::default();
    tasks.spawn(read(BufReader::new(input), Arc::clone(&waiting)));
    let output = tokio::sync::Mutex::new(output);
    (RawClient { output, waiting, next_id: AtomicU64::new(1) }, tasks)
}

impl<O: AsyncWrite + Unpin> RawClient<O> {
    /// Writes a request.
    async fn ask(&self, method: &str, params: impl Serialize) -> Asked {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (told, answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, told);
        self.write(Some(id), method, params).await;
        Asked { id, answer }
    }

    /// Writes a notification.
    async fn notify(&self, method: &str, params: impl Serialize) {
        self.write(None, method, params).await;
    }

    async fn write(&self, id: Option<u64>, method: &str, params: impl Serialize) {
        let message = Message { jsonrpc: "2.0", id, method, params };
        let body = serde_json::to_vec(&message).expect("a message is JSON");
        let mut frame = Vec::with_capacity(body.len() + 32);
        write!(frame, "Content-Length: {}\r\n\r\n", body.len()).expect("memory takes it");
        frame.extend_from_slice(&body);
        self.output.lock().await.write_all(&frame).await.expect("the server reads");
    }
}

async fn read(mut input: BufReader<impl AsyncRead + Unpin>, waiting: Waiting) {
    let (mut header, mut body) = (String::new(), Vec::new());
    loop {
        let mut length = None;
        loop {
            header.clear();
            match input.read_line(&mut header).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if header == "\r\n" {
                break;
            }
            if let Some(value) = header.strip_prefix("Content-Length:") {
                length = value.trim().parse().ok();
            }
        }
        body.resize(length.expect("a frame states its length"), 0);
        if input.read_exact(&mut body).await.is_err() {
            return;
        }
        let read = clock();
        let response: Response = serde_json::from_slice(&body).expect("the server answers");
        let asked = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&response.id);
        if let Some(asked) = asked {
            let code = response.error.map(|error| error.code);
            // After a workload was stopped, no caller waits for an answer any more.
            let _ = asked.send(Answer { result: response.result, code, read });
        }
    }
}
