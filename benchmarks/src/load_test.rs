//! W11: many sessions on one server in another process. Each makes a request a second, and every tenth is cancelled.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rescind_core::dialect::Role;
use rescind_core::{Call, CallContext, HandlerError, Outcome, Peer, Router};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::clock;
use crate::cross_process::{Far, OurClient, Serves, Wire};
use crate::harness::Distribution;
use crate::report::{machine_line, shown};

/// Which request of each session is cancelled.
const CANCELLED: u64 = 10;
/// How long a request runs before its cancel.
const RUNS: Duration = Duration::from_millis(100);
/// An answer that takes longer is lost.
const LOST: Duration = Duration::from_secs(30);
/// How many sessions are opened at once.
const OPENING: usize = 64;
const EVERY: Duration = Duration::from_secs(1);

/// The load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The transport.
    pub wire: Wire,
    /// The number of sessions.
    pub sessions: u64,
    /// How long they make requests.
    pub seconds: u64,
}

/// What happened in one second.
#[derive(Clone, Debug)]
pub struct Second {
    /// The 99th percentile of an echo in nanoseconds. 0: there was none.
    pub p99: u64,
    /// The share of one core that the server used, in percent.
    pub server: f64,
    /// The same of this process, which is all clients.
    pub clients: f64,
    /// The server's resident memory in bytes.
    pub resident: u64,
}

/// The results of a load test.
#[derive(Clone, Debug)]
pub struct Held {
    /// The load.
    pub load: Load,
    /// From the start of a call to its answer.
    pub echo: Option<Distribution>,
    /// By how much later than planned the clients began their calls. More than a millisecond, the resolution of the timer: the
    /// clients did not keep up.
    pub begun_late: Option<Distribution>,
    /// Echoes that were begun, those that were answered with their own params, and those that failed with an error.
    pub echoes: (u64, u64, u64),
    /// Requests that were cancelled, those whose caller returned because of it, and the handlers that were signalled. A request
    /// that is cancelled before its handler has begun has none.
    pub cancels: (u64, u64, u64),
    /// Handlers that still ran at the end.
    pub running: u64,
    /// The server's resident memory before the first session and with all of them idle, in bytes.
    pub resident: (u64, u64),
    /// Each second.
    pub seconds: Vec<Second>,
}

impl Held {
    /// Whether every echo had its answer, and no cancelled request still runs.
    #[must_use]
    pub const fn lost_nothing(&self) -> bool {
        self.lost() == 0
    }

    /// Echoes without their answer, cancelled calls that did not return, and handlers that still ran at the end.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        let (cancelled, returned, signalled) = self.cancels;
        let echoes = self.echoes.0.abs_diff(self.echoes.1);
        echoes + cancelled.abs_diff(returned) + signalled.saturating_sub(cancelled) + self.running
    }

    /// The figures as JSON. Times are in nanoseconds, memory in bytes.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let times = |times: &Option<Distribution>| {
            let Distribution { count, p50, p99, p999, max, .. } = times.as_ref()?;
            Some(json!({ "count": count, "p50": p50, "p99": p99, "p99.9": p999, "max": max }))
        };
        let Load { wire, sessions, seconds } = self.load;
        json!({
            "machine": machine_line(), "wire": wire.name(), "sessions": sessions, "seconds": seconds,
            "echo": times(&self.echo), "begun_late": times(&self.begun_late), "lost": self.lost(),
            "server_resident_empty": self.resident.0, "server_resident_idle": self.resident.1,
            "server_resident_most": self.seconds.iter().map(|second| second.resident).max(),
        })
    }
}

/// The counts and times of all sessions.
#[derive(Debug, Default)]
struct Seen {
    took: Vec<u64>,
    began_late: Vec<u64>,
    begun: u64,
    answered: u64,
    failed: u64,
    cancelled: u64,
    returned: u64,
}

/// Plays the load, on one thread.
///
/// # Panics
/// If the server or a session does not start.
pub async fn play(load: Load) -> Held {
    LocalSet::new().run_until(play_in_set(load)).await
}

async fn play_in_set(load: Load) -> Held {
    let mut far = Far::start_on_other_core(load.wire, Serves::LoadTest).await;
    let empty = far.resident();
    let peers = open(load, &mut far).await;
    let full = far.resident();
    let seen = Rc::new(RefCell::new(Seen::default()));
    let begin = Instant::now() + EVERY;
    let sessions: Vec<_> = (0..)
        .zip(&peers)
        .map(|(number, peer)| {
            tokio::task::spawn_local(session(load, number, peer.clone(), begin, Rc::clone(&seen)))
        })
        .collect();
    let seconds = watch(load, &far, begin, &seen).await;
    for session in sessions {
        session.await.expect("a session does not panic");
    }
    let (signalled, running) = settled(&peers[0], load.wire).await;
    let seen = seen.take();
    Held {
        load,
        echo: Distribution::new(seen.took),
        begun_late: Distribution::new(seen.began_late),
        echoes: (seen.begun, seen.answered, seen.failed),
        cancels: (seen.cancelled, seen.returned, signalled),
        running,
        resident: (empty, full),
        seconds,
    }
}

/// Opens the sessions, some at a time.
async fn open(load: Load, far: &mut Far) -> Vec<Peer> {
    let mut peers = Vec::new();
    while (peers.len() as u64) < load.sessions {
        let more = OPENING.min((load.sessions - peers.len() as u64) as usize);
        let opening: Vec<_> = (0..more)
            .map(|_| {
                let endpoint = far.endpoint.clone();
                tokio::task::spawn_local(async move {
                    let peer = Peer::builder(load.wire.dialect()).serve(Router::new()).role(Role::Client);
                    let peer = OurClient::connect(load.wire, peer, &endpoint).await;
                    OurClient::shake_hands(load.wire, &peer).await;
                    peer
                })
            })
            .collect();
        for opening in opening {
            peers.push(opening.await.expect("a session opens"));
        }
    }
    peers
}

/// The requests of one session.
async fn session(load: Load, number: u64, peer: Peer, begin: Instant, seen: Rc<RefCell<Seen>>) {
    // Sessions begin at different times of a second.
    let phase = EVERY.mul_f64(number as f64 / load.sessions as f64);
    let params = load.wire.params(64);
    for second in 0..load.seconds {
        let due = begin + phase + EVERY * second as u32;
        sleep_until(due).await;
        seen.borrow_mut().began_late.push(due.elapsed().as_nanos() as u64);
        if (number + second).is_multiple_of(CANCELLED) {
            cancel(&peer, &params, &seen).await;
        } else {
            echo(&peer, &params, &seen).await;
        }
    }
}

async fn echo(peer: &Peer, params: &RawValue, seen: &RefCell<Seen>) {
    seen.borrow_mut().begun += 1;
    let begin = clock();
    let answer = timeout(LOST, peer.call::<_, Box<RawValue>>("echo", params)).await;
    let took = clock() - begin;
    let mut seen = seen.borrow_mut();
    let Ok(Ok(answer)) = answer else {
        seen.failed += u64::from(answer.is_ok());
        return;
    };
    seen.took.push(took);
    seen.answered += u64::from(answer.get() == params.get());
}

async fn cancel(peer: &Peer, params: &RawValue, seen: &RefCell<Seen>) {
    seen.borrow_mut().cancelled += 1;
    let call: Result<Call<Value>, _> = peer.call("wait", params).start();
    let Ok(call) = call else { return };
    sleep(RUNS).await;
    call.canceller().cancel("");
    let ended = timeout(LOST, call.outcome()).await;
    let is_cancelled = matches!(ended, Ok(Outcome::CompletedAfterCancel(_) | Outcome::Cancelled(_)));
    seen.borrow_mut().returned += u64::from(is_cancelled);
}

/// Looks at both processes each second.
async fn watch(load: Load, far: &Far, begin: Instant, seen: &RefCell<Seen>) -> Vec<Second> {
    let own = std::process::id();
    let mut seconds = Vec::new();
    sleep_until(begin).await;
    let (mut server, mut clients, mut at) = (far.processor_time(), processor_time(own), Instant::now());
    let mut from = 0;
    for second in 1..=load.seconds {
        sleep_until(begin + EVERY * second as u32).await;
        let passed = at.elapsed().as_secs_f64();
        let (server_now, clients_now) = (far.processor_time(), processor_time(own));
        let took = seen.borrow().took.get(from..).unwrap_or_default().to_vec();
        from += took.len();
        seconds.push(Second {
            p99: Distribution::new(took).and_then(|took| took.p99).unwrap_or_default(),
            server: (server_now - server) / passed * 100.0,
            clients: (clients_now - clients) / passed * 100.0,
            resident: far.resident(),
        });
        (server, clients, at) = (server_now, clients_now, Instant::now());
    }
    seconds
}

/// Seconds of processor time that a process has used.
///
/// # Panics
/// If there is no `/proc`.
pub(crate) fn processor_time(process: u32) -> f64 {
    /// Linux has this many ticks a second on every architecture of today.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    // The name, in parentheses, may have spaces.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / TICKS
}

/// Waits until no handler runs on the server. Returns how many were cancelled, and how many run.
async fn settled(peer: &Peer, wire: Wire) -> (u64, u64) {
    let params = wire.params(1);
    let said = timeout(LOST, peer.call::<_, Value>("settled", &params)).await;
    let said = said.ok().and_then(Result::ok).unwrap_or_default();
    let count = |name: &str| said[name].as_u64().unwrap_or_default();
    (count("cancelled"), count("running"))
}

// What the server of a load test serves.

/// How long `settled` waits for the handlers.
const SETTLING: Duration = Duration::from_secs(20);

/// The handlers that run, and those that were cancelled.
#[derive(Clone, Copy, Debug, Default)]
struct Handlers {
    running: u64,
    cancelled: u64,
}

pub(crate) fn router() -> Router {
    let handlers = Arc::new(watch::Sender::new(Handlers::default()));
    let waiting = Arc::clone(&handlers);
    Router::new()
        .method("initialize", |_: CallContext, asked: Value| async move {
            let version = asked["protocolVersion"].clone();
            Ok(json!({
                "protocolVersion": version, "capabilities": {}, "agentCapabilities": {},
                "serverInfo": { "name": "benchmark", "version": "1" },
            }))
        })
        .method("echo", |_: CallContext, params: Box<RawValue>| async move { Ok(params) })
        .method("wait", move |context: CallContext, _: Value| {
            let handlers = Arc::clone(&waiting);
            async move {
                handlers.send_modify(|handlers| handlers.running += 1);
                context.cancelled().await;
                handlers.send_modify(|handlers| {
                    handlers.running -= 1;
                    handlers.cancelled += 1;
                });
                Ok::<_, HandlerError>(json!({}))
            }
        })
        .method("settled", move |_: CallContext, _: Value| {
            let mut handlers = handlers.subscribe();
            async move {
                let settled = handlers.wait_for(|now| now.running == 0);
                let _ = timeout(SETTLING, settled).await;
                let Handlers { running, cancelled } = *handlers.borrow();
                Ok(json!({ "running": running, "cancelled": cancelled }))
            }
        })
}

// The seconds of a load test as an SVG image: three charts, one below the other.

const WIDTH: f64 = 960.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 940.0;
const HEIGHT: f64 = 200.0;
/// From a chart's title to the next one's.
const STEP: f64 = HEIGHT + 70.0;

/// One line of a chart.
struct Line {
    colour: &'static str,
    name: &'static str,
    value: fn(&Second) -> f64,
}

/// The charts: the time of an echo, the processors and the memory.
#[must_use]
pub fn chart(held: &Held) -> String {
    let p99 =
        Line { colour: "#8250df", name: "99th percentile of an echo", value: |second| second.p99 as f64 };
    let server = Line { colour: "#1a7f37", name: "server, % of a core", value: |second| second.server };
    let clients =
        Line { colour: "#9a6700", name: "all clients, % of a core", value: |second| second.clients };
    let memory = Line {
        colour: "#0969da",
        name: "the server's resident memory",
        value: |second| second.resident as f64,
    };
    let charts: [(&str, &[Line]); 3] = [("ns", &[p99]), ("%", &[server, clients]), ("B", &[memory])];
    let height = STEP * charts.len() as f64 + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (number, (unit, lines)) in charts.into_iter().enumerate() {
        one(&mut svg, STEP * number as f64 + 30.0, unit, lines, held);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A chart whose title is at this height.
fn one(svg: &mut String, top: f64, unit: &str, lines: &[Line], held: &Held) {
    let (high, low) = (top + 15.0, top + 15.0 + HEIGHT);
    let most = held
        .seconds
        .iter()
        .flat_map(|second| lines.iter().map(|line| (line.value)(second)))
        .fold(1.0, f64::max)
        * 1.1;
    let mut left = LEFT;
    for line in lines {
        let _ = writeln!(svg, "<text x=\"{left}\" y=\"{top}\" fill=\"{}\">{}</text>", line.colour, line.name);
        left += 260.0;
    }
    for share in [0.0, 0.5, 1.0] {
        let (y, value) = (low - share * HEIGHT, shown(most * share, unit));
        let _ =
            writeln!(svg, "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#d0d7de\"/>");
        let _ =
            writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{value}</text>", LEFT - 8.0, y + 4.0);
    }
    let last = held.seconds.len().saturating_sub(1).max(1) as f64;
    for line in lines {
        let point = |(second, what): (usize, &Second)| {
            let x = LEFT + (RIGHT - LEFT) * second as f64 / last;
            format!("{x:.1},{:.1}", low - (line.value)(what) / most * HEIGHT)
        };
        let points: Vec<_> = held.seconds.iter().enumerate().map(point).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            points.join(" "),
            line.colour
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\">{} s</text>",
        low + 18.0,
        held.seconds.len()
    );
    let _ =
        writeln!(svg, "<line x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{high}\" y2=\"{low}\" stroke=\"#57606a\"/>");
}
