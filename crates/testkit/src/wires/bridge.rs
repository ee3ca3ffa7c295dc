//! A bridge between the wire of the clients and the wire of the fixture.

use std::sync::{Arc, Mutex, PoisonError};

use rescind_bridge::{Bridge, Upstream};
use rescind_core::dialect::ReasonField;
use rescind_core::{BoxFuture, Link};

use super::in_process::Loopback;
use super::stdio::Stdio;
use super::{Change, Lack, Served, Wire, every_dialect, only};
use crate::dialects::{DialectFacts, ProgressForm};
use crate::runner::Connect;
use crate::vector::Scenario;

/// The name by which errors of the bridge call the fixture.
const BEHIND: &str = "the fixture";

/// Each session has a fixture of its own.
pub(super) const A_CHILD_EACH: (Lack, &str) =
    (Lack::ManySessions, "behind this bridge each session has a process of its own");

/// The changes of every bridge. `bridge_changes.md` lists them.
pub(super) const CHANGES: &[Change] = &[
    Change {
        scenarios: &["child_cancelled_with_parent", "detached_child_goes_on"],
        dialects: every_dialect,
        why: "it names a handler by the id of its request, and a bridge passes the request on under an id of its own",
    },
    Change {
        scenarios: &["reuse_while_draining"],
        dialects: every_dialect,
        why: "behind a bridge an id that is used again is another id",
    },
    Change {
        scenarios: &["unreadable_answer"],
        dialects: every_dialect,
        why: "a bridge answers with an error in place of an answer that it cannot read",
    },
    Change {
        scenarios: &["disconnect_with_cancel_asked"],
        dialects: every_dialect,
        why: "when the server is lost, a bridge answers with an error that says so",
    },
    Change {
        scenarios: &["fails_after_cancel"],
        dialects: every_dialect,
        why: "an error that does not say \"cancelled\" becomes the cancelled answer",
    },
    Change {
        scenarios: &["cancel_call_confirmed"],
        dialects: says_reasons,
        why: "a bridge leaves out the reason of a cancel",
    },
    Change {
        scenarios: &[
            "cancel_call_twice",
            "completed_after_cancel",
            "deadline_cancels",
            "late_result_sent_if_asked",
            "other_calls_untouched",
            "task_member_of_a_call_is_ignored",
        ],
        dialects: DialectFacts::owes_silence,
        why: "MCP answers no cancelled request, so a bridge passes on no such answer",
    },
    Change {
        scenarios: &["server_cancel_ignored_if_client_only"],
        dialects: every_dialect,
        why: "it restricts who may cancel, and a bridge has no such setting",
    },
    Change {
        scenarios: &["half_close_grace"],
        dialects: |facts| facts.dialect.rules().half_close_at_most.is_none(),
        why: "it sets how long requests may run after the end of the input, and a bridge has a time of its own",
    },
];

/// Changes for clients over HTTP, where answers and notifications have streams of their own.
pub(super) const CHANGES_OVER_HTTP: &[Change] = &[
    Change {
        scenarios: &["prompt_without_session"],
        dialects: every_dialect,
        why: "a notification without a progress token comes on another stream than the answer after it",
    },
    Change {
        scenarios: &["progress_before_answer"],
        dialects: |facts| !has_meta_tokens(facts),
        why: "only MCP has progress tokens, without which a notification comes on another stream than the answer after it",
    },
    Change {
        scenarios: &["revision_over_http"],
        dialects: every_dialect,
        why: "the server behind the bridge agrees on the revision, and it does not speak over HTTP",
    },
];

/// Changes of a bridge before a fixture over HTTP.
pub(super) const CHANGES_BEFORE_HTTP: &[Change] = &[Change {
    scenarios: &["early_cancel_waits", "late_cancel_of_a_forgotten_id", "revision_over_http"],
    dialects: every_dialect,
    why: "it needs a wire that does not keep the order of frames, and that of the client keeps it",
}];

fn says_reasons(facts: &DialectFacts) -> bool {
    facts.json_rpc().is_some_and(|codec| codec.reason != ReasonField::Nowhere)
}

fn has_meta_tokens(facts: &DialectFacts) -> bool {
    facts.progress.form == ProgressForm::MetaToken
}

/// The dialects that a bridge speaks over every wire that has connections.
pub(super) fn carries(facts: &DialectFacts) -> bool {
    facts.json_rpc().is_some()
}

/// A bridge with a listener.
pub(super) fn listening(clients: impl Listens + 'static, fixture: impl Wire + 'static) -> Box<dyn Wire> {
    Box::new(Bridged { clients: Clients::Listener(Box::new(clients)), fixture: Box::new(fixture) })
}

/// A bridge that its client starts.
pub(super) fn started(clients: Stdio, fixture: impl Wire + 'static) -> Box<dyn Wire> {
    Box::new(Bridged { clients: Clients::Stdio(clients), fixture: Box::new(fixture) })
}

struct Bridged {
    clients: Clients,
    /// The wire of the fixture behind the bridge.
    fixture: Box<dyn Wire>,
}

/// The wire of the clients.
enum Clients {
    /// A client starts a process, which is the other end of its connection.
    Stdio(Stdio),
    /// Clients connect to a listener.
    Listener(Box<dyn Listens>),
}

/// A wire as a trait object. From Rust 1.86 on a trait object can be made from that of `Listens`.
pub(super) trait AsWire {
    fn as_wire(&self) -> &dyn Wire;
}

impl<T: Wire> AsWire for T {
    fn as_wire(&self) -> &dyn Wire {
        self
    }
}

/// A wire with a listener.
pub(super) trait Listens: Wire + AsWire {
    fn listen<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Loopback, String>>;
}

impl Clients {
    fn wire(&self) -> &dyn Wire {
        match self {
            Self::Stdio(wire) => wire,
            Self::Listener(wire) => wire.as_wire(),
        }
    }
}

fn bridge(scenario: &Scenario) -> Result<Bridge, String> {
    Bridge::new(scenario.facts.dialect.clone()).map_err(|error| error.to_string())
}

/// Opens the upstream of a session.
fn open(connect: &Arc<Mutex<Connect>>) -> BoxFuture<'static, Result<Upstream, String>> {
    let opening = connect.lock().unwrap_or_else(PoisonError::into_inner)();
    Box::pin(async { Ok(Upstream::new(BEHIND, opening.await?)) })
}

impl Wire for Bridged {
    fn renumbers(&self) -> bool {
        true
    }

    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move {
            let bridge = bridge(scenario)?;
            let behind = self.fixture.fixture(scenario).await?;
            let connect = Arc::new(Mutex::new(behind.connect));
            let near = match &self.clients {
                Clients::Stdio(wire) => {
                    let (near, far) = wire.pair(scenario).await?;
                    bridge.join(far, open(&connect)).await.map_err(|error| error.to_string())?;
                    Served {
                        connect: only(near),
                        many_lines: false,
                        half_close: true,
                        exit_report: None,
                        end: Box::pin(async {}),
                    }
                }
                Clients::Listener(wire) => {
                    let server = bridge.serve(move || open(&connect));
                    wire.listen(scenario).await?.serve_by(|listener| async move {
                        let _ended = server.listen(listener).run().await;
                    })
                }
            };
            let end = async move {
                near.end.await;
                bridge.ended().await;
                behind.end.await;
            };
            Ok(Served {
                many_lines: near.many_lines && behind.many_lines,
                half_close: near.half_close,
                exit_report: behind.exit_report,
                connect: near.connect,
                end: Box::pin(end),
            })
        })
    }

    fn pair<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move {
            let (near, downstream) = self.clients.wire().pair(scenario).await?;
            let (upstream, far) = self.fixture.pair(scenario).await?;
            let joined = bridge(scenario)?.between(downstream, Upstream::new(BEHIND, upstream)).await;
            joined.map(|_downstream| (near, far)).map_err(|error| error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;
    use crate::report::{Cell, CellOutcome};
    use crate::runner::Settings;
    use crate::scenarios;
    use crate::wires::{Program, Row};

    const WIRE: &str = "bridge:named-pipe>websocket";

    /// A change that a bridge does not make would hide a scenario that holds.
    #[tokio::test]
    async fn each_scenario_that_a_bridge_is_said_to_change_is_changed() {
        let row = Row::named(WIRE).unwrap();
        let program = Program::new("no process is needed");
        let settings = Settings { deadline: Duration::from_secs(2), ..Settings::default() };
        let changed = scenarios().iter().filter(|scenario| {
            (row.carries)(scenario.facts)
                && row.change(scenario).is_some()
                && scenario.vector.unlike(row.kind.abilities()).is_none()
        });
        let plays = changed.map(async |scenario| {
            let wire = (row.wire)(&program);
            let played = row.play(scenario, wire.as_ref(), &settings).await.unwrap();
            let cell = Cell::new(scenario, row.name, played);
            assert_eq!(cell.outcome, CellOutcome::Broke, "{} {}", scenario.dialect, scenario.vector.name);
            scenario.vector.name.as_str()
        });
        let mut played = join_all(plays).await;
        played.sort_unstable();
        played.dedup();
        let mut listed: Vec<_> = CHANGES.iter().flat_map(|change| change.scenarios).copied().collect();
        listed.sort_unstable();
        assert_eq!(played, listed, "each name is that of a scenario");
    }

    /// `bridge_changes.md` has a row for each change: its scenarios, and the reason as it is given for a cell.
    #[test]
    fn the_list_of_what_a_bridge_changes_is_complete() {
        let page = include_str!("bridge_changes.md");
        let rows: Vec<_> = page
            .lines()
            .skip_while(|line| *line != "| scenarios | reason |")
            .skip(2)
            .take_while(|line| line.starts_with('|'))
            .collect();
        let wanted = CHANGES.iter().chain(CHANGES_OVER_HTTP).chain(CHANGES_BEFORE_HTTP).map(|change| {
            let names: Vec<_> = change.scenarios.iter().map(|name| format!("`{name}`")).collect();
            format!("| {} | {} |", names.join(", "), change.why)
        });
        assert_eq!(rows, wanted.collect::<Vec<_>>());
    }
}
