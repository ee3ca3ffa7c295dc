//! Measured times. A release build holds the budgets; a debug build prints the same figures.

use std::time::{Duration, Instant};

use rescind::{Cause, CauseKind};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::bulk::{Heard, Members};
use super::client::{Binding, ask_on, connect, message};
use super::nodes::{Backend, EngineServer, Replicas, Setup};
use super::tasks;
use super::trial::tell;

/// How often each is measured.
const TIMES: usize = 500;
/// The most a cancel by the bus takes to the signal on another node, in the median.
const CANCEL: Duration = Duration::from_millis(1);
/// The most that a forwarded echo takes, in direct ones.
const FORWARDED: f64 = 2.5;

/// The median and the 99th percentile.
fn median_and_p99(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn micros(time: Duration) -> String {
    format!("{} us", time.as_micros())
}

/// From the call of `cancel` on one member to the signal on another, beside the engine's own time from a publish to its
/// subscriber.
pub(crate) async fn a_cancel_reaches_another_member_within_its_budget(backend: Backend) {
    let mut members = Members::start(backend).await;
    let mut times = Vec::new();
    let mut raw = Vec::new();
    let mut bare = match &members.engine {
        Some(engine) => Some(Bare::connect(backend, engine).await),
        None => None,
    };
    let cause = Cause::new(CauseKind::Operator);
    for _ in 0..TIMES {
        let call = members.all[0].client.call::<_, Value>("work", &json!({ "n": 0 })).start().unwrap();
        let heard = in_time("it begins", members.all[0].heard.recv()).await.unwrap();
        let Heard::Began(_, key) = heard else { panic!("{heard:?}") };
        // The other member knows nothing of the key before.
        let bus = members.bus(0, 1);
        let begun = Instant::now();
        bus.cancel(&key, &cause).await.unwrap();
        let heard = in_time("its signal", members.all[0].heard.recv()).await.unwrap();
        let Heard::Signalled(_, _, at) = heard else { panic!("{heard:?}") };
        times.push(at.saturating_duration_since(begun));
        drop(call.outcome().await);
        if let Some(bare) = &mut bare {
            raw.push(in_time("a message", bare.publish()).await);
        }
    }
    let (median, p99) = median_and_p99(times);
    let beside = if raw.is_empty() {
        String::new()
    } else {
        let (median, p99) = median_and_p99(raw);
        format!(
            "; publish to subscriber of the engine itself: median {}, p99 {}",
            micros(median),
            micros(p99)
        )
    };
    tell(&format!(
        "measured: {}: cancel to signal on another node: median {}, p99 {}{beside}",
        backend.name(),
        micros(median),
        micros(p99)
    ));
    assert!(cfg!(debug_assertions) || median < CANCEL, "{median:?}");
}

/// A subscriber and a publisher of the engine, in its own protocol.
struct Bare {
    backend: Backend,
    subscriber: BufReader<TcpStream>,
    publisher: TcpStream,
}

impl Bare {
    async fn connect(backend: Backend, engine: &EngineServer) -> Self {
        let open = async || {
            let stream = TcpStream::connect(("127.0.0.1", engine.port)).await.unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        let (mut subscriber, mut publisher) = (BufReader::new(open().await), open().await);
        let subscribe = match backend {
            Backend::List | Backend::Redis => "SUBSCRIBE bare\r\n",
            Backend::Nats => "CONNECT {\"verbose\":false}\r\nSUB bare 1\r\nPING\r\n",
        };
        subscriber.get_mut().write_all(subscribe.as_bytes()).await.unwrap();
        let confirmed = if backend == Backend::Nats { "PONG" } else { ":1" };
        line_with(&mut subscriber, confirmed).await;
        if backend == Backend::Nats {
            publisher.write_all(b"CONNECT {\"verbose\":false}\r\n").await.unwrap();
        }
        Self { backend, subscriber, publisher }
    }

    /// The time from a publish to its arrival.
    async fn publish(&mut self) -> Duration {
        let publish = match self.backend {
            Backend::List | Backend::Redis => "PUBLISH bare payload\r\n",
            Backend::Nats => "PUB bare 7\r\npayload\r\n",
        };
        let begun = Instant::now();
        self.publisher.write_all(publish.as_bytes()).await.unwrap();
        line_with(&mut self.subscriber, "payload").await;
        let took = begun.elapsed();
        if self.backend == Backend::Redis {
            let mut answer = [0; 4];
            self.publisher.read_exact(&mut answer).await.unwrap();
        }
        took
    }
}

async fn line_with(stream: &mut BufReader<TcpStream>, wanted: &str) {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        assert!(in_time(wanted, stream.read_line(&mut line)).await.unwrap() > 0, "it ended before {wanted}");
    }
}

/// An echo through another node beside one at the owner, in turns, on open connections.
pub(crate) async fn a_forwarded_echo_is_within_its_budget(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let mut streams = [Some(connect(all[0]).await.unwrap()), Some(connect(all[1]).await.unwrap())];
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..TIMES + 50 {
        for (index, stream) in streams.iter_mut().enumerate() {
            let id = u64::try_from(2 * number + index).unwrap();
            let body = message(Some(id), "test/echo", &json!({ "value": id }));
            let begun = Instant::now();
            let answer = in_time("an echo", session.ask_on(stream, all[index], &body)).await;
            let took = begun.elapsed();
            // A slow one is an event.
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.contains(&format!("\"value\":{id}}}")), "{answer}");
            // The first ones open connections.
            if number >= 50 {
                times[index].push(took);
            }
        }
    }
    let [direct, forwarded] = times.map(median_and_p99);
    let ratio = forwarded.0.as_secs_f64() / direct.0.as_secs_f64();
    tell(&format!(
        "measured: {}: echo: direct median {}, p99 {}; forwarded median {}, p99 {}; ratio {ratio:.2}",
        backend.name(),
        micros(direct.0),
        micros(direct.1),
        micros(forwarded.0),
        micros(forwarded.1),
    ));
    assert!(cfg!(debug_assertions) || ratio <= FORWARDED, "{ratio}");
}

/// `tasks/cancel` at another node than the task's beside an echo at the task's own, in turns, on open connections. The ratio has no
/// limit here: the records of the tasks are written meanwhile. Instructions are not counted, because nodes reach each other by TCP
/// alone, and on sockets they do not repeat.
pub(crate) async fn a_cancel_of_a_task_at_another_node_stops_it_and_is_measured(backend: Backend) {
    let replicas =
        Replicas::start_with(backend, Setup { binding: Binding::Stateless, ..Setup::default() }).await;
    let all = replicas.addresses();
    let mut streams = [Some(connect(all[0]).await.unwrap()), Some(connect(all[1]).await.unwrap())];
    let mut ask = async |at: usize, method: &str, params: &Value| {
        let (body, name) = tasks::request(method, params);
        let begun = Instant::now();
        let headers = tasks::headers(method, &name);
        let text = in_time(method, ask_on(&mut streams[at], all[at], &headers, &body)).await;
        let took = begun.elapsed();
        let text = String::from_utf8(text).unwrap();
        // An event, if it took a while.
        let message =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or(&text);
        let answer: Value = serde_json::from_str(message).unwrap_or_else(|error| panic!("{error}: {text:?}"));
        assert!(answer["error"].is_null(), "{answer}");
        (took, answer["result"].clone())
    };
    let call = |tool: &str, arguments: Value| json!({ "name": tool, "arguments": arguments });
    let waits = call("wait", json!({ "as_task": true }));
    tasks::know_each_other(&replicas).await;
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..TIMES + 50 {
        let (direct, _) = ask(0, "tools/call", &call("echo", json!({ "value": number }))).await;
        let (_, begun) = ask(0, "tools/call", &waits).await;
        let task = json!({ "taskId": begun["taskId"] });
        let (forwarded, _) = ask(1, "tasks/cancel", &task).await;
        assert_eq!(ask(0, "tasks/get", &task).await.1["status"], "cancelled", "I17");
        // The first ones open connections.
        if number >= 50 {
            times[0].push(direct);
            times[1].push(forwarded);
        }
    }
    let [direct, forwarded] = times.map(median_and_p99);
    let ratio = forwarded.0.as_secs_f64() / direct.0.as_secs_f64();
    tell(&format!(
        "measured: {}: echo: median {}, p99 {}; cancel of a task at another node: median {}, p99 {}; ratio {ratio:.2}",
        backend.name(),
        micros(direct.0),
        micros(direct.1),
        micros(forwarded.0),
        micros(forwarded.1),
    ));
}
