//! Subjects between two processes, on the transports that users would choose: this library, the floor, and the other libraries with
//! their own clients and servers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rescind_core::dialect::{ACP, CallFrame};
use rescind_core::{
    AnswerBody, Call, CallContext, CallNumber, HandlerError, Incoming, Outcome, Peer, Router,
};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock;
use crate::cross_process::{Far, OurClient, Serves, Wire, own_pipes, serve_router};
use crate::generic_driver::{Driven, Library, Returned, Signals, Slots, Tasks, prepare_text};
use crate::raw::{self, Answers, RawClient};
use crate::subject::{BoxFuture, Carries, Competitor, Echo, Ends, Name, Setup, Subject};
use crate::subjects::{self, rescind};

/// More handlers at once than a workload has.
const SLOTS: usize = 4096;

/// Opens a client of a server in another process.
type Open = for<'a> fn(Wire, &'a mut Far) -> BoxFuture<'a, Box<dyn Subject>>;
/// Serves in this process until it is asked to end, and calls the function when it listens.
type Serve = fn(Wire, fn(&str)) -> BoxFuture<'static, ()>;

/// One library in one configuration, on some transports.
#[derive(Clone, Copy, Debug)]
pub struct WireSubject {
    /// Its name.
    pub name: Name,
    /// The transports on which it is measured.
    pub wires: &'static [Wire],
    /// How it is opened and served.
    pub kind: Kind,
}

/// How a subject is opened and served.
#[derive(Clone, Copy)]
pub enum Kind {
    /// It has its own client and server for this transport.
    Sockets {
        /// Opens a client.
        open: Open,
        /// Serves.
        serve: Serve,
    },
    /// It works over any stream of bytes, here the pipes of a child.
    Pipes(Competitor),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sockets { .. } => "Sockets",
            Self::Pipes(_) => "Pipes",
        })
    }
}

impl WireSubject {
    /// Starts its server.
    ///
    /// # Panics
    /// If the process does not start.
    pub async fn start(&self, wire: Wire) -> Far {
        Far::start(wire, Serves::Subject(self.name)).await
    }

    /// Opens a client of its server.
    pub async fn open(&self, wire: Wire, far: &mut Far) -> Box<dyn Subject> {
        match self.kind {
            Kind::Sockets { open, .. } => open(wire, far).await,
            Kind::Pipes(competitor) => {
                let (input, output) = far.take_pipes();
                (competitor.open)(setup(input, output, far.process())).await
            }
        }
    }
}

fn setup(input: OwnedFd, output: OwnedFd, server: u32) -> Setup {
    Setup { ends: Ends::Pipes { input, output, server }, slots: SLOTS }
}

/// This library, the floor and the others on this transport. The floor is the first.
#[must_use]
pub fn on(wire: Wire) -> Vec<WireSubject> {
    let ours = [FLOOR, OURS, QUICK];
    #[cfg(feature = "peers")]
    let all = ours.into_iter().chain([TYPED, QUICK_TYPED]).chain(crate::peers::on_wires());
    #[cfg(not(feature = "peers"))]
    let all = ours.into_iter();
    all.filter(|one| one.wires.contains(&wire)).collect()
}

/// Serves what was asked: two lines, a library and a configuration.
///
/// # Panics
/// If there is no such subject.
pub(crate) async fn serve(wire: Wire, asked: &str, listens: fn(&str)) {
    let (library, configuration) = asked.split_once('\n').expect("a subject is named by two lines");
    let mut all = on(wire).into_iter().chain([ENVELOPES, OURS, QUICK]);
    let is_it = |one: &WireSubject| one.name.library == library && one.name.configuration == configuration;
    // In a task, as in the other measurements.
    match all.find(is_it).expect("one of them").kind {
        Kind::Sockets { serve, .. } => {
            let _ = tokio::spawn(serve(wire, listens)).await;
        }
        Kind::Pipes(competitor) => {
            let (input, output) = own_pipes();
            listens("pipes");
            let serve = competitor.serve.expect("it serves");
            let _ = tokio::spawn(serve(setup(input, output, std::process::id()))).await;
        }
    }
}

/// The params of an echo with this many bytes, made once.
fn raw_params(wire: Wire, bytes: usize) -> &'static RawValue {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    static MADE: Mutex<BTreeMap<(&str, usize), &RawValue>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.entry((wire.name(), bytes)).or_insert_with(|| Box::leak(wire.params(bytes)))
}

/// Makes the texts of an echo with this many bytes, which stay.
pub fn prepare(wire: Wire, bytes: usize) {
    prepare_text(bytes);
    let _ = raw_params(wire, bytes);
}

// This library between two processes.

const WIRES: &[Wire] = &[
    Wire::Stdio,
    Wire::ContentLength,
    Wire::NamedPipe,
    Wire::WebSocket,
    Wire::Streamable,
    Wire::Streamable2,
    Wire::Stateless,
    Wire::Stateless2,
    Wire::Acp,
];

/// This library with default settings. Params are passed as JSON text.
pub const OURS: WireSubject = WireSubject {
    name: rescind::COMPETITOR.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open_ours(wire, far, Texts::Raw)),
        serve: |wire, _| Box::pin(serve_ours(wire, Handlers::Tasks)),
    },
};

/// The same with quick handlers: `Router::quick`.
pub const QUICK: WireSubject = WireSubject {
    name: rescind::QUICK.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open_ours(wire, far, Texts::Raw)),
        serve: |wire, _| Box::pin(serve_ours(wire, Handlers::Quick)),
    },
};

/// The default, with texts that are serialized and parsed on both sides, as in the other libraries.
#[cfg(feature = "peers")]
pub const TYPED: WireSubject = WireSubject {
    name: rescind::TYPED.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open_ours(wire, far, Texts::Typed)),
        serve: |wire, _| Box::pin(serve_ours(wire, Handlers::Tasks)),
    },
};

/// Such texts, and quick handlers.
#[cfg(feature = "peers")]
pub const QUICK_TYPED: WireSubject = WireSubject {
    name: rescind::QUICK_TYPED.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open_ours(wire, far, Texts::Typed)),
        serve: |wire, _| Box::pin(serve_ours(wire, Handlers::Quick)),
    },
};

/// How a text is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Texts {
    /// As JSON text.
    Raw,
    /// It is serialized and parsed on both sides.
    #[cfg(feature = "peers")]
    Typed,
}

/// How the handlers are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handlers {
    Tasks,
    Quick,
}

async fn open_ours(wire: Wire, far: &mut Far, texts: Texts) -> Box<dyn Subject> {
    let OurClient { peer, parked, .. } = OurClient::open(wire, far).await;
    let ours = Ours { wire, peer, parked: Mutex::new(parked), texts };
    Driven::of_far(ours, far.process(), Arc::default(), Tasks::default()).await
}

fn serve_ours(wire: Wire, handlers: Handlers) -> BoxFuture<'static, ()> {
    let signals = Arc::new(Signals::default());
    Arc::clone(&signals).answer();
    Box::pin(serve_router(wire, router(&signals, handlers)))
}

fn router(signals: &Arc<Signals>, handlers: Handlers) -> Router {
    let parking = Arc::clone(signals);
    let initialize = |_: CallContext, asked: Value| async move {
        Ok(json!({
            "protocolVersion": asked["protocolVersion"], "capabilities": {}, "agentCapabilities": {},
            "serverInfo": { "name": "benchmark", "version": "1" },
        }))
    };
    let echo = |_: CallContext, params: Box<RawValue>| async move { Ok(params) };
    let park = move |context: CallContext, _: Value| {
        let signals = Arc::clone(&parking);
        async move {
            // Over HTTP it is sent with the response's head. After that a cancel need not wait.
            context.try_notify("parked", &json!({}))?;
            let _waiting = signals.wait();
            context.cancelled().await;
            Ok::<_, HandlerError>(json!({}))
        }
    };
    let router = Router::new().method("initialize", initialize);
    #[cfg(feature = "peers")]
    let router = {
        let echo_text = |_: CallContext, params: typed::Text| async move { Ok(params) };
        match handlers {
            Handlers::Tasks => router.method("echo text", echo_text),
            Handlers::Quick => router.quick("echo text", echo_text),
        }
    };
    match handlers {
        Handlers::Tasks => router.method("echo", echo).method("park", park),
        Handlers::Quick => router.quick("echo", echo).quick("park", park),
    }
}

struct Ours {
    wire: Wire,
    peer: Peer,
    parked: Mutex<UnboundedReceiver<()>>,
    /// Without the other libraries there is nothing to compare typed texts with.
    #[cfg_attr(not(feature = "peers"), expect(dead_code, reason = "it is always raw"))]
    texts: Texts,
}

impl Library for Ours {
    type Text = &'static str;
    type Parked = Call<Value>;

    fn slots(&self) -> Slots {
        Slots::Wait(SLOTS)
    }

    async fn echo(&self, text: &'static str) -> usize {
        #[cfg(feature = "peers")]
        if self.texts == Texts::Typed {
            let params = typed::params(self.wire, text);
            let echoed: typed::Text = self.peer.call("echo text", &params).await.expect("the server echoes");
            return echoed.text.len();
        }
        let params = raw_params(self.wire, text.len());
        let echoed: Box<RawValue> = self.peer.call("echo", params).await.expect("the server echoes");
        // The stateless revision adds a member to a result.
        if echoed.get().len() >= params.get().len() { text.len() } else { 0 }
    }

    async fn park(&self) -> Call<Value> {
        let call = self.peer.call("park", &self.wire.params(1)).start().expect("a call starts");
        self.parked.lock().await.recv().await.expect("the handler says that it waits");
        call
    }

    async fn cancel(&self, parked: Call<Value>) -> Returned {
        parked.canceller().cancel("");
        let outcome = parked.outcome().await;
        assert!(matches!(outcome, Outcome::CompletedAfterCancel(_) | Outcome::Cancelled(_)), "{outcome:?}");
        Returned::default()
    }
}

// The floors between two processes: an echo of the same bytes, and an echo that reads and writes both envelopes.

/// An echo of the same bytes, with the same underlying library and no codec.
pub const FLOOR: WireSubject = WireSubject {
    name: subjects::FLOOR.name,
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open_floor(wire, far, Answers::Same)),
        serve: |wire, listens| Box::pin(raw::serve(wire, Answers::Same, listens)),
    },
};

/// The same, in which both sides write and read the envelopes, as any library must.
pub const ENVELOPES: WireSubject = WireSubject {
    name: Name {
        library: "floor",
        version: "",
        configuration: "with both envelopes read",
        carries: Carries::Bytes,
    },
    wires: WIRES,
    kind: Kind::Sockets {
        open: |wire, far| Box::pin(open_floor(wire, far, Answers::Envelope)),
        serve: |wire, listens| Box::pin(raw::serve(wire, Answers::Envelope, listens)),
    },
};

struct Floor {
    wire: Wire,
    client: RawClient,
    answers: Answers,
    /// The last size, and a frame of it.
    frame: (usize, Bytes),
    next: u64,
}

async fn open_floor(wire: Wire, far: &mut Far, answers: Answers) -> Box<dyn Subject> {
    let client = RawClient::open(wire, far).await;
    Box::new(Floor { wire, client, answers, frame: (0, Bytes::new()), next: 0 })
}

impl Floor {
    /// Writes the envelope of a request, and reads that of its answer.
    async fn with_envelopes(&mut self, bytes: usize) {
        let params = raw_params(self.wire, bytes);
        self.next += 1;
        let mut frame = Vec::with_capacity(params.get().len() + 128);
        let call = CallFrame::new(CallNumber(self.next), 0, "echo", Some(params));
        ACP.codec().encode_request(ACP.rules(), &mut frame, &call);
        let echoed = self.client.exchange(Bytes::from(frame)).await;
        match ACP.codec().decode(&echoed) {
            Incoming::Answer { body: AnswerBody::Value(value), .. } => {
                assert_eq!(value.get().len(), params.get().len());
            }
            other => panic!("no answer: {other:?}"),
        }
    }
}

impl Subject for Floor {
    /// One at a time only.
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            assert_eq!(echo.in_flight, 1, "the floor has one request in flight");
            for _ in 0..echo.count {
                let begin = clock();
                match self.answers {
                    Answers::Envelope => self.with_envelopes(echo.bytes).await,
                    Answers::Same => {
                        if self.frame.0 != echo.bytes {
                            self.frame = (echo.bytes, raw::frame(self.wire, echo.bytes));
                        }
                        took.push(self.client.echo(&self.frame.1).await);
                        continue;
                    }
                }
                took.push(clock() - begin);
            }
        })
    }
}

/// Params and answers with types.
#[cfg(feature = "peers")]
mod typed {
    use serde::{Deserialize, Serialize};

    use crate::cross_process::Wire;

    /// The params of an echo.
    #[derive(Clone, Copy, Debug, Serialize)]
    pub(super) struct Params {
        text: &'static str,
        /// Required by the stateless revision.
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<Meta>,
    }

    #[derive(Clone, Copy, Debug, Serialize)]
    struct Meta {
        #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
        version: &'static str,
        #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
        capabilities: Capabilities,
    }

    #[derive(Clone, Copy, Debug, Serialize)]
    struct Capabilities {}

    /// The text that a handler reads and answers with.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    pub(super) struct Text {
        pub(super) text: String,
    }

    pub(super) const fn params(wire: Wire, text: &'static str) -> Params {
        let meta = Meta { version: "2026-07-28", capabilities: Capabilities {} };
        Params { text, meta: if wire.is_two_way() { None } else { Some(meta) } }
    }
}
