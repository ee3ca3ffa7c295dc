//! Every vector with the real driver in both roles: the fixture serves, a `Peer` calls. Over memory and over byte
//! streams in both framings.
//!
//! `VECTOR=name cargo test -p rescind-testkit --test testkit wires` plays only the vectors of that name.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::fmt::Write as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use rescind_core::{BoxFuture, ByteStream, FrameKind, Framing, Link, memory_pair};
use rescind_testkit::exchanges::{ExchangeWatch, IdScope, exchange_pair};
use rescind_testkit::fixture::Fixture;
use rescind_testkit::runner::{
    CallingSubject, Connect, LinkSubject, Outcomes, PeerCaller, Played, Settings, Verdict, differences, play,
};
use rescind_testkit::{Part, Scenario, scenarios};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How many vectors are played at once: enough to use the waiting time, too few to delay one another.
const AT_ONCE: usize = 16;
/// A small buffer, so that most frames are split.
const PIPE: usize = 64;

/// Two ends of one connection.
type Pair = fn() -> (Link, Link);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_every_vector_holds_with_the_same_outcomes_over_memory_and_over_bytes() {
    let by_line: Pair = || piped(Framing::Newline);
    let by_length: Pair = || piped(Framing::ContentLength);
    let memory = all_hold(memory_pair).await;
    let others = [("bytes by line", all_hold(by_line).await), ("bytes by length", all_hold(by_length).await)];
    let mut reported = Vec::new();
    for (scenario, outcomes) in &memory {
        let name = (scenario.dialect, &scenario.vector.name);
        let mut all = vec![("memory", outcomes)];
        for (wire, plays) in &others {
            let of_it = plays.iter().find(|(it, _)| (it.dialect, &it.vector.name) == name);
            all.push((*wire, &of_it.unwrap().1));
        }
        reported.extend(
            differences(scenario, &all).into_iter().map(|(_, reported)| format!("{name:?} {reported}")),
        );
    }
    assert!(reported.is_empty(), "{} differ:\n{}", reported.len(), reported.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_holds_over_exchanges_in_a_session() {
    all_hold_by_exchange(IdScope::Session, |dialect| dialect != "mcp-2026").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_holds_over_exchanges_without_a_session() {
    all_hold_by_exchange(IdScope::Exchange, |dialect| dialect == "mcp-2026").await;
}

async fn all_hold_by_exchange(scope: IdScope, carries: fn(&str) -> bool) {
    let only = std::env::var("VECTOR").ok();
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut plays = JoinSet::new();
    for scenario in scenarios().iter().filter(|scenario| carries(scenario.dialect)) {
        if only.as_ref().is_some_and(|name| scenario.vector.name != *name) {
            continue;
        }
        let permits = Arc::clone(&permits);
        plays.spawn(async move {
            let _permit = permits.acquire_owned().await.unwrap();
            let watches: Watches = Arc::default();
            let kept = Arc::clone(&watches);
            let pair = move || {
                let (client, server, watch) = exchange_pair(scope);
                kept.lock().unwrap().push(watch);
                (client, server)
            };
            let mut wrong = None;
            let look = |running| {
                wrong = watches.lock().unwrap().iter().find_map(|watch| misended(watch, running));
            };
            let played = play_over(scenario, pair, look).await;
            let half_closes = scenario.vector.requirements(scenario.dialect).half_close;
            if half_closes && matches!(played.verdict, Verdict::NotAsked { .. }) {
                return None;
            }
            reported(scenario, &played).or_else(|| {
                wrong.map(|wrong| format!("{}/{}: {wrong}", scenario.dialect, scenario.vector.name))
            })
        });
    }
    let broken: Vec<String> = plays.join_all().await.into_iter().flatten().collect();
    assert!(broken.is_empty(), "{} did not hold:\n{}", broken.len(), broken.join("\n"));
}

type Watches = Arc<Mutex<Vec<ExchangeWatch>>>;

/// A post that did not end exactly once. A request that still runs when a play ends is open.
fn misended(watch: &ExchangeWatch, running: u64) -> Option<String> {
    if watch.is_over() {
        return None;
    }
    let posts = watch.posts();
    let open = posts.iter().filter(|post| post.ends.is_empty());
    let (asked, reported): (Vec<_>, Vec<_>) = open.partition(|post| post.kind == FrameKind::Request);
    if let Some(twice) = posts.iter().find(|post| post.ends.len() > 1) {
        return Some(format!("a post was ended twice: {twice:?}"));
    }
    if let Some(reported) = reported.first() {
        return Some(format!("a post that asks nothing was not ended: {reported:?}"));
    }
    (asked.len() as u64 > running)
        .then(|| format!("{running} requests run, and these posts are open: {asked:?}"))
}

fn piped(framing: Framing) -> (Link, Link) {
    let (near, far) = tokio::io::duplex(PIPE);
    let (near_gone, far_gone) = (CancellationToken::new(), CancellationToken::new());
    let link = |stream, own: &CancellationToken, peer: &CancellationToken| {
        let pipe = Pipe { _own: own.clone().drop_guard(), peer_gone: peer.clone(), stream };
        ByteStream::whole(pipe).framing(framing).into_link()
    };
    (link(near, &near_gone, &far_gone), link(far, &far_gone, &near_gone))
}

/// A pipe that distinguishes a peer that is gone from one that has only ended its output, as sockets do.
struct Pipe {
    /// Dropped before the stream, so that its peer knows the reason when it sees the end.
    _own: DropGuard,
    peer_gone: CancellationToken,
    stream: DuplexStream,
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let ended = buf.filled().len() == before;
        Poll::Ready(if ended && self.peer_gone.is_cancelled() {
            Err(io::ErrorKind::ConnectionReset.into())
        } else {
            Ok(())
        })
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Checks that every vector passes, and returns the outcomes of each.
async fn all_hold(pair: Pair) -> Vec<(&'static Scenario, Outcomes)> {
    let only = std::env::var("VECTOR").ok();
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut plays = JoinSet::new();
    for scenario in scenarios() {
        if only.as_ref().is_some_and(|name| scenario.vector.name != *name) {
            continue;
        }
        let permits = Arc::clone(&permits);
        plays.spawn(async move {
            let _permit = permits.acquire_owned().await.unwrap();
            (scenario, play_over(scenario, pair, |_| {}).await)
        });
    }
    assert!(!plays.is_empty(), "no vector has that name");
    let played = plays.join_all().await;
    let broken: Vec<String> =
        played.iter().filter_map(|(scenario, played)| reported(scenario, played)).collect();
    assert!(broken.is_empty(), "{} did not hold:\n{}", broken.len(), broken.join("\n"));
    played.into_iter().map(|(scenario, played)| (scenario, played.outcomes)).collect()
}

/// `look` receives the number of requests that the fixture serves at the end, while the connections are still open.
async fn play_over(
    scenario: &'static Scenario,
    pair: impl Fn() -> (Link, Link) + Send + 'static,
    look: impl FnOnce(u64),
) -> Played {
    let settings = Settings::default();
    let fixture = Fixture::new(scenario.dialect, scenario.vector.options.clone()).unwrap();
    match scenario.vector.role {
        Part::Serve => {
            let mut subject = serving(fixture.clone(), pair);
            let played = play(scenario, &mut subject, &settings).await;
            let counts = fixture.counts();
            look(["running", "queued"].iter().filter_map(|name| counts.get(name)?.as_u64()).sum());
            played
        }
        Part::Call => {
            let (near, far) = pair();
            let ordered = far.traits.ordered;
            let caller = PeerCaller::open(fixture.clone(), near).unwrap();
            let wire = LinkSubject::new(only_once(far));
            let wire = if ordered { wire.with_half_close() } else { wire };
            let mut played = play(scenario, &mut CallingSubject::new(wire, caller), &settings).await;
            played.outcomes.handled(fixture.handled());
            played
        }
    }
}

fn serving(fixture: Fixture, pair: impl Fn() -> (Link, Link) + Send + 'static) -> LinkSubject {
    let ordered = pair().0.traits.ordered;
    let connect = move || -> BoxFuture<'static, Result<Link, String>> {
        let (ours, theirs) = pair();
        let served = fixture.serve(theirs).map(|_peer| ours).map_err(|error| error.to_string());
        Box::pin(async move { served })
    };
    let subject = LinkSubject::new(Box::new(connect)).with_many_lines().with_options();
    // A transport of exchanges cannot end only its input.
    if ordered { subject.with_half_close() } else { subject }
}

fn only_once(link: Link) -> Connect {
    let mut link = Some(link);
    Box::new(move || {
        let link = link.take().ok_or_else(|| "this wire has one connection".to_owned());
        Box::pin(async move { link })
    })
}

/// A description of the failure, with everything that was sent and received.
fn reported(scenario: &Scenario, played: &Played) -> Option<String> {
    let what = match &played.verdict {
        Verdict::Held => return None,
        Verdict::Broke { why, step, .. } => format!("step {step}: {why}"),
        // A need that the vector itself states is not a gap.
        Verdict::NotAsked { .. } if !scenario.vector.needs.is_empty() => return None,
        Verdict::NotAsked { why } | Verdict::Unsure { why } => format!("not asked: {why}"),
    };
    let mut text = format!("{}/{} {what}", scenario.dialect, scenario.vector.name);
    for line in &played.trace {
        let _ = write!(text, "\n    {:?} {}", line.direction, line.text);
    }
    Some(text)
}
