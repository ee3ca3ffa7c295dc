//! Every vector on every transport: used by `rescind matrix` and by tests. Feature `wires`.
//!
//! Each play has a separate fixture and connection. A wire connects to a new fixture over its
//! transport and gives a caller one end of a connection. One row of `ROWS` lists the dialects that it carries and
//! what it cannot do. A cell without a play always has a reason.

mod bridge;
pub(crate) mod cluster;
mod in_process;
mod stdio;

use rescind_core::{BoxFuture, Framing, Link};

pub use self::stdio::Program;
use crate::dialects::{DialectFacts, HttpBinding};
use crate::fixture::Fixture;
use crate::report::{Cell, CellOutcome};
use crate::runner::{
    Abilities, CallingSubject, Connect, LinkSubject, Outcomes, PeerCaller, Played, Settings, Subject,
    differences, play,
};
use crate::vector::{Part, Scenario};

/// The names of the wires, in the order of the matrix's columns.
pub const WIRES: [&str; ROWS.len()] = {
    let mut names = [""; ROWS.len()];
    let mut at = 0;
    while at < ROWS.len() {
        #[expect(
            clippy::indexing_slicing,
            reason = "both have this length, and it is checked when compiling"
        )]
        {
            names[at] = ROWS[at].name;
        }
        at += 1;
    }
    names
};

const ROWS: [Row; 16] = [
    Row {
        name: "memory",
        carries: every_dialect,
        kind: Kind::Connection,
        lacks: &[],
        changes: &[],
        wire: |_| Box::new(in_process::Memory),
    },
    Row {
        name: "stdio",
        carries: every_dialect,
        kind: Kind::Connection,
        lacks: &[ONE_SESSION],
        changes: &[],
        wire: |program| Box::new(stdio::Stdio::new(program)),
    },
    Row {
        name: "websocket",
        carries: every_dialect,
        kind: Kind::Connection,
        lacks: &[BOTH_DIRECTIONS],
        changes: &[],
        wire: |_| Box::new(in_process::WebSocket),
    },
    Row {
        name: "http-streamable",
        carries: streamable,
        kind: Kind::Streams,
        lacks: &[NO_INPUT],
        changes: &[],
        wire: |_| Box::new(in_process::HTTP_STREAMABLE),
    },
    Row {
        name: "http-stateless",
        carries: |facts| facts.is_carried_by(HttpBinding::Stateless),
        kind: Kind::Exchanges,
        lacks: &[NO_INPUT_OF_A_POST],
        changes: &[],
        wire: |_| Box::new(in_process::HTTP_STATELESS),
    },
    Row {
        name: "http-acp",
        carries: http_acp,
        kind: Kind::Opened,
        lacks: &[NO_INPUT],
        changes: &[],
        wire: |_| Box::new(in_process::HTTP_ACP),
    },
    Row {
        name: "http-legacy-sse",
        carries: |facts| facts.is_carried_by(HttpBinding::LegacySse),
        kind: Kind::Posts,
        lacks: &[NO_INPUT],
        changes: &[],
        wire: |_| Box::new(in_process::HTTP_LEGACY_SSE),
    },
    Row {
        name: "named-pipe",
        carries: every_dialect,
        kind: Kind::Connection,
        lacks: in_process::NAMED_PIPE_LACKS,
        changes: &[],
        wire: |_| Box::new(in_process::NamedPipe),
    },
    Row {
        name: "bridge:websocket>stdio",
        carries: bridge::carries,
        kind: Kind::Connection,
        lacks: &[BOTH_DIRECTIONS, bridge::A_CHILD_EACH],
        changes: &[bridge::CHANGES],
        wire: |program| bridge::listening(in_process::WebSocket, stdio::Stdio::new(program)),
    },
    Row {
        name: "bridge:http-streamable>stdio",
        carries: |facts| bridge::carries(facts) && streamable(facts),
        kind: Kind::Streams,
        lacks: &[NO_INPUT, bridge::A_CHILD_EACH],
        changes: &[bridge::CHANGES, bridge::CHANGES_OVER_HTTP],
        wire: |program| bridge::listening(in_process::HTTP_STREAMABLE, stdio::Stdio::new(program)),
    },
    Row {
        name: "bridge:stdio>http-streamable",
        carries: |facts| bridge::carries(facts) && streamable(facts),
        kind: Kind::Posts,
        lacks: &[ONE_SESSION],
        changes: &[bridge::CHANGES, bridge::CHANGES_BEFORE_HTTP],
        wire: |program| bridge::started(stdio::Stdio::new(program), in_process::HTTP_STREAMABLE),
    },
    Row {
        name: "bridge:named-pipe>websocket",
        carries: bridge::carries,
        kind: Kind::Connection,
        lacks: in_process::NAMED_PIPE_LACKS,
        changes: &[bridge::CHANGES],
        wire: |_| bridge::listening(in_process::NamedPipe, in_process::WebSocket),
    },
    Row {
        name: "bridge:http-acp>stdio",
        carries: http_acp,
        kind: Kind::Opened,
        lacks: &[NO_INPUT, bridge::A_CHILD_EACH],
        changes: &[bridge::CHANGES],
        wire: |program| bridge::listening(in_process::HTTP_ACP, stdio::Stdio::new(program)),
    },
    Row {
        name: "http-streamable@3",
        carries: streamable,
        kind: Kind::Streams,
        lacks: &[NO_INPUT],
        changes: &[],
        wire: |program| {
            Box::new(cluster::Replicas::new(program, HttpBinding::Streamable, in_process::HTTP_STREAMABLE))
        },
    },
    Row {
        name: "http-stateless@3",
        carries: |facts| facts.is_carried_by(HttpBinding::Stateless),
        kind: Kind::Exchanges,
        lacks: &[NO_INPUT_OF_A_POST, MANY_SERVERS],
        changes: &[],
        wire: |program| {
            Box::new(cluster::Replicas::new(program, HttpBinding::Stateless, in_process::HTTP_STATELESS))
        },
    },
    Row {
        name: "http-acp@3",
        carries: http_acp,
        kind: Kind::Opened,
        lacks: &[NO_INPUT],
        changes: &[],
        wire: |program| Box::new(cluster::Replicas::new(program, HttpBinding::Acp, in_process::HTTP_ACP)),
    },
];

const ONE_SESSION: (Lack, &str) =
    (Lack::ManySessions, "over stdio an agent is a process, and a process is one session");
const BOTH_DIRECTIONS: (Lack, &str) =
    (Lack::HalfClose, "a WebSocket closes in both directions at once: a close frame is answered by one");
const NO_INPUT: (Lack, &str) = (Lack::HalfClose, "a connection over HTTP has no input that could end alone");
const NO_INPUT_OF_A_POST: (Lack, &str) = (Lack::HalfClose, "a POST's input ends with the POST");
const MANY_SERVERS: (Lack, &str) =
    (Lack::Calls, "the scenario is one server, and without sessions each request may reach another");

/// A wire of the matrix.
struct Row {
    name: &'static str,
    carries: fn(&DialectFacts) -> bool,
    kind: Kind,
    /// Features that no scenario can use on it, with the reason.
    lacks: &'static [(Lack, &'static str)],
    /// Scenarios whose outcome is different on it by its nature.
    changes: &'static [&'static [Change]],
    wire: fn(&Program) -> Box<dyn Wire>,
}

/// How a wire orders frames and scopes ids. A vector states its needs if protocols differ in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Frames keep their order, and ids belong to the connection.
    Connection,
    /// Each frame is a separate post, without order. Ids belong to the session.
    Posts,
    /// The same, and each request has a response stream of its own.
    Streams,
    /// As `Posts`, and the opening must come first.
    Opened,
    /// Each frame is a separate post. Ids belong to the post.
    Exchanges,
}

impl Kind {
    fn abilities(self) -> Abilities {
        let (ordered, exchange_scoped) = match self {
            Self::Connection => (true, false),
            Self::Posts | Self::Streams | Self::Opened => (false, false),
            Self::Exchanges => (false, true),
        };
        Abilities {
            many_lines: true,
            half_close: true,
            calls: true,
            options: true,
            ordered,
            batches: ordered,
            bare: self != Self::Opened,
            exchange_scoped,
            tasks: true,
        }
    }
}

/// What a wire may not be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// Ending one direction alone.
    HalfClose,
    /// Connecting again to the same agent.
    ManySessions,
    /// Our calls to a scenario that acts as their server.
    Calls,
}

fn every_dialect(_: &DialectFacts) -> bool {
    true
}

fn streamable(facts: &DialectFacts) -> bool {
    facts.is_carried_by(HttpBinding::Streamable)
}

fn http_acp(facts: &DialectFacts) -> bool {
    facts.is_carried_by(HttpBinding::Acp)
}

/// Scenarios that a wire changes.
#[derive(Debug)]
struct Change {
    scenarios: &'static [&'static str],
    dialects: fn(&DialectFacts) -> bool,
    why: &'static str,
}

/// How a wire is set up for one play.
trait Wire: Send + Sync {
    /// Creates a fixture for the scenario and connects to it.
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>>;

    /// Whether the fixture gets other ids than those that the client sends.
    fn renumbers(&self) -> bool {
        false
    }

    /// The two ends of one connection: a client's end for our caller, a server's end for the scenario.
    fn pair<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>>;
}

/// A fixture that serves.
struct Served {
    connect: Connect,
    /// Whether each connection reaches the same fixture.
    many_lines: bool,
    half_close: bool,
    exit_report: Option<Box<dyn FnMut() -> Option<String> + Send>>,
    /// Awaited after the connections are closed, so that nothing is left running.
    end: BoxFuture<'static, ()>,
}

/// A fixture as the subject of a scenario.
struct Reached {
    subject: LinkSubject,
    end: BoxFuture<'static, ()>,
}

impl Served {
    fn reach(self, scenario: &Scenario) -> Reached {
        let mut subject = LinkSubject::new(self.connect).speaking(scenario.facts).with_options();
        if self.many_lines {
            subject = subject.with_many_lines();
        }
        if self.half_close {
            subject = subject.with_half_close();
        }
        if let Some(exit_report) = self.exit_report {
            subject = subject.with_exit_report(exit_report);
        }
        Reached { subject, end: self.end }
    }
}

/// Plays a scenario on a wire. `program` is started by the wires that need a separate process.
///
/// A bridge keeps the order of requests on a single-threaded runtime, so play its wires on one.
///
/// # Errors
/// If there is no such wire, or it cannot be set up on this machine.
///
/// # Cancel safety
/// Dropping the future ends the play, closes its connections and ends the process that it started.
pub async fn play_on(
    wire: &str,
    scenario: &Scenario,
    settings: &Settings,
    program: &Program,
) -> Result<Cell, String> {
    let row = Row::named(wire)?;
    if let Some(why) = row.cannot(scenario) {
        return Ok(Cell::not_asked(scenario, wire, why));
    }
    let wire = (row.wire)(program);
    let mut played = row.play(scenario, wire.as_ref(), settings).await?;
    if wire.renumbers() {
        played.outcomes.renumbered();
    }
    Ok(Cell::new(scenario, row.name, played))
}

/// Why this scenario is not played on this wire. `None`: it is played.
///
/// # Errors
/// If there is no such wire.
pub fn not_asked(wire: &str, scenario: &Scenario) -> Result<Option<&'static str>, String> {
    Ok(Row::named(wire)?.cannot(scenario))
}

impl Row {
    fn named(wire: &str) -> Result<&'static Self, String> {
        let found = ROWS.iter().find(|row| row.name == wire);
        found.ok_or_else(|| format!("there is no wire {wire}; the wires are {}", WIRES.join(", ")))
    }

    fn has(&self, lack: Lack) -> bool {
        self.lacks.iter().any(|(it, _)| *it == lack)
    }

    async fn play(
        &self,
        scenario: &Scenario,
        wire: &dyn Wire,
        settings: &Settings,
    ) -> Result<Played, String> {
        match scenario.vector.role {
            Part::Serve => {
                let Reached { subject, end } = wire.fixture(scenario).await?.reach(scenario);
                let mut subject =
                    if self.kind == Kind::Streams { subject.with_streams_of_requests() } else { subject };
                let played = play(scenario, &mut subject, settings).await;
                drop(subject);
                end.await;
                Ok(played)
            }
            Part::Call => {
                let (near, far) = wire.pair(scenario).await?;
                play_calling(scenario, near, far, !self.has(Lack::HalfClose), settings).await
            }
        }
    }

    /// How this wire changes the scenario.
    fn change(&self, scenario: &Scenario) -> Option<&'static Change> {
        let name = scenario.vector.name.as_str();
        self.changes
            .iter()
            .copied()
            .flatten()
            .find(|change| change.scenarios.contains(&name) && (change.dialects)(scenario.facts))
    }

    /// Why this scenario cannot be played here. `None`: it can.
    fn cannot(&self, scenario: &Scenario) -> Option<&'static str> {
        if !(self.carries)(scenario.facts) {
            return Some("this binding does not carry this dialect");
        }
        if let Some(why) = scenario.vector.unlike(self.kind.abilities()) {
            return Some(why);
        }
        if let Some(change) = self.change(scenario) {
            return Some(change.why);
        }
        let requirements = scenario.requirements();
        let found = self.lacks.iter().find(|(lack, _)| match lack {
            Lack::HalfClose => requirements.half_close,
            Lack::ManySessions => requirements.many_lines,
            Lack::Calls => scenario.vector.role == Part::Call,
        });
        found.map(|(_, why)| *why)
    }
}

/// Our `Peer` on the near end of a wire. The scenario acts on the far end.
async fn play_calling(
    scenario: &Scenario,
    near: Link,
    far: Link,
    half_closes: bool,
    settings: &Settings,
) -> Result<Played, String> {
    let fixture = fixture(scenario);
    let caller = PeerCaller::open(fixture.clone(), near).map_err(|error| error.to_string())?;
    let far = LinkSubject::new(only(far)).speaking(scenario.facts);
    let far = if half_closes { far.with_half_close() } else { far };
    let mut subject = CallingSubject::new(far, caller);
    let mut played = play(scenario, &mut subject, settings).await;
    let until = subject.now() + settings.deadline;
    while fixture.entering() > 0 && subject.now() < until {
        subject.pause().await;
    }
    played.outcomes.handled(fixture.handled());
    Ok(played)
}

/// The fixture in this process, configured for the scenario.
fn fixture(scenario: &Scenario) -> Fixture {
    Fixture::of(scenario.facts, scenario.vector.options.clone())
}

fn framing_of(scenario: &Scenario) -> Framing {
    scenario.facts.dialect.rules().framing
}

/// Connects to this link, once.
fn only(link: Link) -> Connect {
    let mut link = Some(link);
    Box::new(move || {
        let link = link.take().ok_or_else(|| "this wire has one connection".to_owned());
        Box::pin(async move { link })
    })
}

/// If a scenario passed on several wires, its outcomes must be equal (I15). A wire with other outcomes fails.
pub fn same_on_every_wire(scenario: &Scenario, row: &mut [Cell]) {
    let held: Vec<(&str, &Outcomes)> = row
        .iter()
        .filter(|cell| cell.outcome == CellOutcome::Held)
        .map(|cell| (cell.wire.as_str(), &cell.outcomes))
        .collect();
    let reported: Vec<(String, String)> =
        differences(scenario, &held).into_iter().map(|(wire, why)| (wire.to_owned(), why)).collect();
    for (wire, why) in reported {
        for cell in row.iter_mut().filter(|cell| cell.wire == wire) {
            cell.outcome = CellOutcome::Broke;
            cell.why.clone_from(&why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::scenarios_of;

    #[tokio::test]
    async fn a_scenario_that_a_transport_cannot_play_is_skipped_with_a_reason() {
        let program = Program::new("no-such-program");
        let half_closing =
            scenarios_of("lsp").find(|scenario| scenario.vector.requirements("lsp").half_close).unwrap();
        let cell = play_on("websocket", half_closing, &Settings::default(), &program).await.unwrap();
        assert_eq!(cell.outcome, CellOutcome::NotAsked);
        assert!(cell.why.contains("both directions"), "{}", cell.why);
        let two =
            scenarios_of("lsp").find(|scenario| scenario.vector.requirements("lsp").many_lines).unwrap();
        let cell = play_on("stdio", two, &Settings::default(), &program).await.unwrap();
        assert_eq!(cell.outcome, CellOutcome::NotAsked);
        assert!(cell.why.contains("one session"), "{}", cell.why);
    }

    #[tokio::test]
    async fn an_unknown_transport_is_reported_with_its_name() {
        let scenario = crate::scenarios().first().unwrap();
        let settings = Settings::default();
        let why = play_on("pigeon", scenario, &settings, &Program::new("x")).await.unwrap_err();
        assert!(why.contains("pigeon") && why.contains("memory, stdio"), "{why}");
        let why = play_on("stdio", scenario, &settings, &Program::new("no-such-program")).await.unwrap_err();
        assert!(why.contains("no-such-program"), "{why}");
    }
}
