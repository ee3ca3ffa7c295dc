//! A client that writes LSP's frames by hand, for the library that has only a server. It keeps what any client must:
//! which caller waits for which id. Its callers write frames themselves, and one task reads.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::sync::oneshot;

use crate::clock;
use crate::generic_driver::{End, Tasks};

/// An answer, and when its last byte was read.
#[derive(Debug)]
pub(super) struct Answer {
    /// Its `result`. `None`: an error.
    pub(super) result: Option<Box<RawValue>>,
    /// Its error's code.
    pub(super) code: Option<i64>,
    /// The time on [`clock`].
    pub(super) read: u64,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

/// The calling side.
pub(super) struct RawClient<O> {
    output: tokio::sync::Mutex<O>,
    waiting: Waiting,
    next_id: AtomicU64,
}

/// A request that was written.
#[derive(Debug)]
pub(super) struct Asked {
    /// Its id.
    pub(super) id: u64,
    answer: oneshot::Receiver<Answer>,
}

impl Asked {
    /// Waits for its answer.
    pub(super) async fn answered(self) -> Answer {
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
pub(super) fn client(end: impl End) -> (RawClient<impl AsyncWrite + Send + Unpin + 'static>, Tasks) {
    let (input, output) = end.split();
    let waiting = Waiting::default();
    let mut tasks = Tasks::default();
    tasks.spawn(read(BufReader::new(input), Arc::clone(&waiting)));
    let output = tokio::sync::Mutex::new(output);
    (RawClient { output, waiting, next_id: AtomicU64::new(1) }, tasks)
}

impl<O: AsyncWrite + Unpin> RawClient<O> {
    /// Writes a request.
    pub(super) async fn ask(&self, method: &str, params: impl Serialize) -> Asked {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (told, answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, told);
        self.write(Some(id), method, params).await;
        Asked { id, answer }
    }

    /// Writes a notification.
    pub(super) async fn notify(&self, method: &str, params: impl Serialize) {
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
