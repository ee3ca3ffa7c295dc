//! Plays the server in one run of the program. `script.rs` says what the server does in which run.

mod script;

use std::time::Duration;

use rescind_core::{ExchangeId, FrameKind};
use rescind_testkit::runner::{AsMeant, as_meant};
use rescind_testkit::wire_format::Shape;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use super::dialogue::{Dialogue, Heard};
use super::record::{Ending, Entry, Event, Play, Record};
use super::server_dialect::{OWN_ID, Role, ServerDialect};
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
