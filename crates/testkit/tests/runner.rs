//! The runner over a real transport, against a small peer written by hand, and against peers that misbehave: each is
//! reported with what was seen, and none makes the runner hang.

#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::collections::VecDeque;
use std::future::poll_fn;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rescind_core::{BoxFuture, Deviation, Link, TransportEvent, memory_pair};
use rescind_testkit::runner::{
    Abilities, Calibration, DeviationSeen, Line, LinkSubject, Played, Seen, Settings, Subject, SubjectError,
    Verdict, play,
};
use rescind_testkit::support::frames;
use rescind_testkit::{Profile, Scenario, scenarios_of};
use serde_json::{Value, json};

/// Sends one list of events for each frame that it receives, regardless of the frame.
struct Scripted {
    replies: VecDeque<Vec<Seen>>,
    waiting: VecDeque<Seen>,
    now: Instant,
    abilities: Abilities,
    /// The number of frames after the end of its input.
    too_late: usize,
    half_closed: bool,
    streams_of_requests: bool,
}

impl Scripted {
    fn new(replies: impl IntoIterator<Item = Vec<Seen>>) -> Self {
        Self {
            replies: replies.into_iter().collect(),
            waiting: VecDeque::new(),
            now: Instant::now(),
            abilities: Abilities { options: true, ..NOTHING },
            too_late: 0,
            half_closed: false,
            streams_of_requests: false,
        }
    }
}

const NOTHING: Abilities = Abilities {
    many_lines: false,
    half_close: false,
    calls: false,
    options: false,
    ordered: true,
    batches: true,
    bare: true,
    exchange_scoped: false,
    tasks: true,
};

impl Subject for Scripted {
    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn has_streams_of_requests(&self) -> bool {
        self.streams_of_requests
    }

    fn now(&self) -> Instant {
        self.now
    }

    async fn open(&mut self) -> Result<Line, SubjectError> {
        Ok(Line(0))
    }

    async fn send(&mut self, _: Line, frames: Vec<String>) -> Result<(), SubjectError> {
        for _ in frames {
            self.too_late += usize::from(self.half_closed);
            self.waiting.extend(self.replies.pop_front().unwrap_or_default());
        }
        Ok(())
    }

    async fn recv(&mut self, _: Line, within: Duration) -> Seen {
        let seen = self.waiting.pop_front().unwrap_or(Seen::Nothing);
        if seen == Seen::Nothing {
            self.now += within;
        }
        seen
    }

    async fn half_close(&mut self, _: Line) -> Result<(), SubjectError> {
        self.half_closed = true;
        self.waiting.extend(self.replies.pop_front().unwrap_or_default());
        Ok(())
    }

    async fn disconnect(&mut self, _: Line) -> Result<(), SubjectError> {
        Ok(())
    }

    async fn pause(&mut self) {
        self.now += Duration::from_millis(100);
    }
}

fn scenario(name: &str) -> &'static Scenario {
    scenarios_of("acp").find(|scenario| scenario.vector.name == name).unwrap()
}

fn frame(text: &str) -> Seen {
    Seen::Frame(text.to_owned())
}

fn opened() -> Vec<Seen> {
    vec![frame(r#"{"jsonrpc":"2.0","id":"runner-1","result":{"protocolVersion":1}}"#)]
}

async fn played(name: &str, subject: Scripted, profile: Option<Profile>) -> Played {
    let mut subject = subject;
    let mut settings = Settings::default();
    settings.profile = profile;
    play(scenario(name), &mut subject, &settings).await
}

fn why(played: &Played) -> &str {
    match &played.verdict {
        Verdict::Held => panic!("it held"),
        Verdict::Broke { why, .. } | Verdict::NotAsked { why } | Verdict::Unsure { why } => why,
    }
}

#[tokio::test]
async fn a_peer_that_hangs_fails_after_the_deadline() {
    let played = played("unknown_notification", Scripted::new([]), None).await;
    assert!(why(&played).contains("did not come"), "{played:?}");
    assert!(matches!(played.verdict, Verdict::Broke { step: 0, .. }));
    assert_eq!(played.trace.len(), 1);
}

#[tokio::test]
async fn a_peer_that_closes_is_reported_with_how_it_ended() {
    let end = vec![Seen::Closed(Some("exit status 1; stderr: boom".to_owned()))];
    let played = played("unknown_notification", Scripted::new([opened(), end]), None).await;
    assert!(why(&played).contains("exit status 1; stderr: boom"), "{played:?}");
}

#[tokio::test]
async fn a_peer_that_prints_noise_is_reported_with_the_noise() {
    for noise in [frame("Listening on port 1"), Seen::Noise("bytes that are no frame".to_owned())] {
        let played = played("unknown_notification", Scripted::new([opened(), vec![noise]]), None).await;
        assert!(matches!(played.verdict, Verdict::Broke { .. }), "{played:?}");
        assert_eq!(played.trace.len(), 5, "{played:?}");
    }
}

#[tokio::test]
async fn a_peer_that_floods_fails() {
    let tick = || frame(r#"{"jsonrpc":"2.0","method":"test/tick","params":{"n":1}}"#);
    let flood = (0..20_000).map(|_| tick()).collect();
    let script = [opened(), stats("runner-2", 0), flood];
    let played = played("progress_never_after", Scripted::new(script), None).await;
    assert!(why(&played).contains("no end is seen"), "{}", why(&played));
}

#[tokio::test]
async fn a_second_answer_fails_even_at_the_end() {
    let answer = || frame(r#"{"jsonrpc":"2.0","id":1,"result":{"value":1}}"#);
    let barrier = frame(r#"{"jsonrpc":"2.0","id":"runner-2","result":{"value":"barrier"}}"#);
    let script = [opened(), vec![], vec![answer(), answer()], vec![barrier]];
    let played = played("unknown_notification", Scripted::new(script), None).await;
    assert!(why(&played).contains("nothing was to come"), "{played:?}");
}

#[tokio::test]
async fn a_wrong_answer_is_reported_with_the_expected_one() {
    let wrong = frame(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"Internal error"}}"#);
    let script = [opened(), stats("runner-2", 0), vec![], vec![wrong]];
    let played = played("cancel_running", Scripted::new(script), None).await;
    assert!(why(&played).contains("error.code should be -32800 and is -32603"), "{played:?}");
}

fn stats(id: &str, cancelled: u64) -> Vec<Seen> {
    let counters = format!(
        r#""started":0,"finished":{cancelled},"cancelled":{cancelled},"running":0,"queued":0,"draining":0,"slots":0,"unknown_cancels":0,"late_answers":0"#
    );
    vec![frame(&format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":{{{counters}}}}}"#))]
}

#[tokio::test]
async fn a_peer_that_answers_but_continues_the_work_fails() {
    let cancelled =
        frame(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}"#);
    let never: Vec<_> = (3..100).map(|number| stats(&format!("runner-{number}"), 0)).collect();
    let script = [opened(), stats("runner-2", 0), vec![], vec![cancelled]].into_iter().chain(never);
    let played = played("cancel_running", Scripted::new(script), None).await;
    assert!(why(&played).contains("`finished` should be 1 and is 0"), "{played:?}");
}

/// The settings of a scenario that a check plays after others.
fn in_a_check(profile: Profile) -> Settings {
    let mut settings = Settings::default();
    settings.profile = Some(profile);
    settings.calibration = Some(Calibration::default());
    settings
}

#[tokio::test]
async fn what_an_earlier_scenario_left_is_not_counted() {
    let witness =
        "[witness]\nmethod = \"stats\"\nparams = {}\nrunning = \"running\"\ncancelled = \"cancelled\"\n";
    let profile = Profile::from_toml(&format!("{PROFILE}{witness}")).unwrap();
    let counters = |id: u64, running: u64, cancelled: u64| {
        let result = format!(r#"{{"running":{running},"cancelled":{cancelled}}}"#);
        vec![frame(&format!(r#"{{"jsonrpc":"2.0","id":"runner-{id}","result":{result}}}"#))]
    };
    let cancelled = frame(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"cancelled"}}"#);
    let barrier = frame(r#"{"jsonrpc":"2.0","id":"runner-5","result":{}}"#);
    // The request of the earlier scenario is counted as cancelled only after the first look.
    let before = [opened(), counters(2, 1, 4), counters(3, 0, 5)];
    let then = [vec![], vec![cancelled], counters(4, 0, 6), vec![barrier]];
    let mut subject = Scripted::new(before.into_iter().chain(then));
    let played = play(scenario("cancel_running"), &mut subject, &in_a_check(profile)).await;
    assert_eq!(played.verdict, Verdict::Held, "{played:?}");
}

#[tokio::test]
async fn a_peer_that_others_use_too_is_not_waited_for_without_end() {
    let witness =
        "[witness]\nmethod = \"stats\"\nparams = {}\nrunning = \"running\"\ncancelled = \"cancelled\"\n";
    let profile = Profile::from_toml(&format!("{PROFILE}{witness}")).unwrap();
    let busy = |id: u64| {
        vec![frame(&format!(
            r#"{{"jsonrpc":"2.0","id":"runner-{id}","result":{{"running":3,"cancelled":0}}}}"#
        ))]
    };
    let mut subject = Scripted::new([opened()].into_iter().chain((2..200).map(busy)));
    let begun = subject.now;
    let played = play(scenario("cancel_running"), &mut subject, &in_a_check(profile)).await;
    assert!(played.trace.iter().any(|line| line.text.contains("session/prompt")), "{played:?}");
    assert!(subject.now - begun < Duration::from_secs(8), "{:?}", subject.now - begun);
}

const PROFILE: &str = r#"
name = "somebody's agent"
[requests.slow]
method = "session/prompt"
params = { prompt = "think" }
cancelled = [ { code = -32800 }, { result = { stopReason = "cancelled" } } ]
[requests.quick]
method = "ping"
[deviations]
cancel_running = "it says so in its read-me"
"#;

#[tokio::test]
async fn a_vector_whose_requests_a_profile_lacks_is_skipped() {
    let profile = Profile::from_toml(PROFILE).unwrap();
    for (name, word) in [
        ("panic", "profile has none"),
        ("partial_result", "profile has none"),
        ("cancel_queued", "settings"),
        ("prompt_flow", "session/new"),
        ("cancel_call_confirmed", "cannot be instructed"),
    ] {
        let mut subject = Scripted::new([]);
        let mut settings = Settings::default();
        settings.profile = Some(profile.clone());
        let foreign = Foreign(&mut subject);
        let mut foreign = foreign;
        let played = play(scenario(name), &mut foreign, &settings).await;
        let words = ["witness", word];
        assert!(words.iter().any(|word| why(&played).contains(word)), "{name}: {played:?}");
        assert!(matches!(played.verdict, Verdict::NotAsked { .. }), "{name}: {played:?}");
        assert!(played.trace.is_empty());
    }
}

#[tokio::test]
async fn a_profile_translates_a_vector_into_the_peers_methods() {
    let profile = Profile::from_toml(PROFILE).unwrap();
    let prompt = frame(r#"{"jsonrpc":"2.0","id":1,"result":{"stopReason":"cancelled","more":1}}"#);
    let chatter = frame(r#"{"jsonrpc":"2.0","method":"session/update","params":{}}"#);
    let asked = frame(r#"{"jsonrpc":"2.0","id":7,"method":"fs/read","params":{}}"#);
    let echo = frame(r#"{"jsonrpc":"2.0","id":2,"result":{"pong":true}}"#);
    let barrier = frame(r#"{"jsonrpc":"2.0","id":"runner-2","result":{"pong":true}}"#);
    let script = [opened(), vec![chatter, asked], vec![prompt], vec![], vec![echo], vec![barrier]];
    let played = played("session_outlives_cancel", Scripted::new(script), Some(profile)).await;
    assert_eq!(played.verdict, Verdict::Held, "{played:?}");
    let sent: Vec<_> = played.trace.iter().map(|line| line.text.as_str()).collect();
    assert!(sent.iter().any(|text| text.contains(r#""method":"session/prompt""#) && text.contains("think")));
    assert!(sent.iter().any(|text| text.contains("-32601") && text.contains(r#""id":7"#)), "{sent:#?}");
    assert!(played.cancel.is_some());
}

/// Plays this scenario as `rescind check` does without a profile.
async fn asked(scenario: &Scenario, subject: &mut Scripted) -> Played {
    let mut settings = Settings::default();
    settings.profile = Some(Profile::fixture().unwrap());
    play(scenario, subject, &settings).await
}

#[tokio::test]
async fn a_frame_in_place_of_an_answer_is_reported() {
    for other in [r#"{"id":"1","jsonrpc":"2.0","result":{}}"#, r#"[{"id":"runner-1","method":"m"}]"#] {
        let mut subject = Scripted::new([vec![frame(other)]]);
        let played = asked(scenario("cancel_running"), &mut subject).await;
        assert!(why(&played).contains(&format!("meanwhile this came: {other}")), "{played:?}");
    }
}

#[tokio::test]
async fn an_answer_whose_meaning_is_certain_is_taken_and_told() {
    for (answer, told) in [
        (r#"[{"id":"runner-1","jsonrpc":"2.0","result":{}}]"#, Deviation::BatchOfAnswers),
        (r#"{"id":"runner-1","result":{}}"#, Deviation::NoVersion),
        ("\u{feff}{\"id\":\"runner-1\",\"jsonrpc\":\"2.0\",\"result\":{}}", Deviation::ByteOrderMark),
    ] {
        let mut subject = Scripted::new([vec![frame(answer)]]);
        let played = asked(scenario("cancel_running"), &mut subject).await;
        assert!(why(&played).contains("the answer to `test/stats`"), "the opening is answered: {played:?}");
        assert_eq!(played.deviations.iter().map(|seen| seen.deviation).collect::<Vec<_>>(), [told]);
    }
}

#[tokio::test]
async fn what_a_transport_dropped_of_a_foreign_peer_is_told_and_breaks_nothing() {
    let noise = Seen::Deviation(DeviationSeen::new(Deviation::Noise, "Loading..."));
    let opened = frame(r#"{"id":"runner-1","jsonrpc":"2.0","result":{}}"#);
    let mut subject = Scripted::new([vec![noise.clone(), opened.clone()]]);
    let played = asked(scenario("cancel_running"), &mut subject).await;
    assert!(why(&played).contains("the answer to `test/stats`"), "the opening is answered: {played:?}");
    assert_eq!(played.deviations, [DeviationSeen::new(Deviation::Noise, "Loading...")]);
    // Our own fixture never does it.
    let mut subject = Scripted::new([vec![noise, opened]]);
    let played = play(scenario("cancel_running"), &mut subject, &Settings::default()).await;
    assert!(why(&played).contains("Loading..."), "{played:?}");
}

#[tokio::test]
async fn a_refused_opening_opens_no_session() {
    let refusal =
        r#"{"jsonrpc":"2.0","id":"runner-1","error":{"code":-32000,"message":"Authentication required"}}"#;
    let played = asked(scenario("cancel_running"), &mut Scripted::new([vec![frame(refusal)]])).await;
    assert!(matches!(played.verdict, Verdict::Broke { step: 0, .. }), "{played:?}");
    assert!(why(&played).starts_with("`initialize` was refused: "), "{played:?}");
}

#[tokio::test]
async fn a_request_of_a_peer_after_the_end_of_its_input_gets_no_answer() {
    let asked_late = frame(r#"{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{}}"#);
    let last = frame(r#"{"jsonrpc":"2.0","id":1,"result":{"value":"last"}}"#);
    let mut subject = Scripted::new([opened(), vec![], vec![asked_late, last, Seen::Closed(None)]]);
    subject.abilities.half_close = true;
    subject.abilities.options = false;
    // A foreign peer is not asked this, because its answer in this case is its own choice.
    let mut scenario = scenario("half_close_answers").clone();
    scenario.vector.ours = None;
    let played = asked(&scenario, &mut subject).await;
    assert_eq!(played.verdict, Verdict::Held, "{played:?}");
    assert_eq!(subject.too_late, 0, "{played:?}");
}

#[tokio::test]
async fn a_post_answered_in_json_may_end_a_silenced_request_with_one_cancelled_error() {
    let cancelled = || frame(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Cancelled"}}"#);
    let barrier = |number| {
        frame(&format!(r#"{{"jsonrpc":"2.0","id":"runner-{number}","result":{{"value":"barrier"}}}}"#))
    };
    let scenario = scenarios_of("mcp").find(|scenario| scenario.vector.name == "cancel_running").unwrap();
    for (ordered, answers, holds) in [
        (false, vec![cancelled()], true),
        (false, vec![cancelled(), cancelled()], false),
        (true, vec![cancelled()], false),
    ] {
        // The opening is an answer and a notification.
        let script = [opened(), vec![], stats("runner-2", 0), vec![], answers, vec![barrier(3)]];
        let script = script.into_iter().chain([stats("runner-4", 1), vec![barrier(5)]]);
        let mut subject = Scripted::new(script);
        subject.abilities = Abilities { ordered, ..NOTHING };
        let played = asked(scenario, &mut subject).await;
        assert_eq!(played.verdict == Verdict::Held, holds, "{played:?}");
    }
}

#[tokio::test]
async fn work_of_a_running_peer_for_other_clients_is_not_counted() {
    let running = |number: u64, running: u64, cancelled: u64| {
        let id = format!("runner-{number}");
        frame(&format!(
            r#"{{"jsonrpc":"2.0","id":"{id}","result":{{"running":{running},"cancelled":{cancelled}}}}}"#
        ))
    };
    let cancelled = frame(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Cancelled"}}"#);
    let barrier = frame(r#"{"jsonrpc":"2.0","id":"runner-4","result":{"value":"barrier"}}"#);
    let script =
        [opened(), vec![running(2, 3, 5)], vec![], vec![cancelled], vec![running(3, 3, 6)], vec![barrier]];
    let played = asked(scenario("cancel_running"), &mut Scripted::new(script)).await;
    assert_eq!(played.verdict, Verdict::Held, "{played:?}");
}

#[tokio::test]
async fn a_foreign_peer_need_not_follow_our_decisions_or_undeclared_features() {
    for (dialect, name) in [
        ("acp", "id_that_is_none_is_refused"),
        ("mcp", "id_that_is_none_is_refused"),
        ("lsp", "malformed_frame_then_valid"),
        ("mcp", "early_cancel_waits"),
    ] {
        let scenario = scenarios_of(dialect).find(|scenario| scenario.vector.name == name).unwrap();
        let played = asked(scenario, &mut Scripted::new([])).await;
        assert!(matches!(played.verdict, Verdict::NotAsked { .. }), "{name}: {played:?}");
        assert!(why(&played).contains("what we decided"), "{name}: {played:?}");
    }
    let task = scenarios_of("mcp").find(|scenario| scenario.vector.name == "task_unknown").unwrap();
    let played = asked(task, &mut Scripted::new([opened()])).await;
    assert!(matches!(played.verdict, Verdict::NotAsked { .. }), "{played:?}");
    assert!(why(&played).contains("/capabilities/tasks/requests/tools/call"), "{played:?}");
    let declaring = |more: &str| {
        frame(&format!(
            r#"{{"jsonrpc":"2.0","id":"runner-1","result":{{"protocolVersion":"2025-11-25","capabilities":{{"tasks":{{{more}"requests":{{"tools":{{"call":{{}}}}}}}}}}}}}}"#
        ))
    };
    // A server with tasks need not serve their cancel.
    let played = asked(task, &mut Scripted::new([vec![declaring("")]])).await;
    assert!(why(&played).contains("/capabilities/tasks/cancel"), "{played:?}");
    let unknown = |id: u64| {
        vec![frame(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32602,"message":"No such task"}}}}"#
        ))]
    };
    let barrier = frame(r#"{"jsonrpc":"2.0","id":"runner-2","result":{"value":"barrier"}}"#);
    let script =
        [vec![declaring(r#""cancel":{},"#)], vec![], unknown(1), unknown(2), unknown(3), vec![barrier]];
    let played = asked(task, &mut Scripted::new(script)).await;
    assert_eq!(played.verdict, Verdict::Held, "{played:?}");
}

/// A subject that cannot be given options.
struct Foreign<'a>(&'a mut Scripted);

impl Subject for Foreign<'_> {
    fn abilities(&self) -> Abilities {
        NOTHING
    }

    fn now(&self) -> Instant {
        self.0.now()
    }

    async fn open(&mut self) -> Result<Line, SubjectError> {
        self.0.open().await
    }

    async fn send(&mut self, line: Line, frames: Vec<String>) -> Result<(), SubjectError> {
        self.0.send(line, frames).await
    }

    async fn recv(&mut self, line: Line, within: Duration) -> Seen {
        self.0.recv(line, within).await
    }

    async fn half_close(&mut self, line: Line) -> Result<(), SubjectError> {
        self.0.half_close(line).await
    }

    async fn disconnect(&mut self, line: Line) -> Result<(), SubjectError> {
        self.0.disconnect(line).await
    }

    async fn pause(&mut self) {
        self.0.pause().await;
    }
}

/// The exchange of the opening request ended without an answer.
fn unanswered(why: Option<&str>) -> Seen {
    Seen::Unanswered { id: "runner-1".into(), why: why.map(str::to_owned) }
}

#[tokio::test]
async fn the_runner_does_not_wait_for_an_answer_that_cannot_arrive() {
    let mut subject = Scripted::new([vec![unanswered(Some("the server answered with 500"))]]);
    let begun = subject.now;
    let played = asked(scenario("cancel_running"), &mut subject).await;
    assert_eq!(why(&played), "the answer to `initialize` cannot come: the server answered with 500");
    assert_eq!(subject.now, begun);
    let reported = &played.trace.last().unwrap().text;
    assert!(reported.contains("ended without an answer: the server answered with 500"), "{reported}");
}

#[tokio::test]
async fn the_runner_waits_for_an_answer_that_may_arrive_on_another_exchange() {
    let twice = [unanswered(None), opened().remove(0)];
    let played = asked(scenario("unknown_notification"), &mut Scripted::new([twice.to_vec()])).await;
    assert!(!why(&played).contains("`initialize`"), "{played:?}");
}

#[tokio::test]
async fn a_failed_exchange_of_an_unknown_request_is_reported_at_the_deadline() {
    let failed = Seen::Unanswered {
        id: serde_json::Value::Null,
        why: Some("the server answered with 400".to_owned()),
    };
    let played = asked(scenario("cancel_running"), &mut Scripted::new([vec![failed]])).await;
    assert!(why(&played).starts_with("waited 5s for the answer to `initialize`"), "{played:?}");
    assert!(why(&played).ends_with("ended without an answer: the server answered with 400"), "{played:?}");
}

/// The vector's barriers are answered before what is still on the stream of the cancelled request.
#[tokio::test]
async fn what_is_left_on_the_stream_of_a_cancelled_request_is_before_a_barrier() {
    let answer = |own: u64, result: &str| {
        frame(&format!(r#"{{"jsonrpc":"2.0","id":"runner-{own}","result":{result}}}"#))
    };
    let counts = r#"{"running":0,"draining":0,"slots":0,"cancelled":0,"started":0,"finished":0}"#;
    let cancelled = r#"{"running":0,"draining":0,"slots":0,"cancelled":1,"started":1,"finished":1}"#;
    let progress = || {
        frame(
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"token-1","progress":1}}"#,
        )
    };
    let ended = || Seen::Unanswered { id: 1.into(), why: Some("the stream ended".to_owned()) };
    let scenario =
        scenarios_of("mcp").find(|scenario| scenario.vector.name == "progress_never_after").unwrap();
    let play_with = async |after_barrier: Vec<Seen>, then: Vec<Seen>| {
        let mut barrier = vec![answer(3, r#"{"value":"barrier"}"#)];
        barrier.extend(after_barrier);
        let mut second = vec![answer(4, r#"{"value":"barrier"}"#)];
        second.extend(then);
        let script = [
            vec![answer(1, r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#)],
            vec![],
            vec![answer(2, counts)],
            vec![progress(), progress()],
            vec![],
            barrier,
            second,
            vec![answer(5, cancelled)],
            vec![answer(6, r#"{"value":"barrier"}"#)],
            vec![answer(7, r#"{"value":"barrier"}"#)],
            vec![answer(8, r#"{"entering":0,"handlers":[]}"#)],
        ];
        let mut subject = Scripted::new(script);
        subject.streams_of_requests = true;
        play(scenario, &mut subject, &Settings::default()).await
    };
    let played = play_with(vec![progress(), ended()], vec![]).await;
    assert_eq!(played.verdict, Verdict::Held, "{played:?}");
    let played = play_with(vec![ended()], vec![progress()]).await;
    assert!(why(&played).contains("this came, and"), "{played:?}");
    let played = play_with(vec![], vec![]).await;
    assert!(why(&played).contains("the end of the stream of the cancelled request 1"), "{played:?}");
}

/// Answers every request at once, with `{"value": ..}` or an empty object. Disconnects after `limit` frames.
async fn answer_all(mut link: Link, limit: usize) {
    for _ in 0..limit {
        let event = poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await;
        let Some(Ok(TransportEvent::Message(message))) = event else { return };
        let frame: Value = serde_json::from_slice(&message.body).unwrap();
        let Some(id) = frame.get("id") else { continue };
        let value = frame.pointer("/params/value").map_or(json!({}), |value| json!({"value": value}));
        let body = Bytes::from(json!({"jsonrpc": "2.0", "id": id, "result": value}).to_string());
        frames::send(&mut link, body).await.unwrap();
    }
}

fn subject(limit: usize) -> LinkSubject {
    LinkSubject::new(Box::new(move || -> BoxFuture<'static, Result<Link, String>> {
        let (client, server) = memory_pair();
        tokio::spawn(answer_all(server, limit));
        Box::pin(async move { Ok(client) })
    }))
}

#[tokio::test(start_paused = true)]
async fn a_vector_holds_over_the_memory_wire() {
    let played = play(scenario("unknown_notification"), &mut subject(100), &Settings::default()).await;
    assert_eq!(played.verdict, Verdict::Held, "{played:?}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_a_waiting_request_fails() {
    let played = play(scenario("reuse_after_cancel"), &mut subject(100), &Settings::default()).await;
    assert!(matches!(played.verdict, Verdict::Broke { .. }), "{played:?}");
}

#[tokio::test(start_paused = true)]
async fn the_exit_of_a_peer_is_reported() {
    let mut subject = subject(1).with_exit_report(|| Some("exit status 3".to_owned()));
    let played = play(scenario("unknown_notification"), &mut subject, &Settings::default()).await;
    let Verdict::Broke { why, .. } = &played.verdict else { panic!("{played:?}") };
    assert!(why.contains("exit status 3"), "{why}");
}
