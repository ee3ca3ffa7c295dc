//! The events of a run, drawn from its seed before anything runs. The two sides, and the source of randomness.

use std::fmt;
use std::time::Duration;

use rescind_core::Limits;
use rescind_core::dialect::TaskForm;
use serde::{Deserialize, Serialize};

use super::Wire;

/// Calls and the behaviour of their handlers, disturbances, and the end. Times are in milliseconds of the paused
/// clock.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) limits: PerSide<Limits>,
    pub(super) calls: Vec<Planned>,
    /// The tasks of the client.
    pub(super) tasks: Vec<PlannedTask>,
    /// How long they are kept.
    pub(super) task_ttl: u64,
    /// The behaviour of the handshake's caller.
    pub(super) opening: Caller,
    pub(super) disturbances: Vec<(u64, Disturbance)>,
    /// The time and the kind of the end.
    pub(super) end: (u64, Ending),
    pub(super) weather: NetworkConditions,
}

/// A call of one side.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) at: u64,
    pub(super) side: Side,
    pub(super) job: Job,
}

/// The work of a handler, as it is written in the params.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// Identifies the call and everything that belongs to it, on both sides.
    pub(super) nonce: u64,
    pub(super) work: Work,
    /// The duration of the work, if the work has one.
    pub(super) ms: u64,
    /// The behaviour of its caller.
    pub(super) caller: Caller,
    /// The work that it requests from its caller.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) child: Option<Box<Job>>,
    /// When it becomes a task, if it does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) becomes_task: Option<u64>,
}

/// A task, and the behaviour of its client.
#[derive(Clone, Debug)]
pub(super) struct PlannedTask {
    pub(super) at: u64,
    pub(super) job: Job,
    /// When the client drops the call that starts it, if it does.
    pub(super) dropped_after: Option<u64>,
    /// When the client sends the cancel message of that call, counted from its answer, if it does.
    pub(super) late_cancel: Option<u64>,
    /// The times between its questions.
    pub(super) polls: Vec<u64>,
    /// The times between its cancels.
    pub(super) cancels: Vec<u64>,
    pub(super) waiting: Waiting,
}

/// How a client waits for the end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    No,
    /// It asks again and again.
    Polls,
    /// By a request that is answered at the end (2025-11-25).
    InResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    /// Answers at once.
    Quick,
    /// Answers after a time, or stops at its cancel.
    Sleep,
    /// Stops at its cancel and not before.
    Wait,
    /// Answers with a value at its cancel and not before.
    Partial,
    /// Answers after a time and ignores its cancel.
    Ignore,
    /// Never ends.
    Deaf,
    /// Fails after a time, even if it is cancelled.
    Fail,
    /// Panics after a time.
    Panic,
    /// Calls back, and answers when that call has ended.
    Nested,
    /// Calls back and answers without waiting for that call.
    Abandons,
    /// Sends notifications, even if it is cancelled.
    Progress,
    /// Answers, and continues to send notifications.
    Straggler,
    /// Answers after a critical section.
    Shield,
    /// Is cancelled by its own side.
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Caller {
    Waits,
    /// Cancels after this time.
    Cancels(u64),
    /// Cancels, and cancels again after the same time.
    CancelsTwice(u64),
    /// Cancels and does not wait for the peer.
    Leaves(u64),
    /// Drops the call.
    Drops(u64),
    /// Sets this deadline.
    Deadline(u64),
    /// Cancels with a token.
    Token(u64),
    /// Uses a token that is cancelled before the call starts.
    Never,
    /// Detaches the call and does not wait for it.
    Detaches,
}

impl Caller {
    /// When it cancels, counted from the start of the call.
    pub(super) const fn cancels_after(self) -> Option<u64> {
        match self {
            Self::Cancels(ms)
            | Self::CancelsTwice(ms)
            | Self::Leaves(ms)
            | Self::Deadline(ms)
            | Self::Token(ms) => Some(ms),
            Self::Never => Some(0),
            Self::Waits | Self::Drops(_) | Self::Detaches => None,
        }
    }
}

/// A disturbance of the transport during the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Nothing from this side arrives for this time.
    Stall(Side, u64),
    /// The connection is cut.
    Cut,
    /// The end of input for the other side. The rest of what this side writes is lost. With WebSocket and HTTP it
    /// affects the stream below, on each connection that exists at that time.
    HalfClose(Side),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// One side shuts down, with this drain.
    Shutdown(Side, u64),
    /// Both sides shut down.
    BothShutDown(u64, u64),
    /// The connection is cut.
    Cut,
}

/// How the network handles bytes.
#[derive(Clone, Debug)]
pub(super) struct NetworkConditions {
    pub(super) seed: Rng,
    /// The most bytes accepted and delivered at once.
    pub(super) piece: usize,
    /// The most bytes on their way in one direction.
    pub(super) room: usize,
    /// The longest delay of a piece.
    pub(super) delay: u64,
    /// A connection is cut after this many bytes from the client, or from the server.
    pub(super) cut_at: PerSide<Option<usize>>,
    /// The percentage of connections, if there are several, that are cut at a separate place.
    pub(super) cut_some: u64,
    /// The percentage of connections whose bytes are sent a second time, on another connection.
    pub(super) repeat_some: u64,
}

/// Longer than any limit for a sign of life.
const FOR_GOOD: u64 = 600_000;

impl Plan {
    /// Whether a transport with time limits may close something.
    pub(super) fn is_slow(&self) -> bool {
        let stalls = self.disturbances.iter().any(|(_, it)| matches!(it, Disturbance::Stall(_, 5_000..)));
        stalls || (self.weather.room < 400 && self.weather.delay > 1)
    }

    /// An upper bound, in milliseconds, of the time from the writing of a frame to its last consequence, if nothing
    /// is cut.
    pub(super) fn slowest(&self, wire: Wire) -> u64 {
        let stalls = self.disturbances.iter().map(|(_, it)| match it {
            Disturbance::Stall(_, ms) => *ms,
            Disturbance::Cut | Disturbance::HalfClose(_) => 0,
        });
        // All bytes of a run, in portions of the size that the network accepts.
        let turns = 40_000 / self.weather.room as u64 + 2;
        // A cancel waits for its request's response, and a post for the posts before it.
        let own = if wire.has_connections() { 3_000 } else { 100 };
        own + stalls.sum::<u64>() + turns * self.weather.delay
    }

    pub(super) fn draw(seed: u64, wire: Wire, serves_both: bool, tasks: Option<TaskForm>) -> Self {
        let mut rng = Rng::new(seed);
        let mut next_nonce = 1;
        let spread = rng.pick(5, &[0, 40, 400]);
        let weather = weather(&mut rng, wire);
        let count = rng.length(3, 14);
        // A handler that runs twice would make its calls twice, with the same nonces.
        let depth = if serves_both && weather.repeat_some == 0 { 2 } else { 0 };
        let calls = (0..count)
            .map(|_| {
                let side = if serves_both && rng.percent(40) { Side::Server } else { Side::Client };
                let job = job(&mut rng, &mut next_nonce, depth);
                Planned { at: rng.below(spread + 1), side, job }
            })
            .collect();
        let opening = if rng.percent(5) { Caller::Cancels(rng.below(3)) } else { Caller::Waits };
        let mut disturbances = disturbances(&mut rng, spread);
        if wire.pings() && rng.percent(5) {
            let side = rng.pick(Side::Client, &[Side::Server]);
            disturbances.push((rng.below(spread + 5), Disturbance::Stall(side, FOR_GOOD)));
            disturbances.sort_by_key(|(at, _)| *at);
        }
        let mut after = spread + rng.pick(20, &[0, 200, 3_000, 12_000]);
        if wire.has_connections() && rng.percent(30) {
            // What is checked at the end must then be at least as old as a post may take.
            after += 12_000;
        }
        let drain = rng.pick(0, &[50, 1_000, 10_000]);
        let ending = match rng.below(10) {
            0..=3 => Ending::Shutdown(Side::Client, drain),
            4..=6 => Ending::Shutdown(Side::Server, drain),
            7 => Ending::BothShutDown(drain, rng.pick(0, &[50, 1_000])),
            _ => Ending::Cut,
        };
        let limits = PerSide { client: limits(&mut rng), server: limits(&mut rng) };
        // Last, so that the other draws do not depend on them.
        let task_ttl = rng.pick(30_000, &[1_000, 5_000, 350_000]);
        let count = if tasks.is_some() { rng.length(0, 2) } else { 0 };
        let tasks = (0..count).map(|_| task(&mut rng, &mut next_nonce, spread, tasks)).collect();
        Self { limits, calls, tasks, task_ttl, opening, disturbances, end: (after, ending), weather }
    }
}

fn job(rng: &mut Rng, next_nonce: &mut u64, depth: u32) -> Job {
    let nonce = *next_nonce;
    *next_nonce += 1;
    let mut work = rng.pick(
        Work::Quick,
        &[
            Work::Sleep,
            Work::Sleep,
            Work::Wait,
            Work::Wait,
            Work::Partial,
            Work::Ignore,
            Work::Deaf,
            Work::Fail,
            Work::Panic,
            Work::Nested,
            Work::Nested,
            Work::Abandons,
            Work::Progress,
            Work::Straggler,
            Work::Shield,
            Work::Local,
        ],
    );
    let calls_back = matches!(work, Work::Nested | Work::Abandons);
    if calls_back && depth == 0 {
        work = Work::Sleep;
    }
    let has_child = calls_back || (work == Work::Wait && rng.percent(25));
    let mut child = (has_child && depth > 0).then(|| Box::new(job(rng, next_nonce, depth - 1)));
    if let (Work::Abandons, Some(child)) = (work, &mut child) {
        // Its end is that of its parent.
        child.caller = Caller::Waits;
    }
    let soon = rng.pick(0, &[0, 1, 2, 5, 20, 300, 2_500]);
    let caller = match rng.below(20) {
        0..=5 => Caller::Waits,
        6..=10 => Caller::Cancels(soon),
        11 => Caller::CancelsTwice(soon),
        12 => Caller::Leaves(soon),
        13..=14 => Caller::Drops(soon),
        15..=16 => Caller::Deadline(soon),
        17 => Caller::Token(soon),
        18 => Caller::Never,
        _ => Caller::Detaches,
    };
    Job { nonce, work, ms: rng.pick(0, &[1, 1, 5, 30, 400, 3_000]), caller, child, becomes_task: None }
}

fn task(rng: &mut Rng, next_nonce: &mut u64, spread: u64, form: Option<TaskForm>) -> PlannedTask {
    let nonce = *next_nonce;
    *next_nonce += 1;
    let work = rng.pick(
        Work::Quick,
        &[
            Work::Sleep,
            Work::Sleep,
            Work::Wait,
            Work::Wait,
            Work::Partial,
            Work::Ignore,
            Work::Deaf,
            Work::Fail,
            Work::Panic,
            Work::Progress,
            Work::Straggler,
            Work::Shield,
            Work::Local,
        ],
    );
    let ms = rng.pick(0, &[1, 5, 30, 400, 3_000]);
    let becomes_task = Some(rng.pick(0, &[0, 1, 5, 50]));
    let job = Job { nonce, work, ms, caller: Caller::Waits, child: None, becomes_task };
    let soon = [0, 0, 1, 5, 30, 400, 3_000];
    let polls = (0..rng.length(0, 5)).map(|_| rng.pick(0, &soon)).collect();
    let cancels = (0..rng.length(0, 3)).map(|_| rng.pick(0, &soon)).collect();
    let waiting = match rng.below(4) {
        0 => Waiting::Polls,
        1 if form == Some(TaskForm::AskedByClient) => Waiting::InResult,
        _ => Waiting::No,
    };
    PlannedTask {
        at: rng.below(spread + 1),
        job,
        dropped_after: rng.percent(15).then(|| rng.pick(0, &[1, 5, 30])),
        late_cancel: rng.percent(40).then(|| rng.pick(0, &[0, 5, 400])),
        polls,
        cancels,
        waiting,
    }
}

fn disturbances(rng: &mut Rng, spread: u64) -> Vec<(u64, Disturbance)> {
    let mut found = Vec::new();
    if rng.percent(20) {
        let side = rng.pick(Side::Client, &[Side::Server]);
        let time = rng.pick(10, &[1_000, 8_000]);
        found.push((rng.below(spread + 5), Disturbance::Stall(side, time)));
    }
    if rng.percent(8) {
        found.push((rng.below(spread + 30), Disturbance::Cut));
    }
    if rng.percent(8) {
        let side = rng.pick(Side::Client, &[Side::Server]);
        found.push((rng.below(spread + 30), Disturbance::HalfClose(side)));
    }
    found.sort_by_key(|(at, _)| *at);
    found
}

fn limits(rng: &mut Rng) -> Limits {
    let mut limits = Limits::default();
    if rng.percent(30) {
        limits.max_running_handlers = rng.length(1, 3);
        limits.max_queued_requests = rng.length(0, 4);
        limits.queue_timeout = Duration::from_millis(rng.pick(30_000, &[10, 500]));
    }
    if rng.percent(20) {
        limits.cancel_grace = Duration::from_millis(rng.pick(1, &[0, 100]));
    }
    if rng.percent(10) {
        limits.cancel_response_timeout = Duration::from_millis(rng.pick(1, &[0, 50]));
    }
    if rng.percent(10) {
        limits.max_shield_time = Duration::from_millis(rng.pick(1, &[50]));
    }
    if rng.percent(10) {
        limits.max_outbox_frames = rng.length(2, 6);
    }
    limits
}

fn weather(rng: &mut Rng, wire: Wire) -> NetworkConditions {
    let mut cut_at = PerSide::default();
    let (mut cut_some, mut repeat_some) = (0, 0);
    if wire.has_connections() {
        if rng.percent(20) {
            cut_some = rng.pick(5, &[30]);
        }
        if rng.percent(15) {
            repeat_some = rng.pick(10, &[60]);
        }
    } else if rng.percent(15) {
        let side = rng.pick(Side::Client, &[Side::Server]);
        *cut_at.of_mut(side) = Some(rng.length(1, 3_000));
    }
    NetworkConditions {
        piece: rng.pick(64 * 1024, &[64 * 1024, 1, 7, 100, 1_000]),
        room: rng.pick(64 * 1024, &[64 * 1024, 16, 300, 4_096]),
        delay: rng.pick(0, &[0, 1, 10, 200]),
        cut_at,
        cut_some,
        repeat_some,
        seed: rng.fork(),
    }
}

// The only source of randomness in a run: everything follows from its seed.

/// Pseudorandom numbers, the same for each seed (`SplitMix64`).
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate source for one part of a run, so that its draws do not affect those of other parts.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub(super) const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// The same for lengths.
    pub(super) fn length(&mut self, least: usize, most: usize) -> usize {
        let span = most.saturating_sub(least) as u64 + 1;
        least + usize::try_from(self.below(span)).unwrap_or(0)
    }

    /// True in this percentage of cases.
    pub(super) const fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }

    /// One of these.
    pub(super) fn pick<T: Copy>(&mut self, first: T, rest: &[T]) -> T {
        let at = self.length(0, rest.len());
        at.checked_sub(1).and_then(|at| rest.get(at)).copied().unwrap_or(first)
    }
}

// The two sides of a connection.

/// One side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// A value for each side.
#[derive(Clone, Debug, Default)]
pub(super) struct PerSide<T> {
    pub(super) client: T,
    pub(super) server: T,
}

impl<T> PerSide<T> {
    pub(super) fn of(&self, side: Side) -> &T {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    pub(super) fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}
