//! The two floors. [`CHANNELS`] has no transport. [`FRAMES`]: the same frames on the same transport, with their
//! envelopes written and read by the codec, and nothing else.

use std::collections::HashMap;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rescind_core::dialect::{ACP, CallFrame, ReplyTo};
use rescind_core::{
    AnswerBody, CallNumber, ExchangeId, FrameInfo, FrameKind, Incoming, Lane, Link, Outbound, RequestId,
    Transport, TransportError, TransportEvent, memory_pair,
};
use rescind_stdio::Descriptors;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::subject::{
    BURST, BoxFuture, CancelSamples, Carries, Cascade, Competitor, Echo, Ends, Name, Saturated, Setup,
    Subject, Told, Tree, Which, in_flight,
};
use crate::{clock, params};

/// The floor.
pub const FRAMES: Competitor = Competitor {
    name: Name {
        library: "floor",
        version: "",
        configuration: "the same frames without a library",
        carries: Carries::Bytes,
    },
    open: |setup| Box::pin(open_frames(setup)),
    serve: Some(|setup| {
        Box::pin(async move {
            if let Ends::Pipes { input, output, .. } = setup.ends {
                serve_frames(link(input, output).await).await;
            }
        })
    }),
};

async fn open_frames(setup: Setup) -> Box<dyn Subject> {
    let link = match setup.ends {
        Ends::Memory => {
            let (client, server) = memory_pair();
            tokio::spawn(serve_frames(server));
            client
        }
        Ends::Pipes { input, output, .. } => link(input, output).await,
    };
    Box::new(Frames::new(link))
}

/// Pipes with our framing.
pub(super) async fn link(input: OwnedFd, output: OwnedFd) -> Link {
    Box::new(Descriptors::new(input, output)).open().await.expect("pipes open")
}

/// A client that writes and reads frames by hand.
#[derive(Debug)]
pub(super) struct Frames {
    link: Link,
    scratch: Vec<u8>,
    next: u64,
    /// A frame that was read while there was no room to send.
    read: Option<Bytes>,
}

impl Frames {
    pub(super) const fn new(link: Link) -> Self {
        Self { link, scratch: Vec::new(), next: 0, read: None }
    }

    /// Sends a request and returns its number.
    pub(super) async fn ask(&mut self, method: &str, params: &RawValue) -> u64 {
        self.next += 1;
        self.scratch.clear();
        let call = CallFrame::new(CallNumber(self.next), 0, method, Some(params));
        ACP.codec().encode_request(ACP.rules(), &mut self.scratch, &call);
        self.send(FrameKind::Request, self.next).await;
        self.next
    }

    /// Sends a cancel of this request.
    pub(super) async fn send_cancel(&mut self, number: u64) {
        self.scratch.clear();
        let call = CallNumber(number);
        ACP.codec().encode_cancel(ACP.rules(), &mut self.scratch, call, call, 0, None);
        self.send(FrameKind::Cancel, number).await;
    }

    async fn send(&mut self, kind: FrameKind, number: u64) {
        let id = RequestId::number(number.cast_signed());
        send(&mut self.link, &self.scratch, kind, id).await.expect("the wire is open");
    }

    /// Waits for room to send (`true`) or, if the server waits for this side to read, for an answer.
    async fn room_or_answer(&mut self) -> bool {
        poll_fn(|cx| match self.link.tx.as_mut().poll_ready(Lane::Data, cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if self.read.is_some() => Poll::Ready(false),
            Poll::Pending => {
                let event = ready!(self.link.rx.as_mut().poll_event(cx));
                let Some(Ok(TransportEvent::Message(frame))) = event else { panic!("the server answers") };
                self.read = Some(frame.body);
                Poll::Ready(false)
            }
        })
        .await
    }

    /// Sends this many cancels of unknown requests, and waits for an echo after them.
    pub(super) async fn unknown_cancels(&mut self, count: usize) {
        for number in 0..count as u64 {
            self.send_cancel(UNKNOWN + number).await;
        }
        let asked = self.ask("echo", &params(1)).await;
        // In a dialect that answers cancels the answers come first. This dialect does not.
        let (answered, _) = self.answer().await;
        assert_eq!(answered, asked);
    }

    /// Reads the next answer: its number and its value. Notifications are skipped.
    pub(super) async fn answer(&mut self) -> (u64, Option<Box<RawValue>>) {
        loop {
            let frame = match self.read.take() {
                Some(frame) => frame,
                None => recv(&mut self.link).await.expect("the server answers"),
            };
            match ACP.codec().decode(&frame) {
                Incoming::Answer { call: Some(call), body, .. } => {
                    let value = match body {
                        AnswerBody::Value(value) => Some(value.to_owned()),
                        _ => None,
                    };
                    return (call.0, value);
                }
                Incoming::Notification { .. } => {}
                other => panic!("no answer: {other:?}"),
            }
        }
    }
}

impl Subject for Frames {
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let params = params(echo.bytes);
            let mut begun = HashMap::with_capacity(echo.in_flight);
            let mut left = echo.count;
            while left > 0 || !begun.is_empty() {
                let wants_room = left > 0 && begun.len() < echo.in_flight;
                if wants_room && self.room_or_answer().await {
                    let begin = clock();
                    begun.insert(self.ask("echo", &params).await, begin);
                    left -= 1;
                    continue;
                }
                let (number, echoed) = self.answer().await;
                let echoed = echoed.expect("the server echoes");
                assert_eq!(echoed.get().len(), params.get().len());
                took.push(clock() - begun.remove(&number).expect("one of ours"));
            }
        })
    }

    fn cancel<'a>(&'a mut self, count: usize, took: &'a mut CancelSamples) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            // No request waits: the server answers a cancel with the time at which it arrived.
            for _ in 0..count {
                self.next += 1;
                let begin = clock();
                self.send_cancel(self.next).await;
                let (_, signalled) = self.answer().await;
                let end = clock() - begin;
                let signalled: u64 =
                    signalled.and_then(|value| value.get().parse().ok()).expect("the server says when");
                took.to_handler.push(signalled - begin);
                took.to_caller.push(end);
                took.to_answer.push(end);
            }
            Told::Measured
        })
    }

    fn unknown_cancels(&mut self, count: usize) -> BoxFuture<'_, Told> {
        Box::pin(async move {
            Self::unknown_cancels(self, count).await;
            Told::Measured
        })
    }
}

/// The first number of unknown requests: their cancels are read and dropped.
const UNKNOWN: u64 = 1 << 40;

/// Echoes requests, and answers a cancel with the time at which it arrived, until the client disconnects.
async fn serve_frames(mut link: Link) {
    let mut out = Vec::new();
    while let Some(frame) = recv(&mut link).await {
        out.clear();
        let id = match ACP.codec().decode(&frame) {
            Incoming::Request(request) => {
                let to = ReplyTo { id: &request.id, tag: request.tag, server_cancellable: false };
                let params = request.params.expect("an echo has params");
                ACP.codec().encode_value(ACP.rules(), &mut out, &to, params);
                request.id
            }
            Incoming::Cancel(cancel) => {
                let id = cancel.key.expect("a cancel names a request");
                if id.as_number() >= Some(UNKNOWN.cast_signed()) {
                    continue;
                }
                let time = to_raw_value(&clock()).expect("a number is JSON");
                let to = ReplyTo { id: &id, tag: 0, server_cancellable: false };
                ACP.codec().encode_value(ACP.rules(), &mut out, &to, &time);
                id
            }
            other => panic!("nothing to echo: {other:?}"),
        };
        if send(&mut link, &out, FrameKind::Answer, id).await.is_err() {
            return;
        }
    }
}

async fn send(link: &mut Link, frame: &[u8], kind: FrameKind, id: RequestId) -> Result<(), TransportError> {
    let lane = Lane::Data;
    poll_fn(|cx| link.tx.as_mut().poll_ready(lane, cx)).await?;
    let head = FrameInfo { kind, id: Some(id), method: None, trace: None };
    let body = Bytes::copy_from_slice(frame);
    let out = Outbound { body, exchange: ExchangeId::NONE, lane, head, last: false };
    link.tx.as_mut().start_send(out)?;
    poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await
}

async fn recv(link: &mut Link) -> Option<Bytes> {
    loop {
        match poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await? {
            Ok(TransportEvent::Message(inbound)) => return Some(inbound.body),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

// The floor of a program without a transport: a channel to a task, and a channel back for each request.

/// The floor without a transport.
pub const CHANNELS: Competitor = Competitor {
    name: Name {
        library: "channels",
        version: "tokio 1",
        configuration: "mpsc + oneshot, no frames",
        carries: Carries::Values,
    },
    open: |setup| Box::pin(open_channels(setup)),
    serve: None,
};

/// The messages to the task.
enum Ask {
    Echo(Box<RawValue>, oneshot::Sender<Box<RawValue>>),
    Park(Parked),
}

/// A request that waits for its cancel, and answers when it was signalled.
struct Parked {
    token: CancellationToken,
    answer: oneshot::Sender<u64>,
}

/// The caller's part.
struct Held {
    token: CancellationToken,
    answer: oneshot::Receiver<u64>,
}

impl Held {
    async fn cancelled(self) -> u64 {
        self.token.cancel();
        self.answer.await.expect("a parked task answers")
    }
}

#[derive(Debug)]
struct Channels {
    server: mpsc::UnboundedSender<Ask>,
    held: Vec<Held>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

async fn open_channels(_: Setup) -> Box<dyn Subject> {
    let (server, mut asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(ask) = asked.recv().await {
            match ask {
                Ask::Echo(params, answer) => {
                    let _ = answer.send(params);
                }
                Ask::Park(Parked { token, answer }) => {
                    tokio::spawn(async move {
                        token.cancelled().await;
                        let _ = answer.send(clock());
                    });
                }
            }
        }
    });
    Box::new(Channels { server, held: Vec::new() })
}

impl Channels {
    async fn echo_once(&self, params: &RawValue) {
        let (answer, answered) = oneshot::channel();
        let _ = self.server.send(Ask::Echo(params.to_owned(), answer));
        let echoed = answered.await.expect("the task echoes");
        assert_eq!(echoed.get().len(), params.get().len());
    }

    fn park_one(&self, token: CancellationToken) -> Held {
        let (answer, answered) = oneshot::channel();
        let _ = self.server.send(Ask::Park(Parked { token: token.clone(), answer }));
        Held { token, answer: answered }
    }
}

impl Subject for Channels {
    fn echo<'a>(&'a mut self, echo: Echo, took: &'a mut Vec<u64>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let params = params(echo.bytes);
            in_flight(echo, took, || self.echo_once(&params)).await;
        })
    }

    fn cancel<'a>(&'a mut self, count: usize, took: &'a mut CancelSamples) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let params = params(1);
            for _ in 0..count {
                let held = self.park_one(CancellationToken::new());
                self.echo_once(&params).await;
                let begin = clock();
                let signalled = held.cancelled().await;
                took.to_caller.push(clock() - begin);
                took.to_handler.push(signalled - begin);
            }
            Told::Measured
        })
    }

    fn saturate<'a>(&'a mut self, _: Which, _: usize, _: &'a mut Vec<u64>) -> BoxFuture<'a, Saturated> {
        Box::pin(async { Saturated::NoLimit })
    }

    fn park(&mut self, requests: usize) -> BoxFuture<'_, Told> {
        Box::pin(async move {
            for number in 0..requests {
                let held = self.park_one(CancellationToken::new());
                self.held.push(held);
                if number % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            self.echo_once(&params(1)).await;
            Told::Measured
        })
    }

    fn release(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for held in self.held.drain(..) {
                held.cancelled().await;
            }
        })
    }

    fn pairs(&mut self, count: usize) -> BoxFuture<'_, Told> {
        Box::pin(async move {
            let params = params(1);
            for _ in 0..count / BURST {
                self.park(BURST).await;
                self.echo_once(&params).await;
                self.release().await;
            }
            Told::Measured
        })
    }

    fn cascade(&mut self, tree: Tree, meanwhile: bool) -> BoxFuture<'_, Result<Cascade, Told>> {
        Box::pin(async move {
            let root = CancellationToken::new();
            let mut level = vec![root.clone()];
            let mut held = Vec::with_capacity(tree.requests());
            for _ in 0..tree.depth {
                let mut next = Vec::with_capacity(level.len() * tree.fan_out);
                for parent in &level {
                    for _ in 0..tree.fan_out {
                        let token = parent.child_token();
                        held.push(self.park_one(token.clone()));
                        next.push(token);
                    }
                }
                level = next;
                self.echo_once(&params(1)).await;
            }
            let params = params(1);
            let mut told = Cascade::default();
            let begin = clock();
            root.cancel();
            told.to_caller = clock() - begin;
            for one in held {
                if meanwhile && told.meanwhile.len() < 1000 {
                    let asked = clock();
                    self.echo_once(&params).await;
                    told.meanwhile.push(clock() - asked);
                }
                let signalled = one.answer.await.expect("a parked task answers");
                told.to_last = told.to_last.max(signalled - begin);
            }
            Ok(told)
        })
    }

    fn deadlines<'a>(
        &'a mut self,
        count: usize,
        after: Duration,
        late: &'a mut Vec<u64>,
    ) -> BoxFuture<'a, Told> {
        Box::pin(async move {
            let mut waiting = Vec::with_capacity(count);
            for _ in 0..count {
                let held = self.park_one(CancellationToken::new());
                let by = Instant::now() + after;
                let due = clock() + u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                waiting.push(tokio::spawn(async move {
                    tokio::time::sleep_until(by.into()).await;
                    held.cancelled().await;
                    clock().saturating_sub(due)
                }));
            }
            for one in waiting {
                late.push(one.await.expect("a wait ends"));
            }
            Told::Measured
        })
    }
}
