//! The same tests for each engine, with a real server that each test starts.
//!
//! `RESCIND_REDIS_SERVER` and `RESCIND_NATS_SERVER` name the programs. The tests of an engine without its variable are
//! skipped.
#![cfg(any(feature = "redis", feature = "nats"))]

mod server;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use self::server::{Program, Server};
use super::{Beat, Engine, EngineError, EngineEvents};

/// The most time for what has no limit of its own.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time to live of entries in tests of their end. The buckets of NATS keep all records for this time then.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(600);

#[derive(Debug, PartialEq)]
enum Heard {
    Rung(String, String),
    Restored,
}

struct Recorder(mpsc::UnboundedSender<Heard>);

impl EngineEvents for Recorder {
    fn rung(&self, signal: &str, value: &str) {
        let _ = self.0.send(Heard::Rung(signal.into(), value.into()));
    }

    fn restored(&self) {
        let _ = self.0.send(Heard::Restored);
    }
}

/// An engine and what it reports.
struct Node {
    engine: Arc<dyn Engine>,
    heard: mpsc::UnboundedReceiver<Heard>,
}

impl Node {
    async fn connect(server: &Server, keep: Duration) -> Self {
        Self::connect_as(server, "", keep).await.unwrap()
    }

    /// `login`: `user:password@`.
    async fn connect_as(server: &Server, login: &str, keep: Duration) -> Result<Self, EngineError> {
        let (sender, heard) = mpsc::unbounded_channel();
        let events = Arc::new(Recorder(sender));
        let engine = connect(server.program, &server.url(login), events, keep).await?;
        Ok(Self { engine, heard })
    }

    async fn next(&mut self) -> Heard {
        timeout(PATIENCE, self.heard.recv()).await.expect("nothing was reported").unwrap()
    }

    async fn rung(&mut self) -> (String, String) {
        match self.next().await {
            Heard::Rung(name, value) => (name, value),
            Heard::Restored => panic!("the connection was lost"),
        }
    }

    /// Waits for `restored`. Doorbells before it are dropped.
    async fn restored(&mut self) {
        while self.next().await != Heard::Restored {}
    }
}

async fn connect(
    program: Program,
    url: &str,
    events: Arc<dyn EngineEvents>,
    keep: Duration,
) -> Result<Arc<dyn Engine>, EngineError> {
    match program {
        #[cfg(feature = "redis")]
        Program::Redis => {
            let _ = keep;
            Ok(Arc::new(super::redis::RedisEngine::connect(url, "rescind", events).await?))
        }
        #[cfg(feature = "nats")]
        Program::Nats => {
            let lifetimes = super::nats::Lifetimes { signals: keep, shared: SHORT, tasks: keep, nodes: keep };
            Ok(Arc::new(super::nats::NatsEngine::connect_with(url, "rescind", events, lifetimes).await?))
        }
    }
}

fn names<const N: usize>(names: [&str; N]) -> [Arc<str>; N] {
    names.map(Into::into)
}

/// Asks until the answer is as expected.
async fn until<T, F: Future<Output = T>>(mut ask: impl FnMut() -> F, is_expected: impl Fn(&T) -> bool) {
    let asking = async {
        while !is_expected(&ask().await) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("the answer never was as expected");
}

async fn the_first_value_stays_and_each_signal_rings(server: Server) {
    let (mut watcher, other) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    let signal = names(["n1.7.x"]);
    watcher.engine.subscribe(&signal).await.unwrap();
    for value in ["first", "second"] {
        other.engine.signal(&signal[0], value, LONG).await.unwrap();
        assert_eq!(watcher.rung().await, ("n1.7.x".into(), value.into()));
    }
    assert_eq!(watcher.engine.look(&signal).await.unwrap(), [Some("first".into())]);
}

async fn only_subscribed_signals_ring(server: Server) {
    let (mut watcher, other) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    watcher.engine.subscribe(&names(["a", "b", "c"])).await.unwrap();
    watcher.engine.unsubscribe(&names(["a", "b"])).await.unwrap();
    watcher.engine.subscribe(&names(["b"])).await.unwrap();
    for name in ["never", "a", "b", "c"] {
        other.engine.signal(name, "v", LONG).await.unwrap();
    }
    assert_eq!(watcher.rung().await.0, "b");
    assert_eq!(watcher.rung().await.0, "c");
}

async fn a_look_finds_each_signal_in_its_place(server: Server) {
    let node = Node::connect(&server, LONG).await;
    let all: Vec<Arc<str>> = (0..1300).map(|number| format!("s{number}").into()).collect();
    for number in [0, 511, 512, 1299] {
        node.engine.signal(&all[number], &format!("v{number}"), LONG).await.unwrap();
    }
    let found = node.engine.look(&all).await.unwrap();
    assert_eq!(found.len(), all.len());
    for (number, value) in found.into_iter().enumerate() {
        let expected = [0, 511, 512, 1299].contains(&number).then(|| format!("v{number}"));
        assert_eq!(value, expected, "{number}");
    }
    assert_eq!(node.engine.look(&[]).await.unwrap(), Vec::<Option<String>>::new());
    node.engine.subscribe(&[]).await.unwrap();
    node.engine.unsubscribe(&[]).await.unwrap();
}

async fn a_signal_ends_after_its_time(server: Server) {
    let node = Node::connect(&server, SHORT).await;
    let signal = names(["s"]);
    let began = Instant::now();
    node.engine.signal("s", "v", SHORT).await.unwrap();
    let found = node.engine.look(&signal).await.unwrap();
    assert!(found == [Some("v".into())] || began.elapsed() >= SHORT);
    until(|| node.engine.look(&signal), |found| *found == Ok(vec![None])).await;
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    node.engine.signal("s", "again", SHORT).await.unwrap();
}

async fn a_signal_of_no_node_is_kept_shorter_than_others(server: Server) {
    let (mut watcher, node) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    let signals = names(["shared.x", "cancelled.n1.7.x"]);
    watcher.engine.subscribe(&signals).await.unwrap();
    node.engine.signal("cancelled.n1.7.x", "long", LONG).await.unwrap();
    assert_eq!(watcher.rung().await, ("cancelled.n1.7.x".into(), "long".into()));
    for value in ["first", "second"] {
        node.engine.signal("shared.x", value, SHORT).await.unwrap();
        assert_eq!(watcher.rung().await, ("shared.x".into(), value.into()));
        until(|| node.engine.look(&signals), |found| *found == Ok(vec![None, Some("long".into())])).await;
    }
}

async fn a_kept_value_rings_for_nobody_and_is_removed_when_it_is_forgotten(server: Server) {
    let (mut watcher, node) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    let records = crate::names::task_records("n1.7.x");
    let [ended, begun] = &records;
    watcher.engine.subscribe(&records).await.unwrap();
    watcher.engine.subscribe(&names(["last"])).await.unwrap();
    assert_eq!(node.engine.keep(begun, "begun", LONG).await, Ok(None));
    assert_eq!(node.engine.keep(ended, "first", LONG).await, Ok(None));
    assert_eq!(node.engine.keep(ended, "first", LONG).await, Ok(None), "the same again");
    assert_eq!(watcher.engine.keep(ended, "second", LONG).await, Ok(Some("first".into())));
    assert_eq!(node.engine.look(&records).await.unwrap(), [Some("first".into()), Some("begun".into())]);
    node.engine.forget(&records).await.unwrap();
    node.engine.forget(&records).await.unwrap();
    assert_eq!(watcher.engine.look(&records).await.unwrap(), [None, None]);
    assert_eq!(watcher.engine.keep(ended, "third", LONG).await, Ok(None), "nothing is left of it");
    assert_eq!(node.engine.look(&records).await.unwrap(), [Some("third".into()), None]);
    node.engine.signal("last", "v", LONG).await.unwrap();
    assert_eq!(watcher.rung().await.0, "last");
}

async fn a_list_has_its_items_until_they_are_struck(server: Server) {
    let (node, other) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    let list = async |list| {
        let mut items = other.engine.enlisted(list).await.unwrap();
        items.sort();
        items
    };
    assert_eq!(list("one").await, [""; 0]);
    for item in ["n1.7.a.x", "n1.7.b.x", "n1.7.a.x"] {
        node.engine.enlist("one", item, LONG).await.unwrap();
    }
    node.engine.enlist("two", "n1.7.c.x", LONG).await.unwrap();
    assert_eq!(list("one").await, ["n1.7.a.x", "n1.7.b.x"]);
    assert_eq!(list("two").await, ["n1.7.c.x"]);
    for _ in 0..2 {
        node.engine.strike("one", "n1.7.a.x").await.unwrap();
        assert_eq!(list("one").await, ["n1.7.b.x"], "nothing is left of it");
    }
    node.engine.enlist("one", "n1.7.a.x", LONG).await.unwrap();
    assert_eq!(list("one").await, ["n1.7.a.x", "n1.7.b.x"]);
}

async fn an_item_of_a_list_ends_after_its_time(server: Server) {
    let node = Node::connect(&server, SHORT).await;
    node.engine.enlist("one", "n1.7.a.x", SHORT).await.unwrap();
    until(|| node.engine.enlisted("one"), |items| items.as_ref().is_ok_and(Vec::is_empty)).await;
    node.engine.enlist("one", "n1.7.b.x", SHORT).await.unwrap();
}

async fn no_interleaving_of_signal_and_watch_loses_it(server: Server) {
    let (mut watcher, other) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    for number in 0..1000 {
        let signal = [Arc::from(format!("s{number}"))];
        let watching = async {
            watcher.engine.subscribe(&signal).await.unwrap();
            watcher.engine.look(&signal).await.unwrap().remove(0).is_some()
        };
        let (found, sent) = tokio::join!(watching, other.engine.signal(&signal[0], "v", LONG));
        sent.unwrap();
        // A doorbell before the subscription reached nobody. Then the look must have found the record.
        if !found {
            while watcher.rung().await.0 != *signal[0] {}
        }
    }
}

async fn of_ten_thousand_signals_none_is_lost(server: Server) {
    const COUNT: usize = 10_000;
    let (mut watcher, other) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    let all: Vec<Arc<str>> = (0..COUNT).map(|number| format!("s{number}").into()).collect();
    watcher.engine.subscribe(&all).await.unwrap();
    let began = Instant::now();
    let signal = |name: Arc<str>| {
        let engine = Arc::clone(&other.engine);
        async move { engine.signal(&name, "v", LONG).await }
    };
    let sending = stream::iter(all.iter().cloned()).map(signal).buffer_unordered(64).try_collect::<()>();
    let hearing = async {
        let mut heard = std::collections::HashSet::new();
        while heard.len() < COUNT {
            heard.insert(watcher.rung().await.0);
        }
    };
    let (sent, ()) = tokio::join!(sending, hearing);
    sent.unwrap();
    eprintln!("{COUNT} signals in {:?}", began.elapsed());
    let found = other.engine.look(&all).await.unwrap();
    assert_eq!(found.iter().flatten().count(), COUNT);
}

async fn a_name_is_held_by_one_node_until_it_leaves_or_its_time_ends(server: Server) {
    let node = Node::connect(&server, SHORT).await;
    let engine = &*node.engine;
    let began = Instant::now();
    assert_eq!(engine.beat("n1", "first", SHORT).await, Ok(Beat::Held));
    assert_eq!(engine.beat("n1", "first", SHORT).await, Ok(Beat::Held), "it renews its own");
    let second = engine.beat("n1", "second", SHORT).await.unwrap();
    assert!(second == Beat::Taken("first".into()) || began.elapsed() >= SHORT);
    until(|| engine.beat("n1", "second", SHORT), |beat| *beat == Ok(Beat::Held)).await;
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    engine.leave("n1", "first").await.unwrap();
    let third = engine.beat("n1", "third", SHORT).await.unwrap();
    assert_eq!(third, Beat::Taken("second".into()), "who does not hold it cannot remove it");
    engine.leave("n1", "second").await.unwrap();
    assert_eq!(engine.beat("n1", "third", SHORT).await, Ok(Beat::Held));
}

async fn members_are_those_that_live(server: Server) {
    let node = Node::connect(&server, SHORT).await;
    let engine = &*node.engine;
    let members = async || {
        let mut members = engine.members().await.unwrap();
        members.sort();
        members.into_iter().map(|(name, entry)| format!("{name}={entry}")).collect::<Vec<_>>()
    };
    assert!(members().await.is_empty());
    for (name, entry) in [("n1", "one"), ("n2", "two"), ("n3", "three")] {
        assert_eq!(engine.beat(name, entry, SHORT).await, Ok(Beat::Held));
    }
    engine.leave("n2", "two").await.unwrap();
    engine.leave("n4", "none").await.unwrap();
    assert_eq!(members().await, ["n1=one", "n3=three"]);
    let renewing = async || {
        engine.beat("n1", "one", SHORT).await.unwrap();
        members().await
    };
    until(renewing, |members| *members == ["n1=one"]).await;
    engine.beat("n2", "two again", SHORT).await.unwrap();
    assert!(members().await.contains(&"n2=two again".into()));
}

async fn jobs_are_taken_once_and_in_their_order(server: Server) {
    let (pusher, worker) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    for job in ["1", "2", "3"] {
        pusher.engine.push_job(job).await.unwrap();
    }
    for job in ["1", "2", "3"] {
        assert_eq!(worker.engine.take_job().await, Ok(Some(job.into())));
    }
    // It blocks no other command.
    let (none, signal) = tokio::join!(worker.engine.take_job(), async {
        let began = Instant::now();
        worker.engine.signal("s", "v", LONG).await.unwrap();
        began.elapsed()
    });
    assert_eq!(none, Ok(None));
    assert!(signal < Duration::from_secs(2), "{signal:?}");
    let (job, ()) = tokio::join!(worker.engine.take_job(), async {
        pusher.engine.push_job("4").await.unwrap();
    });
    assert_eq!(job, Ok(Some("4".into())));
}

async fn no_job_is_lost_with_a_take_that_is_dropped(server: Server) {
    let (pusher, worker) = (Node::connect(&server, LONG).await, Node::connect(&server, LONG).await);
    let mut taken = None;
    // The take is dropped when the server has most likely given it the job.
    let push = async { pusher.engine.push_job("1").await.unwrap() };
    let dropped = async {
        tokio::select! {
            biased;
            job = worker.engine.take_job() => taken = job.unwrap(),
            () = push => {}
        }
    };
    dropped.await;
    until(
        || async { if taken.is_some() { Ok(taken.clone()) } else { worker.engine.take_job().await } },
        |job| *job == Ok(Some("1".into())),
    )
    .await;
}

/// Each test once for each engine.
macro_rules! suite {
    ($($test:ident ($options:ident)),+ $(,)?) => {
        #[cfg(feature = "redis")]
        mod with_redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                use super::server::{Options, Program, Server};
                let Some(server) = Server::start(Program::Redis, Options::$options) else { return };
                super::$test(server).await;
            })+
        }
        #[cfg(feature = "nats")]
        mod with_nats {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                use super::server::{Options, Program, Server};
                let Some(server) = Server::start(Program::Nats, Options::$options) else { return };
                super::$test(server).await;
            })+
        }
    };
}

suite! {
    the_first_value_stays_and_each_signal_rings (Usual),
    only_subscribed_signals_ring (Usual),
    a_look_finds_each_signal_in_its_place (Usual),
    a_signal_ends_after_its_time (Usual),
    a_signal_of_no_node_is_kept_shorter_than_others (Usual),
    a_kept_value_rings_for_nobody_and_is_removed_when_it_is_forgotten (Usual),
    a_list_has_its_items_until_they_are_struck (Usual),
    an_item_of_a_list_ends_after_its_time (Usual),
    no_interleaving_of_signal_and_watch_loses_it (Usual),
    of_ten_thousand_signals_none_is_lost (Usual),
    a_restart_of_the_server_is_reported_and_subscriptions_work_again (Usual),
    a_server_that_kept_nothing_works_again (Usual),
    names_of_a_failed_subscribe_are_heard_after_the_return (Usual),
    commands_fail_while_the_server_is_gone (Usual),
    commands_fail_while_the_server_is_stopped (Usual),
    a_name_is_held_by_one_node_until_it_leaves_or_its_time_ends (Usual),
    members_are_those_that_live (Usual),
    jobs_are_taken_once_and_in_their_order (Usual),
    no_job_is_lost_with_a_take_that_is_dropped (Usual),
    errors_do_not_show_the_password (Login),
    a_full_server_is_no_silent_success (Full),
}

// Tests with a server that is away, restarted, stopped, full or behind a password.

/// The time limit of a command, and half a second.
const AWAY_LIMIT: Duration = Duration::from_millis(3500);

async fn a_restart_of_the_server_is_reported_and_subscriptions_work_again(mut server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    let all: Vec<Arc<str>> = (0..1300).map(|number| format!("s{number}").into()).collect();
    node.engine.subscribe(&all).await.unwrap();
    for _ in 0..2 {
        server.end();
        server.start_again();
        node.restored().await;
        let other = Node::connect(&server, LONG).await;
        for number in [0, 700, 1299] {
            other.engine.signal(&all[number], "v", LONG).await.unwrap();
            assert_eq!(node.rung().await.0, *all[number]);
        }
        node.engine.signal("another", "v", LONG).await.unwrap();
    }
}

async fn a_server_that_kept_nothing_works_again(mut server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    node.engine.subscribe(&names(["s"])).await.unwrap();
    node.engine.signal("s", "first", LONG).await.unwrap();
    server.end();
    server.forget();
    server.start_again();
    node.restored().await;
    assert_eq!(node.engine.look(&names(["s"])).await, Ok(vec![None]));
    node.engine.signal("s", "second", LONG).await.unwrap();
    assert_eq!(node.next().await, Heard::Rung("s".into(), "second".into()));
    assert_eq!(node.engine.look(&names(["s"])).await, Ok(vec![Some("second".into())]));
    assert_eq!(node.engine.beat("n1", "entry", LONG).await, Ok(Beat::Held));
    node.engine.push_job("job").await.unwrap();
    assert_eq!(node.engine.take_job().await, Ok(Some("job".into())));
}

async fn names_of_a_failed_subscribe_are_heard_after_the_return(mut server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    server.end();
    until(|| async { node.engine.subscribe(&names(["s"])).await }, Result::is_err).await;
    server.start_again();
    node.restored().await;
    node.engine.signal("s", "v", LONG).await.unwrap();
    assert_eq!(node.rung().await.0, "s");
}

/// Each command fails in time while the server is away, and says so.
async fn check_away(engine: &dyn Engine) {
    let signals = names(["s"]);
    let began = Instant::now();
    let (signal, look, beat, leave, members, push) = tokio::join!(
        engine.signal("s", "v", LONG),
        engine.look(&signals),
        engine.beat("n1", "entry", LONG),
        engine.leave("n1", "entry"),
        engine.members(),
        engine.push_job("late"),
    );
    let took = began.elapsed();
    let answers = [signal, look.map(drop), beat.map(drop), leave, members.map(drop), push];
    for answer in answers {
        assert!(matches!(answer, Err(EngineError::Away(_))), "{answer:?}");
    }
    assert!(took < AWAY_LIMIT, "{took:?}");
}

async fn commands_fail_while_the_server_is_gone(mut server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    node.engine.subscribe(&names(["kept"])).await.unwrap();
    server.end();
    check_away(&*node.engine).await;
    check_away(&*node.engine).await;
    until(|| async { node.engine.subscribe(&names(["new"])).await }, Result::is_err).await;
    let began = Instant::now();
    let subscribed = node.engine.subscribe(&names(["new"])).await;
    assert!(matches!(subscribed, Err(EngineError::Away(_))), "{subscribed:?}");
    let taken = node.engine.take_job().await;
    assert!(matches!(taken, Err(EngineError::Away(_))), "{taken:?}");
    assert!(began.elapsed() < AWAY_LIMIT, "{:?}", began.elapsed());
    server.start_again();
    node.restored().await;
    node.engine.signal("kept", "v", LONG).await.unwrap();
    assert_eq!(node.rung().await.0, "kept");
    assert_eq!(node.engine.beat("n1", "entry", LONG).await, Ok(Beat::Held));
}

async fn commands_fail_while_the_server_is_stopped(server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    node.engine.subscribe(&names(["kept"])).await.unwrap();
    server.stop();
    check_away(&*node.engine).await;
    check_away(&*node.engine).await;
    server.go_on();
    // The connection without answers to its pings is replaced.
    node.restored().await;
    node.engine.signal("kept", "v", LONG).await.unwrap();
    assert_eq!(node.rung().await.0, "kept");
    let found = node.engine.look(&names(["kept"])).await.unwrap();
    assert_eq!(found, [Some("v".into())]);
}

async fn errors_do_not_show_the_password(mut server: Server) {
    let login = "us%25er:p%40ss-hunter2@";
    assert!(Node::connect_as(&server, login, LONG).await.is_ok());
    for login in ["user:wrong-hunter2@", ""] {
        let refused = Node::connect_as(&server, login, LONG).await.err().unwrap();
        assert!(matches!(refused, EngineError::Refused(_)), "{refused:?}");
        assert!(!format!("{refused} {refused:?}").contains("hunter2"), "{refused}");
    }
    server.end();
    let away = Node::connect_as(&server, login, LONG).await.err().unwrap();
    assert!(matches!(away, EngineError::Away(_)), "{away:?}");
    let text = format!("{away} {away:?}");
    assert!(!text.contains("hunter2") && text.contains(&format!("127.0.0.1:{}", server.port)), "{text}");
    let (sender, _heard) = mpsc::unbounded_channel();
    let invalid = connect(server.program, "x://hunter2@[", Arc::new(Recorder(sender)), LONG).await;
    let invalid = invalid.err().unwrap();
    assert!(matches!(invalid, EngineError::Refused(_)), "{invalid:?}");
    assert!(!invalid.to_string().contains("hunter2"), "{invalid}");
}

/// Redis whose memory is full, NATS whose disk is.
async fn a_full_server_is_no_silent_success(server: Server) {
    let mut node = Node::connect(&server, LONG).await;
    let value = "v".repeat(64 * 1024);
    let mut refused = None;
    for number in 0..1000 {
        let name = format!("s{number}");
        if let Err(error) = node.engine.signal(&name, &value, LONG).await {
            refused = Some((name, error));
            break;
        }
    }
    let (name, error) = refused.expect("it never was full");
    assert!(matches!(error, EngineError::Refused(_)), "{error:?}");
    let names = [Arc::from(name)];
    assert_eq!(node.engine.look(&names).await, Ok(vec![None]), "it still answers");
    node.engine.subscribe(&names).await.unwrap();
    let again = node.engine.signal(&names[0], &value, LONG).await;
    assert!(matches!(again, Err(EngineError::Refused(_))), "{again:?}");
    node.engine.look(&names).await.unwrap();
    assert!(node.heard.try_recv().is_err(), "what was refused did not ring, and the connection was not lost");
}
