//! Plays the server in one run of the program: the events of a run, what the server does in each kind of run, and the raw
//! frames. Each request is answered on the exchange on which it came.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use rescind_core::{
    Deviation, ExchangeEnd, ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, RequestId, TransportEvent,
};
use rescind_testkit::runner::{AsMeant, DeviationSeen, as_meant, refused};
use rescind_testkit::wire_format::Shape;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use super::record::{Ending, Entry, Event, Play, Record};
use super::server_dialect::{CancelForm, OWN_ID, Role, ServerDialect};
use super::{ClientSettings, StartedClient};

/// How long the last frames of a program that has ended may take to arrive.
const DRAIN: Duration = Duration::from_millis(300);

/// Plays one run to its end.
pub(super) async fn play(
    server: ServerDialect,
    kind: Play,
    started: StartedClient,
    settings: &ClientSettings,
) -> Record {
    let StartedClient { mut links, mut ended, guard } = started;
    let begun = Instant::now();
    let mut deadline = begun + settings.start;
    let mut run = Run {
        server,
        kind,
        settings,
        begun,
        record: Record::new(kind),
        dialogue: None,
        slow: Vec::new(),
        held: Vec::new(),
        sessions: 0,
        own: Own::NotMade,
        due: Vec::new(),
    };
    loop {
        let next = run.next_due();
        tokio::select! {
            biased;
            heard = hear(&mut run.dialogue) => run.hear(heard).await,
            Some(link) = links.recv(), if run.dialogue.is_none() => {
                run.connect(Dialogue::new(link, settings.step));
                deadline = Instant::now() + settings.step * 3 + settings.wait * 4;
            }
            () = sleep_until(next.unwrap_or(deadline)), if next.is_some() => run.do_due().await,
            end = &mut ended => {
                run.drain().await;
                run.record.ending = Ending::Exited(end);
                break;
            }
            () = sleep_until(deadline) => {
                run.record.ending = Ending::Deadline(begun.elapsed());
                break;
            }
        }
    }
    drop(guard);
    run.record
}

async fn hear(dialogue: &mut Option<Dialogue>) -> Heard {
    match dialogue {
        Some(dialogue) => dialogue.next().await,
        None => std::future::pending().await,
    }
}

/// A slow request of the program.
struct SlowRequest {
    id: Value,
    session: Value,
    params: Value,
    cancelled: Option<ByWhat>,
    open: bool,
}

/// Which cancel came for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByWhat {
    Request,
    Session,
}

/// The server's own request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    NotMade,
    Open,
    Cancelled,
    Done,
}

/// What is done later.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Every open slow request is answered normally, so that the program can continue.
    Release,
    /// Every open slow request is answered as this run demands.
    Late,
    /// The quick requests are answered.
    Quick,
    OwnCancel,
}

struct Run<'a> {
    server: ServerDialect,
    kind: Play,
    settings: &'a ClientSettings,
    begun: Instant,
    record: Record,
    dialogue: Option<Dialogue>,
    slow: Vec<SlowRequest>,
    /// Quick requests that are answered later.
    held: Vec<Value>,
    sessions: usize,
    own: Own,
    due: Vec<(Instant, Due)>,
}

impl Run<'_> {
    fn note(&mut self, event: Event) {
        self.record.entries.push(Entry { at: self.begun.elapsed(), event });
    }

    fn connect(&mut self, dialogue: Dialogue) {
        self.record.ordered = dialogue.ordered();
        self.record.exchange_scoped = dialogue.exchange_scoped();
        self.dialogue = Some(dialogue);
        self.note(Event::Connected);
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.iter().map(|(at, _)| *at).min()
    }

    fn later(&mut self, after: Duration, what: Due) {
        self.due.push((Instant::now() + after, what));
    }

    async fn do_due(&mut self) {
        let now = Instant::now();
        let ready: Vec<Due> = self.due.iter().filter(|(at, _)| *at <= now).map(|(_, what)| *what).collect();
        self.due.retain(|(at, _)| *at > now);
        for what in ready {
            match what {
                Due::Release => self.end_slow(true).await,
                Due::Late => self.end_slow(self.kind != Play::LateError).await,
                Due::Quick => self.answer_held().await,
                Due::OwnCancel if self.own == Own::Open => {
                    let frame = self.server.own_cancel();
                    self.beside_slow(FrameKind::Cancel, &frame).await;
                    self.note(Event::AskedCancel(frame.to_string()));
                    self.own = Own::Cancelled;
                    self.later(self.settings.step, Due::Release);
                }
                Due::OwnCancel => {}
            }
        }
    }

    async fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Frame(text, exchange) => {
                match as_meant(&text, self.server.wire, &[Value::from(OWN_ID)], false) {
                    Ok(AsMeant { messages, deviations }) => {
                        for seen in deviations {
                            self.note(Event::Deviation(seen));
                        }
                        self.messages(messages, text, exchange).await;
                    }
                    Err(_) => self.note(Event::Noise(text)),
                }
            }
            Heard::Noise(why) => self.note(Event::Noise(why)),
            Heard::Deviation(seen) => self.note(Event::Deviation(seen)),
            Heard::StreamClosed(id) => {
                self.note(Event::StreamClosed(id.clone()));
                if self.record.exchange_scoped {
                    for slow in self.slow.iter_mut().filter(|slow| slow.id == id) {
                        slow.cancelled = Some(ByWhat::Request);
                        slow.open = false;
                    }
                    self.after_cancel().await;
                }
            }
            Heard::Closed => {
                self.note(Event::Closed);
                self.dialogue = None;
            }
        }
    }

    /// Takes the messages of a frame with this text.
    async fn messages(&mut self, messages: Vec<Value>, text: String, exchange: ExchangeId) {
        for message in messages {
            match message {
                Value::Array(frames) => {
                    for frame in frames {
                        let text = frame.to_string();
                        self.frame(&frame, text, exchange).await;
                    }
                }
                frame @ Value::Object(_) => self.frame(&frame, text.clone(), exchange).await,
                _ => self.note(Event::Noise(text.clone())),
            }
        }
    }

    async fn frame(&mut self, frame: &Value, text: String, exchange: ExchangeId) {
        if let Some(form) = self.server.cancel_form(frame) {
            self.note(Event::Cancel(form.clone(), text));
            self.accept(exchange).await;
            return self.cancel(&form).await;
        }
        match self.server.shape(frame) {
            Shape::Request { id, method } => self.request(frame, text, id, method, exchange).await,
            Shape::Answer { id } => {
                let error = frame.pointer("/error/code").and_then(Value::as_i64);
                self.note(Event::Answer { error, text });
                self.accept(exchange).await;
                if id == OWN_ID && matches!(self.own, Own::Open | Own::Cancelled) {
                    self.own = Own::Done;
                    self.end_slow(true).await;
                }
            }
            Shape::Notification { .. } | Shape::Cancel { .. } => {
                self.note(Event::Notification(text));
                self.accept(exchange).await;
            }
            Shape::Other => {
                self.note(Event::Noise(text));
                self.accept(exchange).await;
            }
        }
    }

    async fn accept(&mut self, exchange: ExchangeId) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.accept(exchange).await;
        }
    }

    async fn request(
        &mut self,
        frame: &Value,
        text: String,
        id: Value,
        method: String,
        exchange: ExchangeId,
    ) {
        let params = frame.get("params").cloned().unwrap_or_default();
        let role = self.server.role(&method, &params);
        let session = params.get("sessionId").cloned().unwrap_or_default();
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.begin(&id, exchange);
        }
        self.note(Event::Request {
            id: id.clone(),
            method: method.clone(),
            role,
            session: session.clone(),
            text,
        });
        match role {
            Role::Initialize if self.kind == Play::Initialize => {}
            Role::Initialize | Role::Other => {
                let answer = self.server.answer_to(&id, &method, &params, &mut self.sessions);
                self.answer(&id, &answer, false).await;
            }
            Role::Slow => {
                self.slow.push(SlowRequest { id, session, params, cancelled: None, open: true });
                self.begin_slow().await;
            }
            Role::Quick => self.quick(id).await,
        }
    }

    async fn answer(&mut self, id: &Value, frame: &Value, as_cancelled: bool) {
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.answer(id, frame).await;
            self.note(Event::Answered { id: id.clone(), as_cancelled, text: frame.to_string() });
        }
    }

    /// Reads what the program sent before it ended.
    async fn drain(&mut self) {
        let until = Instant::now() + DRAIN;
        while self.dialogue.is_some() {
            let left = until.saturating_duration_since(Instant::now());
            match timeout(left, hear(&mut self.dialogue)).await {
                Ok(heard) => self.hear(heard).await,
                Err(_) => break,
            }
        }
    }
}

/// How long after a cancel a late answer comes, if the program makes no other request before.
const LATE: Duration = Duration::from_millis(300);
impl Run<'_> {
    async fn begin_slow(&mut self) {
        match self.kind {
            Play::AnsweredFirst => self.end_slow(true).await,
            Play::Serve => self.ask().await,
            Play::Pair => {
                if self.slow.len() == 2 {
                    self.progress().await;
                    self.later(self.settings.step, Due::Release);
                }
                if self.slow.len() == 1 {
                    self.later(self.settings.step * 2, Due::Release);
                }
            }
            Play::Timeout => self.later(self.settings.step, Due::Release),
            Play::Cancelled | Play::LateResult | Play::LateError | Play::Close | Play::Initialize => {
                self.progress().await;
                self.later(self.settings.step, Due::Release);
            }
        }
    }

    async fn progress(&mut self) {
        let frames: Vec<(Value, Value)> = self
            .slow
            .iter()
            .filter_map(|slow| Some((slow.id.clone(), self.server.progress(&slow.params)?)))
            .collect();
        for (id, frame) in frames {
            if let Some(dialogue) = &mut self.dialogue {
                dialogue.beside(&id, FrameKind::Notification, None, &frame).await;
            }
            self.note(Event::Said(frame.to_string()));
        }
    }

    /// Makes the server's own request.
    async fn ask(&mut self) {
        let session = self.slow.last().map(|slow| slow.session.clone()).unwrap_or_default();
        let frame = self.server.own_request(&session);
        self.beside_slow(FrameKind::Request, &frame).await;
        self.note(Event::Asked(frame.to_string()));
        self.own = Own::Open;
        self.later(self.settings.wait, Due::OwnCancel);
    }

    async fn beside_slow(&mut self, kind: FrameKind, frame: &Value) {
        let slow = self.slow.last().map(|slow| slow.id.clone()).unwrap_or_default();
        if let Some(dialogue) = &mut self.dialogue {
            dialogue.beside(&slow, kind, Some(&Value::from(OWN_ID)), frame).await;
        }
    }

    async fn quick(&mut self, id: Value) {
        self.held.push(id);
        match self.kind {
            Play::LateResult | Play::LateError if self.slow.iter().any(|slow| slow.cancelled.is_some()) => {
                self.end_slow(self.kind == Play::LateResult).await;
                self.answer_held().await;
            }
            // Its cancel may be on the way, on a transport that does not keep the order.
            Play::LateResult | Play::LateError => {
                self.later(LATE, Due::Late);
                self.later(LATE, Due::Quick);
            }
            Play::AnsweredFirst => {
                // The program's cancel must find it alive.
                let cancelled = self.slow.iter().any(|slow| slow.cancelled.is_some());
                self.later(if cancelled { Duration::ZERO } else { self.settings.wait * 3 }, Due::Quick);
            }
            Play::Serve if self.own == Own::Cancelled => {
                self.own = Own::Done;
                self.answer_held().await;
                self.end_slow(true).await;
            }
            Play::Cancelled | Play::Pair | Play::Serve | Play::Timeout | Play::Close | Play::Initialize => {
                self.answer_held().await;
            }
        }
    }

    async fn answer_held(&mut self) {
        for id in std::mem::take(&mut self.held) {
            let frame = self.server.normal(&id, "quick");
            self.answer(&id, &frame, false).await;
        }
    }

    async fn cancel(&mut self, form: &CancelForm) {
        let by = match form {
            CancelForm::OfRequest { .. } => ByWhat::Request,
            CancelForm::OfSession(_) => ByWhat::Session,
        };
        let mut found = false;
        for slow in self.slow.iter_mut().filter(|slow| form.means(&slow.id, &slow.session)) {
            found = true;
            slow.cancelled.get_or_insert(by);
        }
        if found {
            self.after_cancel().await;
        }
    }

    async fn after_cancel(&mut self) {
        match self.kind {
            Play::LateResult | Play::LateError => self.later(LATE, Due::Late),
            Play::AnsweredFirst => self.later(LATE, Due::Quick),
            Play::Pair => {
                self.end_cancelled().await;
                self.later(LATE, Due::Release);
            }
            Play::Cancelled | Play::Serve | Play::Timeout | Play::Close | Play::Initialize => {
                self.end_cancelled().await;
            }
        }
    }

    /// Ends the cancelled requests as the dialect demands.
    async fn end_cancelled(&mut self) {
        let ended: Vec<(Value, ByWhat)> = self
            .slow
            .iter_mut()
            .filter(|slow| slow.open)
            .filter_map(|slow| {
                let by = slow.cancelled?;
                slow.open = false;
                Some((slow.id.clone(), by))
            })
            .collect();
        for (id, by) in ended {
            if self.server.owes_silence() {
                if let Some(dialogue) = &mut self.dialogue {
                    dialogue.silence(&id).await;
                }
            } else {
                let frame = self.server.cancelled(&id, by == ByWhat::Session);
                self.answer(&id, &frame, true).await;
            }
        }
    }

    /// Answers the open slow requests: with a normal result, or as cancelled.
    async fn end_slow(&mut self, normally: bool) {
        let mut ended = Vec::new();
        for slow in self.slow.iter_mut().filter(|slow| slow.open) {
            slow.open = false;
            ended.push((slow.id.clone(), slow.cancelled));
        }
        for (id, by) in ended {
            let frame = if normally {
                self.server.normal(&id, "slow")
            } else {
                self.server.cancelled(&id, by == Some(ByWhat::Session))
            };
            self.answer(&id, &frame, !normally).await;
        }
    }
}

/// A connection that the program opened.
struct Dialogue {
    link: Link,
    /// The unanswered requests of the program, and their exchanges.
    open: Vec<(Value, ExchangeId)>,
    patience: Duration,
}

/// What came on a connection.
enum Heard {
    /// A message, and the exchange on which it came.
    Frame(String, ExchangeId),
    Noise(String),
    Deviation(DeviationSeen),
    /// The program closed the stream of this request.
    StreamClosed(Value),
    Closed,
}

impl Dialogue {
    const fn new(link: Link, patience: Duration) -> Self {
        Self { link, open: Vec::new(), patience }
    }

    const fn ordered(&self) -> bool {
        self.link.traits.ordered
    }

    const fn exchange_scoped(&self) -> bool {
        self.link.traits.exchange_scoped
    }

    /// The next event.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    async fn next(&mut self) -> Heard {
        loop {
            let event = poll_fn(|cx| self.link.rx.as_mut().poll_event(cx)).await;
            return match event {
                Some(Ok(TransportEvent::Message(message))) => {
                    match String::from_utf8(message.body.to_vec()) {
                        Ok(text) => Heard::Frame(text, message.exchange),
                        Err(_) => Heard::Noise(format!("{} bytes that are not UTF-8", message.body.len())),
                    }
                }
                Some(Ok(TransportEvent::Rejected { why, head, .. })) => Heard::Noise(refused(why, &head)),
                Some(Ok(TransportEvent::Deviation { deviation: Deviation::Noise, sent })) => {
                    Heard::Noise(String::from_utf8_lossy(&sent).into_owned())
                }
                Some(Ok(TransportEvent::Deviation { deviation, sent })) => {
                    Heard::Deviation(DeviationSeen::new(deviation, String::from_utf8_lossy(&sent)))
                }
                Some(Ok(TransportEvent::ExchangeClosed { exchange })) => {
                    let Some(at) = self.open.iter().position(|(_, on)| *on == exchange) else { continue };
                    let (id, _) = self.open.remove(at);
                    self.link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Silent);
                    Heard::StreamClosed(id)
                }
                Some(Ok(
                    TransportEvent::Stalled { .. }
                    | TransportEvent::Unanswered { .. }
                    | TransportEvent::ExchangeResumed { .. }
                    | TransportEvent::ExchangeFailed { .. },
                )) => continue,
                Some(Ok(_) | Err(_)) | None => Heard::Closed,
            };
        }
    }

    /// Notes a request of the program, whose answer may take long.
    fn begin(&mut self, id: &Value, exchange: ExchangeId) {
        self.open.push((id.clone(), exchange));
        if exchange.is_peers() {
            self.link.tx.as_mut().begin_exchange(exchange);
            self.link.tx.as_mut().note_waiting(exchange);
        }
    }

    /// Accepts a message that needs no answer.
    async fn accept(&mut self, exchange: ExchangeId) {
        if exchange.is_peers() {
            self.link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Accepted);
            self.flush().await;
        }
    }

    /// Ends a request without an answer.
    async fn silence(&mut self, id: &Value) {
        if let Some(exchange) = self.take(id).filter(|exchange| exchange.is_peers()) {
            self.link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Silent);
            self.flush().await;
        }
    }

    /// Sends an answer.
    async fn answer(&mut self, id: &Value, frame: &Value) {
        let exchange = self.take(id);
        let last = exchange.is_some_and(ExchangeId::is_peers);
        self.send(FrameKind::Answer, Some(id), frame, exchange.unwrap_or(ExchangeId::NONE), last).await;
    }

    /// Sends a frame that belongs to a request of the program, on its exchange if it is open.
    async fn beside(&mut self, id: &Value, kind: FrameKind, own_id: Option<&Value>, frame: &Value) {
        let open = self.open.iter().rfind(|(open, _)| open == id);
        let exchange = open.map_or(ExchangeId::NONE, |(_, exchange)| *exchange);
        self.send(kind, own_id, frame, exchange, false).await;
    }

    fn take(&mut self, id: &Value) -> Option<ExchangeId> {
        let at = self.open.iter().rposition(|(open, _)| open == id)?;
        Some(self.open.remove(at).1)
    }

    /// A program that is gone or does not read gets nothing. The record shows what it did then.
    async fn send(
        &mut self,
        kind: FrameKind,
        id: Option<&Value>,
        frame: &Value,
        exchange: ExchangeId,
        last: bool,
    ) {
        let method = frame.get("method").and_then(Value::as_str).map(Into::into);
        let id = id.and_then(|id| RequestId::from_json(&id.to_string()).ok());
        let head = FrameInfo { kind, id, method, trace: None };
        let body = Bytes::from(frame.to_string());
        let out = Outbound { body, exchange, lane: Lane::Data, head, last };
        let sent = async {
            poll_fn(|cx| self.link.tx.as_mut().poll_ready(Lane::Data, cx)).await?;
            self.link.tx.as_mut().start_send(out)?;
            poll_fn(|cx| self.link.tx.as_mut().poll_flush(cx)).await
        };
        let _written = timeout(self.patience, sent).await;
    }

    async fn flush(&mut self) {
        let flushed = poll_fn(|cx| self.link.tx.as_mut().poll_flush(cx));
        let _written = timeout(self.patience, flushed).await;
    }
}
