//! The runner against peers that misbehave: each is reported with what was seen, and none is waited for.

#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rescind_testkit::runner::{Abilities, Line, Played, Seen, Settings, Subject, Trouble, Verdict, play};
use rescind_testkit::{Profile, Scenario, scenarios_of};

/// Says these things, one for each frame it gets, whatever the frame.
struct Scripted {
    replies: VecDeque<Vec<Seen>>,
    waiting: VecDeque<Seen>,
    now: Instant,
}

impl Scripted {
    fn new(replies: impl IntoIterator<Item = Vec<Seen>>) -> Self {
        Self { replies: replies.into_iter().collect(), waiting: VecDeque::new(), now: Instant::now() }
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
};

impl Subject for Scripted {
    fn abilities(&self) -> Abilities {
        Abilities { options: true, ..NOTHING }
    }

    fn now(&self) -> Instant {
        self.now
    }

    async fn open(&mut self) -> Result<Line, Trouble> {
        Ok(Line(0))
    }

    async fn send(&mut self, _: Line, frames: Vec<String>) -> Result<(), Trouble> {
        for _ in frames {
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

    async fn half_close(&mut self, _: Line) -> Result<(), Trouble> {
        Ok(())
    }

    async fn disconnect(&mut self, _: Line) -> Result<(), Trouble> {
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
        Verdict::Broke { why, .. } | Verdict::NotAsked { why } => why,
    }
}

#[tokio::test]
async fn a_peer_that_hangs_is_given_up_after_the_deadline() {
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
async fn a_peer_that_floods_is_given_up() {
    let tick = || frame(r#"{"jsonrpc":"2.0","method":"test/tick","params":{"n":1}}"#);
    let flood = (0..20_000).map(|_| tick()).collect();
    let script = [opened(), stats("runner-2", 0), flood];
    let played = played("progress_never_after", Scripted::new(script), None).await;
    assert!(why(&played).contains("no end is seen"), "{}", why(&played));
}

#[tokio::test]
async fn a_second_answer_is_a_fault_even_at_the_end() {
    let answer = || frame(r#"{"jsonrpc":"2.0","id":1,"result":{"value":1}}"#);
    let barrier = frame(r#"{"jsonrpc":"2.0","id":"runner-2","result":{"value":"barrier"}}"#);
    let script = [opened(), vec![], vec![answer(), answer()], vec![barrier]];
    let played = played("unknown_notification", Scripted::new(script), None).await;
    assert!(why(&played).contains("nothing was to come"), "{played:?}");
}

#[tokio::test]
async fn a_wrong_answer_says_what_was_wanted_and_what_came() {
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
async fn a_peer_that_answers_but_goes_on_working_breaks() {
    let cancelled =
        frame(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}"#);
    let never: Vec<_> = (3..100).map(|number| stats(&format!("runner-{number}"), 0)).collect();
    let script = [opened(), stats("runner-2", 0), vec![], vec![cancelled]].into_iter().chain(never);
    let played = played("cancel_running", Scripted::new(script), None).await;
    assert!(why(&played).contains("`finished` should be 1 and is 0"), "{played:?}");
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
async fn a_vector_whose_requests_a_profile_lacks_is_not_asked() {
    let profile = Profile::from_toml(PROFILE).unwrap();
    for (name, word) in [
        ("panic", "profile has none"),
        ("partial_result", "profile has none"),
        ("cancel_queued", "settings"),
        ("prompt_flow", "session/new"),
        ("cancel_call_confirmed", "makes no calls"),
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
async fn a_profile_puts_the_vector_into_the_peers_own_words() {
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

/// A subject that cannot be given options.
struct Foreign<'a>(&'a mut Scripted);

impl Subject for Foreign<'_> {
    fn abilities(&self) -> Abilities {
        NOTHING
    }

    fn now(&self) -> Instant {
        self.0.now()
    }

    async fn open(&mut self) -> Result<Line, Trouble> {
        self.0.open().await
    }

    async fn send(&mut self, line: Line, frames: Vec<String>) -> Result<(), Trouble> {
        self.0.send(line, frames).await
    }

    async fn recv(&mut self, line: Line, within: Duration) -> Seen {
        self.0.recv(line, within).await
    }

    async fn half_close(&mut self, line: Line) -> Result<(), Trouble> {
        self.0.half_close(line).await
    }

    async fn disconnect(&mut self, line: Line) -> Result<(), Trouble> {
        self.0.disconnect(line).await
    }

    async fn pause(&mut self) {
        self.0.pause().await;
    }
}
