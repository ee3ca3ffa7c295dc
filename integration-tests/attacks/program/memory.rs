//! How much memory one client can make the process use: its peak, and what is left 10 s after the client has gone.

mod bodies;
mod requests;
mod unread;

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rescind::Call;
use serde_json::Value;

use crate::honest_client::Honest;
use crate::play;
use crate::target::{Target, Wire};

/// The highest allowed memory of the process, in MiB.
const PEAK: u64 = 384;
/// The highest allowed memory after the attacker has left, in MiB.
const AFTER: u64 = 64;
const SOON: Duration = Duration::from_secs(10);

/// 15 MiB: a body or frame within the limit for frames.
const LARGE: usize = 15 << 20;

type Attack = fn(Wire) -> Trial;

const STREAMS: [Wire; 3] = [Wire::Stdio, Wire::NamedPipe, Wire::WebSocket];
const HTTP: [Wire; 3] = [Wire::Streamable, Wire::Stateless, Wire::Acp];

pub(crate) fn trials() -> Vec<Trial> {
    if cfg!(debug_assertions) {
        return Vec::new();
    }
    let rows: [(&[Wire], Attack); 11] = [
        (&STREAMS, |wire| row("answers_that_are_never_read", wire, unread::over_a_stream)),
        (&HTTP, |wire| row("answers_that_are_never_read", wire, unread::over_http)),
        (&STREAMS, |wire| row("unfinished_bodies", wire, bodies::unfinished_frames)),
        (&HTTP, |wire| row("unfinished_bodies", wire, bodies::unfinished)),
        (&[Wire::Streamable, Wire::Acp], |wire| {
            row("a_body_without_a_session", wire, bodies::without_a_session)
        }),
        (&Wire::ALL, |wire| row("large_queue", wire, requests::large_queue)),
        (&[Wire::Acp], |wire| row("long_session_names", wire, bodies::long_session_names)),
        // ACP has no progress tokens: over the streams the attack uses MCP.
        (&STREAMS, |wire| row_of("long_tokens", wire, "mcp", requests::long_tokens)),
        (&[Wire::Streamable, Wire::Stateless], |wire| row("long_tokens", wire, requests::long_tokens)),
        (&Wire::ALL, |wire| row("large_values", wire, requests::large_values)),
        (&Wire::ALL, |wire| row("large_arrays", wire, requests::large_arrays)),
    ];
    rows.iter().flat_map(|(wires, attack)| wires.iter().map(|wire| attack(*wire))).collect()
}

fn row<A>(attack: &'static str, wire: Wire, play_it: A) -> Trial
where
    A: AsyncFn(&mut Field) + Send + 'static,
{
    row_of(attack, wire, wire.dialect(), play_it)
}

fn row_of<A>(attack: &'static str, wire: Wire, dialect: &'static str, play_it: A) -> Trial
where
    A: AsyncFn(&mut Field) + Send + 'static,
{
    Trial::test(format!("memory::{attack}::{}", wire.name()), move || {
        play(async {
            let mut field = Field::open(wire, dialect).await;
            play_it(&mut field).await;
            field.close(attack).await;
        })
    })
}

/// The fixture, and its honest client.
struct Field {
    target: Target,
    /// `None` over stdio, which has one client.
    honest: Option<Honest>,
    /// A request of the honest client that has run since before the attack.
    running: Option<Call<Value>>,
    was_served: bool,
    /// The connections of the attacker.
    held: Vec<Box<dyn std::any::Any>>,
}

impl Field {
    async fn open(wire: Wire, dialect: &str) -> Self {
        let target = Target::speaking(wire, dialect, &[]);
        let honest = if wire == Wire::Stdio { None } else { Some(Honest::connect(&target).await) };
        let running = match &honest {
            Some(honest) => Some(honest.begin().await),
            None => None,
        };
        Self { target, honest, running, was_served: false, held: Vec::new() }
    }

    /// Keeps a connection of the attacker open until it leaves.
    fn hold(&mut self, open: impl std::any::Any) {
        self.held.push(Box::new(open));
    }

    /// During the attack the honest client cancels the request that it started before.
    async fn others_can_cancel(&mut self) {
        self.was_served = true;
        if let (Some(honest), Some(call)) = (&self.honest, self.running.take()) {
            honest.cancel(call).await;
        }
    }

    /// The same, and it can start new requests.
    async fn others_are_served(&mut self) {
        self.others_can_cancel().await;
        if let Some(honest) = &self.honest {
            honest.is_served().await;
        }
    }

    /// The attacker leaves. Over stdio the process ends with it and then has no memory.
    async fn close(mut self, attack: &str) {
        assert!(self.was_served, "a row asks whether others are served");
        let peak = self.target.peak();
        self.held.clear();
        let wire = self.target.wire;
        let since = Instant::now();
        let mut after = self.target.resident();
        while after >= AFTER && since.elapsed() < SOON {
            tokio::time::sleep(Duration::from_millis(50)).await;
            after = self.target.resident();
        }
        let took = since.elapsed().as_secs_f32();
        let peak = peak.max(self.target.peak());
        println!("{attack} | {} | peak {peak} MiB | after {after} MiB | {took:.1} s later", wire.name());
        assert!(peak <= PEAK, "the peak is {peak} MiB");
        assert!(after < AFTER, "{SOON:?} later it holds {after} MiB");
        if let Some(honest) = &self.honest {
            honest.is_served().await;
            honest.nothing_is_left().await;
        }
        self.target.end();
    }
}
