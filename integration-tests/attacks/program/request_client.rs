//! A client that sends large requests over one connection and records the result of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::http2::{Http2, messages};
use crate::raw_stream::{Stream, Writer};
use crate::target::{Target, Wire};

/// How many bytes may wait in the windows of HTTP/2.
const WINDOW: u32 = 1 << 20;

/// The received messages.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// By id. A refusal with an HTTP status has its `status` and `body`.
    pub(crate) answers: BTreeMap<u64, Value>,
    /// Responses that ended without an answer, as for cancelled requests of MCP.
    pub(crate) ended: BTreeSet<u64>,
    pub(crate) notifications: Vec<Value>,
}

impl Heard {
    fn add(&mut self, message: Value) {
        match message["id"].as_u64() {
            Some(id) => drop(self.answers.insert(id, message)),
            None => self.notifications.push(message),
        }
    }

    pub(crate) fn is_settled(&self, id: u64) -> bool {
        self.answers.contains_key(&id) || self.ended.contains(&id)
    }

    /// The number of refusals. Each of them must name the limit that was reached.
    pub(crate) fn refused(&self) -> usize {
        let refusals = self.answers.values().filter(|answer| answer.get("result").is_none());
        let refusals = refusals.filter(|answer| answer["error"]["code"] != CANCELLED);
        let names_a_limit = |answer: &Value| {
            let text = answer.to_string();
            ["memory", "too many messages", "more than 4096 values"].iter().any(|limit| text.contains(limit))
        };
        refusals.inspect(|answer| assert!(names_a_limit(answer), "{answer}")).count()
    }
}

/// The code of ACP and LSP for a cancelled request.
const CANCELLED: i64 = -32_800;

enum Way {
    Stream(Writer),
    Http2(Http2),
}

pub(crate) struct RequestClient {
    wire: Wire,
    way: Way,
    heard: Arc<Mutex<Heard>>,
    tasks: JoinSet<()>,
}

impl RequestClient {
    pub(crate) async fn connect(target: &mut Target) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let mut tasks = JoinSet::new();
        let wire = target.wire;
        let name = target.dialect.name();
        let kept = Arc::clone(&heard);
        let way = if wire.is_http() {
            let mut client = Http2::connect(target, WINDOW).await;
            client.initialize(name).await;
            if wire == Wire::Acp {
                let mut events = client.events().await;
                tasks.spawn(async move {
                    while let Some(message) = events.message().await {
                        lock(&kept).add(message);
                    }
                });
            }
            Way::Http2(client)
        } else {
            let mut stream = Stream::connect(target).await;
            stream.initialize(name).await;
            let Stream { mut reader, writer } = stream;
            tasks.spawn(async move {
                while let Some(message) = reader.message().await {
                    lock(&kept).add(message);
                }
            });
            Way::Stream(writer)
        };
        Self { wire, way, heard, tasks }
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        lock(&self.heard)
    }

    /// Sends a request. `FILLER` in its params is replaced with these bytes.
    pub(crate) async fn ask(&mut self, id: u64, method: &'static str, params: Value, filler: &Bytes) {
        let params =
            if self.wire == Wire::Stateless { crate::honest_client::with_meta(params) } else { params };
        let text = crate::raw_stream::request(id, method, &params);
        let mut pieces: Vec<Bytes> = Vec::new();
        for part in text.split("FILLER") {
            if !pieces.is_empty() {
                pieces.push(filler.clone());
            }
            pieces.push(part.to_owned().into());
        }
        self.say(Some(id), method, pieces).await;
    }

    /// Cancels a request, as its protocol does.
    pub(crate) async fn cancel(&mut self, id: u64) {
        let (method, params) = match self.wire {
            // Closing the exchange is the cancel. All exchanges are closed together.
            Wire::Stateless => return,
            Wire::Streamable => ("notifications/cancelled", json!({"requestId": id})),
            Wire::Stdio | Wire::NamedPipe | Wire::WebSocket | Wire::Acp => {
                ("$/cancel_request", json!({"requestId": id}))
            }
        };
        let text = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        self.say(None, method, vec![text.into()]).await;
    }

    async fn say(&mut self, id: Option<u64>, method: &'static str, pieces: Vec<Bytes>) {
        match &mut self.way {
            Way::Stream(writer) => {
                crate::in_time("a request is written", writer.send(&pieces)).await.unwrap();
            }
            Way::Http2(client) => {
                let (client, heard) = (client.clone(), Arc::clone(&self.heard));
                let wire = self.wire;
                self.tasks.spawn(async move {
                    let response = client.post(method, pieces).await;
                    let Some(id) = id else { return };
                    let mut heard = lock(&heard);
                    match response {
                        Ok(response) if response.status >= 400 => {
                            let body = String::from_utf8_lossy(&response.body).into_owned();
                            heard.answers.insert(id, json!({"status": response.status, "body": body}));
                        }
                        Ok(response) => {
                            for message in messages(&response.body) {
                                heard.add(message);
                            }
                            if wire != Wire::Acp {
                                heard.ended.insert(id);
                            }
                        }
                        Err(error) => {
                            heard.answers.insert(id, json!({"broken": error.to_string()}));
                        }
                    }
                });
            }
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}
