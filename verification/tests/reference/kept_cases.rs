//! Shortened cases in which a machine once differed from the reference. Each shows the bug for which it is kept.

use std::time::Duration;

use rescind_core::dialect::{ABP, ACP, Dialect, LSP, MCP, MCP_2026, Role};
use rescind_core::failpoint::Failpoint;
use rescind_core::{AfterCancel, AnswerKind, CauseKind, HandlerResult};

use super::caller::Own;
use super::model::{Case, EARLY, Event};

/// A case, and a bug that it shows.
pub(super) struct Kept {
    pub(super) bug: Failpoint,
    pub(super) case: Case,
    pub(super) events: Vec<Event>,
}

fn kept(bug: Failpoint, dialect: Dialect, events: &[Event]) -> Kept {
    let case = Case { dialect, role: Role::Server, ordered: true };
    Kept { bug, case, events: events.to_vec() }
}

/// All of them.
pub(super) fn all() -> Vec<Kept> {
    use Event::{Ask, AskForTask, BecomeTask, Cancel, CancelTask, End, Pass};
    let own = Event::Own;
    let call = |parent, deadline| own(Own::Call(parent, deadline, None));
    let short = Duration::from_millis(500);
    vec![
        kept(Failpoint::ValueDropped, ACP, &[Ask(0), Cancel(0), End(0, HandlerResult::Value)]),
        kept(Failpoint::DoubleSignal, ACP, &[Ask(1), Cancel(1), Cancel(1)]),
        kept(Failpoint::EarlyCancelStays, MCP, &[Cancel(2), Pass(EARLY), Cancel(2)]),
        kept(Failpoint::AckTwice, ABP, &[Cancel(0)]),
        kept(Failpoint::CancelOvertakes, ACP, &[Ask(1), call(Some(0), None), Cancel(1)]),
        kept(
            Failpoint::LaterCause,
            ACP,
            &[
                call(None, Some(short)),
                own(Own::Write(0)),
                Pass(short),
                own(Own::Cancel(0, Some(AfterCancel::ReturnNow))),
            ],
        ),
        kept(
            Failpoint::AnswerUnheard,
            LSP,
            &[
                call(None, None),
                own(Own::Write(0)),
                own(Own::Cancel(0, Some(AfterCancel::WaitForPeer))),
                own(Own::WriteCancel(0)),
                own(Own::Answer(0, AnswerKind::Value)),
            ],
        ),
        kept(Failpoint::TaskGoesOn, MCP, &[Ask(0), BecomeTask(0), CancelTask(0, CauseKind::Deadline)]),
        kept(
            Failpoint::TaskEndsTwice,
            MCP,
            &[AskForTask(0), BecomeTask(0), CancelTask(0, CauseKind::Peer), End(0, HandlerResult::Value)],
        ),
        kept(Failpoint::TaskKeepsId, MCP_2026, &[Ask(0), BecomeTask(0), Cancel(0)]),
        kept(
            Failpoint::TaskCancelTakesId,
            MCP,
            &[AskForTask(0), BecomeTask(0), Ask(0), CancelTask(0, CauseKind::Peer)],
        ),
    ]
}
