//! Every vector on the bare machine. A vector that always passes proves nothing, so the machine is disturbed, and the
//! vectors must fail.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "what the tests share is part of them")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rescind_core::dialect::Dialect;
use rescind_testkit::runner::{Abilities, Line, Seen, Settings, Subject, SubjectError, Verdict, play};
use rescind_testkit::{BareMachine, CallStep, CancelWord, Part, Scenario, scenarios, scenarios_of};
use serde_json::Value;

/// A description of the failure, with everything that was sent and received.
fn broken(scenario: &Scenario) -> Option<String> {
    let dialect = Dialect::by_name(scenario.dialect).expect("every folder is named after a dialect");
    let played = BareMachine::play(&dialect, scenario);
    match played.verdict {
        Verdict::Held => None,
        Verdict::Broke { why, step, .. } => {
            let trace: Vec<_> =
                played.trace.iter().map(|line| format!("    {:?} {}", line.direction, line.text)).collect();
            Some(format!(
                "{}/{} step {step}: {why}\n{}",
                scenario.dialect,
                scenario.vector.name,
                trace.join("\n")
            ))
        }
        // A need that the vector itself states is not a gap.
        Verdict::NotAsked { .. } if !scenario.vector.needs.is_empty() => None,
        Verdict::NotAsked { why } | Verdict::Unsure { why } => {
            Some(format!("{}/{}: not asked: {why}", scenario.dialect, scenario.vector.name))
        }
    }
}

fn all_hold(dialect: &str) {
    let only = std::env::var("VECTOR").ok();
    let wanted = |scenario: &&Scenario| only.as_ref().is_none_or(|name| scenario.vector.name == *name);
    let broken: Vec<_> = scenarios_of(dialect).filter(wanted).filter_map(broken).collect();
    assert!(broken.is_empty(), "{} broke:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn acp_holds() {
    all_hold("acp");
}

#[test]
fn acp_v2_holds() {
    all_hold("acp-v2");
}

#[test]
fn acp_draft_holds() {
    all_hold("acp-draft");
}

#[test]
fn lsp_holds() {
    all_hold("lsp");
}

#[test]
fn mcp_holds() {
    all_hold("mcp");
}

#[test]
fn mcp_2026_holds() {
    all_hold("mcp-2026");
}

#[test]
fn abp_holds() {
    all_hold("abp");
}

#[test]
fn every_dialect_has_vectors() {
    for dialect in &rescind_core::dialect::ALL {
        assert!(scenarios().iter().any(|scenario| scenario.dialect == dialect.name()), "{}", dialect.name());
    }
}

/// How the frames between runner and machine are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meddling {
    /// Cancels never arrive.
    CancelsLost,
    /// Every frame of the machine arrives twice.
    AnswersDoubled,
    /// Every cancelled answer becomes a failed one.
    WrongCode,
    /// A cancel also cancels the request before it.
    EverythingCancelled,
}

struct Meddled {
    inner: BareMachine,
    how: Meddling,
    again: BTreeMap<usize, String>,
}

fn is_cancel(frame: &str) -> bool {
    ["$/cancel", "notifications/cancelled", "capabilities/cancel\""].iter().any(|word| frame.contains(word))
}

impl Subject for Meddled {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    async fn open(&mut self) -> Result<Line, SubjectError> {
        self.inner.open().await
    }

    async fn send(&mut self, line: Line, mut frames: Vec<String>) -> Result<(), SubjectError> {
        match self.how {
            Meddling::CancelsLost => frames.retain(|frame| !is_cancel(frame)),
            Meddling::EverythingCancelled => {
                let more: Vec<_> = frames.iter().filter(|frame| is_cancel(frame)).cloned().collect();
                frames.extend(more.iter().flat_map(|frame| {
                    (1..4).map(|id| {
                        let mut other: Value = serde_json::from_str(frame).unwrap();
                        for place in ["/params/requestId", "/params/id"] {
                            if let Some(key) = other.pointer_mut(place) {
                                *key = Value::from(id);
                            }
                        }
                        if let Some(key) = other.pointer_mut("/payload/callId") {
                            *key = Value::from(format!("call-{id}"));
                        }
                        other.to_string()
                    })
                }));
            }
            Meddling::AnswersDoubled | Meddling::WrongCode => {}
        }
        self.inner.send(line, frames).await
    }

    async fn recv(&mut self, line: Line, within: Duration) -> Seen {
        if let Some(again) = self.again.remove(&line.0) {
            return Seen::Frame(again);
        }
        match (self.how, self.inner.recv(line, within).await) {
            (Meddling::AnswersDoubled, Seen::Frame(frame)) => {
                self.again.insert(line.0, frame.clone());
                Seen::Frame(frame)
            }
            (Meddling::WrongCode, Seen::Frame(frame)) => Seen::Frame(
                frame.replace("-32800", "-32603").replace("\"cancelled\":true", "\"cancelled\":false"),
            ),
            (_, seen) => seen,
        }
    }

    async fn half_close(&mut self, line: Line) -> Result<(), SubjectError> {
        self.inner.half_close(line).await
    }

    async fn disconnect(&mut self, line: Line) -> Result<(), SubjectError> {
        self.inner.disconnect(line).await
    }

    async fn pause(&mut self) {
        self.inner.pause().await;
    }

    async fn call(&mut self, line: Line, call: &CallStep) -> Result<(), SubjectError> {
        self.inner.call(line, call).await
    }

    async fn cancel_call(&mut self, name: &str, reason: Option<&str>) -> Result<CancelWord, SubjectError> {
        self.inner.cancel_call(name, reason).await
    }
}

async fn holds(scenario: &Scenario, how: Meddling) -> bool {
    let dialect = Dialect::by_name(scenario.dialect).unwrap();
    let inner = BareMachine::new(&dialect, scenario);
    let mut subject = Meddled { inner, how, again: BTreeMap::new() };
    play(scenario, &mut subject, &Settings::default()).await.verdict == Verdict::Held
}

async fn must_break(how: Meddling, wanted: impl Fn(&Scenario) -> bool) {
    let mut count = 0;
    for scenario in scenarios().iter().filter(|it| it.vector.role == Part::Serve && wanted(it)) {
        count += 1;
        assert!(!holds(scenario, how).await, "{how:?}: {}/{} held", scenario.dialect, scenario.vector.name);
    }
    assert!(count >= 7, "{how:?} was tried on {count} vectors");
}

fn named(scenario: &Scenario, names: &[&str]) -> bool {
    names.contains(&scenario.vector.name.as_str())
}

#[tokio::test]
async fn a_lost_cancel_fails_every_vector_that_cancels_a_running_request() {
    let names = [
        "cancel_running",
        "cancel_together",
        "siblings_untouched",
        "fail_after_cancel",
        "blocking_poll",
        "partial_result",
        "progress_never_after",
    ];
    must_break(Meddling::CancelsLost, |it| named(it, &names)).await;
}

#[tokio::test]
async fn a_doubled_answer_fails_every_vector() {
    must_break(Meddling::AnswersDoubled, |it| it.vector.name != "half_close_grace").await;
}

#[tokio::test]
async fn a_wrong_code_fails_the_dialects_with_a_cancelled_answer() {
    let owed = ["acp", "acp-v2", "acp-draft", "lsp", "abp"];
    let names = ["cancel_running", "cancel_twice", "deaf_handler_grace"];
    must_break(Meddling::WrongCode, |it| owed.contains(&it.dialect) && named(it, &names)).await;
}

#[tokio::test]
async fn a_cancel_of_too_many_requests_fails_the_isolation_vectors() {
    let names = ["siblings_untouched", "sibling_result_unchanged"];
    must_break(Meddling::EverythingCancelled, |it| named(it, &names)).await;
}
