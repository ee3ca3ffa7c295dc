//! The result of playing a vector, and the result of each request of a play, in a form that is the same on every
//! transport: the trace that invariant I15 compares.
//!
//! The form of a cancel or of a missing answer depends on the transport. That a cancel was sent, that the handler was
//! signalled, how the request settled and what the caller saw do not. The two directions are kept apart, because a
//! transport defines an order only within one of them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::deviations::DeviationSeen;
use super::subject::Ended;
use crate::fixture::Handled;
use crate::vector::{Scenario, Step};
use crate::wire_format::{Shape, WireFormat, call_name};

/// The results of the requests of one play, by connection and id, or by the name of the call.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    requests: BTreeMap<String, Exchange>,
    /// The handlers that ran, by the id of the request. They have no order if an id was used again. `None`: no
    /// connection could be asked.
    handlers: Option<BTreeMap<String, Vec<String>>>,
    /// Whether the ids of the handlers' requests are not those that the client sent.
    renumbered: bool,
    /// How often a request was cancelled by closing its exchange, by its id.
    given_up: BTreeMap<String, usize>,
    /// Requests whose exchange was closed with the whole connection, by their ids.
    left: BTreeMap<String, usize>,
    /// Ids by the names that cancels use for them, if a protocol gives a request a second name.
    names: BTreeMap<String, String>,
    /// The sessions and tasks that answers named, in their order. Each fixture chooses their names.
    chosen: Vec<String>,
}

/// Where answers have names that a fixture chooses.
const CHOSEN_NAMES: [&str; 4] = [
    "/result/sessionId",
    "/result/taskId",
    "/result/task/taskId",
    "/result/_meta/io.modelcontextprotocol~1related-task/taskId",
];
/// Where answers have times.
const TIMES: [&str; 4] =
    ["/result/createdAt", "/result/lastUpdatedAt", "/result/task/createdAt", "/result/task/lastUpdatedAt"];

/// The messages about one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Exchange {
    sent: Vec<String>,
    received: Vec<String>,
    ended: Option<String>,
}

impl Exchange {
    /// Whether a request was sent that has no answer.
    fn is_open(&self) -> bool {
        let count = |all: &[String], word: &str| all.iter().filter(|said| said.starts_with(word)).count();
        count(&self.sent, "request ") > count(&self.received, "answer ")
    }
}

impl Outcomes {
    pub(super) fn sent(&mut self, line: &str, wire_format: WireFormat, frame: &Value) {
        if let Some((id, said)) = self.said(wire_format, frame) {
            self.requests.entry(format!("{line} {id}")).or_default().sent.push(said);
        }
    }

    pub(super) fn received(&mut self, line: &str, wire_format: WireFormat, frame: &Value) {
        if let Some((id, said)) = self.said(wire_format, frame) {
            self.requests.entry(format!("{line} {id}")).or_default().received.push(said);
        }
    }

    pub(super) fn ended(&mut self, call: &str, ended: &Ended) {
        self.requests.entry(format!("call {call}")).or_default().ended = Some(format!("{ended:?}"));
    }

    /// Returns the request that a frame is about, and its content. `None`: a notification, or a request of the
    /// runner.
    fn said(&mut self, wire_format: WireFormat, frame: &Value) -> Option<(String, String)> {
        let (id, said) = match wire_format.shape(frame) {
            Shape::Request { id, method } => {
                if let Some(name) = call_name(frame) {
                    self.names.insert(name.to_string(), id.to_string());
                }
                (id.to_string(), format!("request {method}"))
            }
            Shape::Answer { id } => {
                let answer = self.with_names_by_number(without_the_envelope(frame));
                (id.to_string(), format!("answer {answer}"))
            }
            Shape::Cancel { key } => {
                let key = key.to_string();
                (self.names.get(&key).cloned().unwrap_or(key), "cancel".to_owned())
            }
            Shape::Notification { .. } | Shape::Other => return None,
        };
        (!is_the_runners(&id)).then_some((id, said))
    }

    /// Replaces the name of a new session or task by its place among those of the play, and times by a word.
    fn with_names_by_number(&mut self, mut answer: Value) -> Value {
        for place in CHOSEN_NAMES {
            if let Some(Value::String(name)) = answer.pointer_mut(place) {
                let known = self.chosen.iter().position(|chosen| chosen == name);
                let number = known.unwrap_or_else(|| {
                    self.chosen.push(name.clone());
                    self.chosen.len() - 1
                });
                *name = format!("name {}", number + 1);
            }
        }
        for place in TIMES {
            if let Some(Value::String(time)) = answer.pointer_mut(place) {
                "a time".clone_into(time);
            }
        }
        answer
    }

    /// How many requests with this id were sent on a connection, if the last one has no answer.
    pub(super) fn open_requests(&self, line: &str, id: &Value) -> usize {
        let exchange = self.requests.get(&format!("{line} {id}")).filter(|exchange| exchange.is_open());
        exchange
            .map_or(0, |exchange| exchange.sent.iter().filter(|said| said.starts_with("request ")).count())
    }

    /// This request was cancelled by closing its exchange, if it was open.
    pub(super) fn gave_up(&mut self, line: &str, key: &Value) {
        let id = key.to_string();
        if self.requests.get(&format!("{line} {id}")).is_some_and(Exchange::is_open) {
            *self.given_up.entry(id).or_default() += 1;
        }
    }

    /// The connection was closed. On this transport that closes the exchanges of its open requests.
    pub(super) fn left(&mut self, line: &str) {
        for (name, exchange) in &self.requests {
            let id = name.strip_prefix(line).and_then(|rest| rest.strip_prefix(' '));
            if let Some(id) = id.filter(|_| exchange.is_open()) {
                *self.left.entry(id.to_owned()).or_default() += 1;
            }
        }
    }

    /// Whether the handler of each request whose exchange was closed has started and was signalled. On a transport
    /// that cancels by closing an exchange, the next request may overtake both.
    pub(super) fn has_shown(&self, handled: &[Handled]) -> bool {
        self.given_up.iter().all(|(id, count)| {
            let signalled = handled.iter().filter(|one| one.id == *id && one.cause.is_some());
            signalled.count() >= *count
        })
    }

    /// The end of a connection does not count as a cause of a handler, on any transport ([`Handled::cause`]). On a
    /// transport that closes each exchange separately, the handlers see the same end as a cancel.
    pub(super) fn without_the_end_of_lines(&self, handled: &mut [Handled]) {
        let left = self.left.iter().filter(|(id, _)| !self.given_up.contains_key(*id));
        for (id, count) in left {
            let reported = |one: &&mut Handled| one.id == *id && one.cause.as_deref() == Some("peer");
            for one in handled.iter_mut().filter(reported).take(*count) {
                one.cause = None;
            }
        }
    }

    /// Adds what the fixture reports about its handlers, without those of the runner's requests.
    pub fn handled(&mut self, handled: impl IntoIterator<Item = Handled>) {
        let mut handlers: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for one in handled {
            if !is_the_runners(&one.id) {
                handlers.entry(one.id.clone()).or_default().push(one.to_string());
            }
        }
        for all in handlers.values_mut() {
            all.sort_unstable();
        }
        self.handlers = Some(handlers);
    }

    /// The handlers reported other ids than those that the client sent, as behind a bridge. Then only the signals of
    /// the handlers are compared, because requests of the runner look like others. A signal may be missing: a
    /// request that is cancelled before it is passed on has no handler. After the end of a connection no signals are
    /// compared: a bridge then cancels what the connection asked for.
    pub fn renumbered(&mut self) {
        self.renumbered = true;
    }

    fn signals(&self) -> Vec<&str> {
        let unsignalled = Handled { id: String::new(), cause: None }.to_string();
        let all = self.handlers.iter().flatten().flat_map(|(_, all)| all);
        let mut signals: Vec<_> = all.map(String::as_str).filter(|said| *said != unsignalled).collect();
        signals.sort_unstable();
        signals
    }

    fn has_the_handlers_of(&self, direct: &Self, disconnects: bool) -> bool {
        if self.handlers.is_none() || direct.handlers.is_none() {
            return true;
        }
        if !self.renumbered {
            return self.handlers == direct.handlers;
        }
        let mut known = direct.signals();
        let mut is_known = |signal: &&str| {
            let found = known.iter().position(|it| it == signal);
            found.map(|at| known.swap_remove(at)).is_some()
        };
        disconnects || self.signals().iter().all(&mut is_known)
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, exchange) in &self.requests {
            writeln!(f, "{name}:")?;
            for said in &exchange.sent {
                writeln!(f, "  sent      {said}")?;
            }
            for said in &exchange.received {
                writeln!(f, "  received  {said}")?;
            }
            if let Some(ended) = &exchange.ended {
                writeln!(f, "  ended     {ended}")?;
            }
        }
        for (id, all) in self.handlers.iter().flatten() {
            for handler in all {
                writeln!(f, "handler of {id}: {handler}")?;
            }
        }
        Ok(())
    }
}

/// Whether this is the id of a request that is not part of the vector: a barrier, a request for the counters, the
/// opening.
fn is_the_runners(id: &str) -> bool {
    id.trim_start_matches('"').starts_with("runner-")
        || id.trim_start_matches('"').starts_with("call-runner-")
}

/// An answer without the fields of the envelope. ABP's timestamps differ from run to run.
fn without_the_envelope(frame: &Value) -> Value {
    let mut answer = frame.clone();
    if let Some(fields) = answer.as_object_mut() {
        for name in ["jsonrpc", "id", "timestamp"] {
            fields.remove(name);
        }
    }
    answer
}

/// The transports whose outcomes differ from those of the first one (I15), each with both printed. Empty for a vector
/// that is a race by nature.
#[must_use]
pub fn differences<'a>(scenario: &Scenario, all: &[(&'a str, &Outcomes)]) -> Vec<(&'a str, String)> {
    let Some(((first, wanted), others)) = all.split_first() else { return Vec::new() };
    if scenario.vector.race.is_some() {
        return Vec::new();
    }
    let disconnects = scenario.vector.steps.iter().any(|step| matches!(step, Step::Disconnect(_)));
    let differ = others.iter().filter(|(_, seen)| {
        wanted.requests != seen.requests || !seen.has_the_handlers_of(wanted, disconnects)
    });
    differ
        .map(|(wire, seen)| {
            let reported =
                format!("I15: {wire} and {first} differ.\n--- {first}\n{wanted}--- {wire}\n{seen}");
            (*wire, reported)
        })
        .collect()
}

/// The result of one vector, with everything that was sent and received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Played {
    /// Whether it passed.
    pub verdict: Verdict,
    /// How it is known that it passed. Empty if it did not.
    pub evidence: Vec<Evidence>,
    /// What was sent and received, in order.
    pub trace: Vec<TraceLine>,
    /// The time from the cancel to its first visible effect.
    pub cancel: Option<Duration>,
    /// The result of each request, in a form that is the same on every transport.
    pub outcomes: Outcomes,
    /// Answers to requests of earlier scenarios in the same session of a foreign peer.
    pub strays: Vec<Value>,
    /// What a foreign peer did against the form of messages.
    pub deviations: Vec<DeviationSeen>,
}

impl Played {
    /// The result of a vector of which nothing was played.
    #[must_use]
    pub fn unplayed(verdict: Verdict) -> Self {
        Self {
            verdict,
            evidence: Vec::new(),
            trace: Vec::new(),
            cancel: None,
            outcomes: Outcomes::default(),
            strays: Vec::new(),
            deviations: Vec::new(),
        }
    }
}

/// Whether a vector passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All steps passed.
    Held,
    /// A step failed.
    Broke {
        /// The kind of the difference.
        failure: Failure,
        /// The expected and the actual result.
        why: String,
        /// The number of the step, from 1. 0: the opening; one above the last: the end.
        step: usize,
    },
    /// It could not be brought about, and nothing wrong was seen.
    Unsure {
        /// Why, and what to change.
        why: String,
    },
    /// It cannot be played against this subject.
    NotAsked {
        /// Why not.
        why: String,
    },
}

/// In which way a subject differed from a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The session could not be opened.
    Opening,
    /// An answer or another frame did not come in time.
    Unanswered,
    /// A frame came in another form than expected.
    OtherFrame,
    /// A frame came that must not come: a second answer, an answer where silence is owed.
    UnexpectedFrame,
    /// The connection or the program ended.
    Closed,
    /// Something came that is not a frame, or the peer stopped reading.
    Unreadable,
    /// The counters of a witness show other values.
    Counters,
    /// A call of the subject, or the subject itself, did not do what a step demands.
    Subject,
}

/// One frame on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TraceLine {
    /// The direction.
    pub direction: Direction,
    /// The content, as text.
    pub text: String,
}

impl TraceLine {
    /// Creates the line of one frame.
    pub fn new(direction: Direction, text: impl Into<String>) -> Self {
        Self { direction, text: text.into() }
    }

    /// The line without the middle of a very long frame.
    #[doc(hidden)]
    #[must_use]
    pub fn shortened(&self) -> Self {
        let mut line = self.clone();
        shorten(&mut line.text);
        line
    }
}

/// The longest text that is kept whole in the report about a foreign peer, in bytes.
const LONGEST_TEXT: usize = 4_096;

/// Takes the middle out of a very long text and says how much is missing.
pub fn shorten(text: &mut String) {
    if text.len() <= LONGEST_TEXT {
        return;
    }
    let boundary =
        |from: usize| (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let (from, to) = (boundary(LONGEST_TEXT * 3 / 4), boundary(text.len() - LONGEST_TEXT / 4));
    let left_out = format!(" [{} bytes left out] ", to - from);
    text.replace_range(from..to, &left_out);
}

/// The direction of a frame, seen from the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To the subject.
    Sent,
    /// From the subject.
    Received,
}

/// How an outcome is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// By the messages that came and those that did not.
    Wire,
    /// A request of the peer counts its work.
    Request,
    /// Progress notifications ceased.
    Progress,
    /// The next request of a peer that serves one at a time was answered sooner than the work would have allowed.
    Serial,
    /// The processes of the peer used no more processor time.
    Processor,
    /// A command of the user counts the peer's work.
    Command,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcomes(answer: &Value) -> Outcomes {
        let wire_format = WireFormat::of("lsp").unwrap();
        let mut outcomes = Outcomes::default();
        outcomes.sent("first", wire_format, &json!({"jsonrpc": "2.0", "id": 1, "method": "test/wait"}));
        outcomes.sent(
            "first",
            wire_format,
            &json!({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}}),
        );
        outcomes.received("first", wire_format, answer);
        outcomes
    }

    fn scenario(race: Option<&str>) -> Scenario {
        let mut scenario = crate::scenarios().first().unwrap().clone();
        scenario.vector.race = race.map(str::to_owned);
        scenario
    }

    #[test]
    fn equal_outcomes_pass_and_different_ones_are_printed() {
        let cancelled = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32800, "message": "no"}});
        let (one, two) = (outcomes(&cancelled), outcomes(&cancelled));
        assert_eq!(differences(&scenario(None), &[("memory", &one), ("stdio", &two)]), []);
        let other = outcomes(&json!({"jsonrpc": "2.0", "id": 1, "result": 1}));
        let all = [("memory", &one), ("stdio", &two), ("http", &other)];
        let reported = differences(&scenario(None), &all);
        assert_eq!(reported.len(), 1);
        assert_eq!(reported[0].0, "http");
        for part in ["http and memory", "sent      cancel", "-32800", r#""result":1"#] {
            assert!(reported[0].1.contains(part), "{part} is not in {}", reported[0].1);
        }
        assert_eq!(differences(&scenario(Some("it is one")), &all), []);
    }

    #[test]
    fn a_signal_by_a_closed_exchange_is_compared_and_one_by_the_end_of_a_connection_is_not() {
        let handled = |cause: Option<&str>| Handled { id: "1".to_owned(), cause: cause.map(str::to_owned) };
        let (running, signalled) = (handled(None), handled(Some("peer")));
        let wire_format = WireFormat::of("mcp-2026").unwrap();
        let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "test/wait"});
        let mut outcomes = Outcomes::default();
        outcomes.sent("first", wire_format, &ask);
        let mut given_up = outcomes.clone();
        given_up.gave_up("first", &json!(1));
        given_up.gave_up("first", &json!(2));
        assert!(!given_up.has_shown(std::slice::from_ref(&running)));
        assert!(given_up.has_shown(std::slice::from_ref(&signalled)));
        assert!(!given_up.has_shown(&[]), "it has yet to begin");
        assert!(given_up.has_shown(&[running, signalled.clone()]), "the id was used again");
        let mut reported = vec![signalled.clone()];
        given_up.left("first");
        given_up.without_the_end_of_lines(&mut reported);
        assert_eq!(reported.first(), Some(&signalled), "that was a cancel of its own");
        let mut reported = [signalled.clone(), signalled.clone()];
        outcomes.left("second");
        outcomes.without_the_end_of_lines(&mut reported);
        assert_eq!(reported, [signalled.clone(), signalled.clone()], "another line ended");
        outcomes.left("first");
        outcomes.without_the_end_of_lines(&mut reported);
        assert_eq!(reported, [handled(None), signalled], "one of them was on it");
        outcomes.received("first", wire_format, &json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
        outcomes.gave_up("first", &json!(1));
        assert!(outcomes.has_shown(&[handled(None)]), "it was answered");
    }

    #[test]
    fn a_handler_that_was_signalled_otherwise_is_a_difference() {
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": 1});
        let handled = |cause: &str| Handled { id: "1".to_owned(), cause: Some(cause.to_owned()) };
        let (mut one, mut two) = (outcomes(&answer), outcomes(&answer));
        one.handled([handled("peer cancelled")]);
        two.handled([handled("parent cancelled")]);
        assert_eq!(differences(&scenario(None), &[("memory", &one), ("stdio", &two)]).len(), 1);
    }

    #[test]
    fn behind_a_bridge_the_signals_of_the_handlers_are_compared_without_their_ids() {
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": 1});
        let handled =
            |id: &str, cause: Option<&str>| Handled { id: id.to_owned(), cause: cause.map(str::to_owned) };
        let (mut direct, mut bridged) = (outcomes(&answer), outcomes(&answer));
        direct.handled([handled("1", Some("peer")), handled("2", None)]);
        let seen = [handled("7", None), handled("8", Some("peer")), handled("9", None), handled("10", None)];
        bridged.handled(seen);
        assert_eq!(differences(&scenario(None), &[("memory", &direct), ("bridge", &bridged)]).len(), 1);
        bridged.renumbered();
        assert_eq!(differences(&scenario(None), &[("memory", &direct), ("bridge", &bridged)]), []);
        bridged.handled([handled("7", Some("peer")), handled("8", Some("peer"))]);
        assert_eq!(differences(&scenario(None), &[("memory", &direct), ("bridge", &bridged)]).len(), 1);
        bridged.handled([handled("7", Some("parent"))]);
        assert_eq!(differences(&scenario(None), &[("memory", &direct), ("bridge", &bridged)]).len(), 1);
        bridged.handled([handled("7", None)]);
        let not_passed_on = differences(&scenario(None), &[("memory", &direct), ("bridge", &bridged)]);
        assert_eq!(not_passed_on, []);
    }

    #[test]
    fn the_runners_own_requests_are_not_compared() {
        let wire_format = WireFormat::of("lsp").unwrap();
        let mut outcomes = Outcomes::default();
        outcomes.sent(
            "first",
            wire_format,
            &json!({"jsonrpc": "2.0", "id": "runner-3", "method": "test/echo"}),
        );
        outcomes.handled([Handled { id: "\"runner-3\"".to_owned(), cause: None }]);
        assert_eq!(outcomes.to_string(), "");
    }

    #[test]
    fn the_middle_of_a_long_frame_is_left_out() {
        let short = TraceLine::new(Direction::Sent, "a".repeat(LONGEST_TEXT));
        assert_eq!(short.shortened(), short);
        // Each character has three bytes, and no cut falls between them.
        let long = format!("<{}>", "\u{20ac}".repeat(10_000));
        let text = TraceLine::new(Direction::Received, long.clone()).shortened().text;
        assert!(text.len() < LONGEST_TEXT + 50);
        assert!(text.starts_with("<\u{20ac}") && text.ends_with("\u{20ac}>"));
        let (kept, left_out) = (text.matches('\u{20ac}').count(), text.split(['[', ' ']).nth(2).unwrap());
        assert_eq!(kept * 3 + 2 + left_out.parse::<usize>().unwrap(), long.len());
    }
}
