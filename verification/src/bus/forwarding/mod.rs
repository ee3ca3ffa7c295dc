//! The model of forwarding: a session's request and the client's own cancel of it reach any of three nodes, while nodes
//! die, restart, lose connections between them and have stale views of who is where.
//!
//! A session's id names the node that made it and that node's life. A view maps this name to an address, and each
//! node has a view of its own, which may be wrong from the start. A node forwards with a mark. A node that receives a
//! marked message for a session that it does not own refuses it.

mod losses;
mod possible;
mod routes;

use super::Bug;
use super::search::{Force, Model};
use crate::invariants::{Broken, holds, holds_and_counts};

const NODES: u8 = 3;
/// The node that made the session.
const OWNER: u8 = 0;

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mishaps {
    /// A node dies.
    pub(super) deaths: u8,
    /// A connection between two nodes is cut.
    pub(super) cuts: u8,
    /// The view of a node changes.
    pub(super) new_views: u8,
}

/// The faults that are possible, and the bug that is planted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forwarding {
    pub(super) mishaps: Mishaps,
    pub(super) bug: Option<Bug>,
}

/// Whether a node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    First,
    Dead,
    /// It was started again, and owns none of its earlier sessions.
    Second,
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// The client has not sent it.
    Unsent,
    /// On its way to a node.
    Coming { to: u8, forwarded: bool },
    /// The owner has it and has not answered.
    AtOwner,
    /// The answer is on its way to the entry node.
    Returning(Answer),
    /// The client has its answer.
    Answered(Answer),
}

/// How a message is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    /// By the owner.
    Accepted,
    /// 404.
    NotFound,
    /// An error that says that a node or a connection was lost.
    Lost,
}

/// A message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Message {
    place: Place,
    /// The node that the balancer chose.
    entry: u8,
    /// How often it was forwarded.
    hops: u8,
}

/// The request's work at the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Work {
    NotYet,
    Runs,
    Signalled,
    Ended,
}

/// The client's interest in its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Waits,
    /// It left, or its entry node was lost, and the owner's stream is still open.
    Leaves,
    /// The owner's stream is closed.
    Left,
}

/// Everything that distinguishes two situations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    lives: [Life; NODES as usize],
    /// The node at the address of the owner's name, as each node sees it.
    views: [Option<u8>; NODES as usize],
    request: Message,
    cancel: Message,
    work: Work,
    client: Client,
    /// Whether the owner keeps a cancel that arrived before its request.
    early: bool,
    /// Whether the owner accepted a cancel of the request.
    accepted: bool,
    mishaps: Mishaps,
}

/// Which of the two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Which {
    Request,
    Cancel,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The client sends a message, and the balancer chooses this node.
    Send(Which, u8),
    /// It arrives at a node.
    Arrives(Which),
    /// The answer arrives at the client, through the entry node.
    Returns(Which),
    /// The request's work ends.
    WorkEnds,
    /// The entry node notices that the owner died.
    LossNoticed,
    /// The client leaves the stream of its request.
    ClientLeaves,
    /// The stream at the owner closes too.
    StreamCloses,
    /// The owner forgets an early cancel.
    EarlyCancelExpires,
    /// A node dies.
    Dies(u8),
    /// A node is started again.
    Restarts(u8),
    /// The connection that carries this message between two nodes is cut.
    Cut(Which),
    /// A node has a new view of the owner's address.
    NewView(u8, Option<u8>),
}

/// All that can happen in a step.
pub(super) const EVENTS: &[&str] = &[
    "sent",
    "forwarded",
    "request served at its entry",
    "request served where it was forwarded",
    "request served as cancelled",
    "cancel accepted before the request",
    "cancel accepted in time",
    "cancel accepted after the end",
    "refused: no address",
    "refused: forwarded to a node that is not the owner",
    "refused: the address is the node's own",
    "refused: the session is of a former life",
    "entry node dead",
    "owner's address dead",
    "answer returns",
    "answer lost with the entry node",
    "work ends",
    "loss noticed",
    "client leaves",
    "stream closes",
    "stream closes after the work",
    "early cancel expires",
    "node dies",
    "node restarts",
    "connection cut",
    "new view",
];

const VIEWS: [Option<u8>; 4] = [None, Some(0), Some(1), Some(2)];

impl Model for Forwarding {
    type State = State;
    type Step = Step;

    /// Every combination of views.
    fn starts(&self) -> Vec<State> {
        let unsent = Message { place: Place::Unsent, entry: 0, hops: 0 };
        let start = |views| State {
            lives: [Life::First; NODES as usize],
            views,
            request: unsent,
            cancel: unsent,
            work: Work::NotYet,
            client: Client::Waits,
            early: false,
            accepted: false,
            mishaps: self.mishaps,
        };
        let with_third = |first, second| VIEWS.map(|third| start([first, second, third]));
        VIEWS.iter().flat_map(|a| VIEWS.iter().flat_map(move |b| with_third(*a, *b))).collect()
    }

    fn steps(&self, state: &State) -> Vec<(Step, Force)> {
        self.possible(state)
    }

    fn apply(&self, state: &State, step: Step) -> Result<(State, &'static str), Broken> {
        let mut next = *state;
        let event = self.take(&mut next, step)?;
        if next.work == Work::Ended {
            next.accepted = false;
        }
        Ok((next, event))
    }

    /// Nothing moves any more: nobody waits, except for work that runs, and no cancel was lost.
    fn check_rest(&self, state: &State) -> Result<(), Broken> {
        let State { request, cancel, work, client, .. } = *state;
        let runs = work == Work::Runs && state.life(OWNER) == Life::First;
        let is_settled = |message: Message| matches!(message.place, Place::Unsent | Place::Answered(_));
        let settled = is_settled(request) || request.place == Place::AtOwner && runs;
        holds(settled, "B10", || format!("the request never ends: {request:?}"))?;
        holds(is_settled(cancel), "B10", || format!("the cancel never ends: {cancel:?}"))?;
        holds_and_counts(state.accepted, !(state.accepted && runs), "B11", || {
            "the cancel was accepted, and its request was not signalled".to_owned()
        })?;
        let left = client != Client::Waits;
        holds_and_counts(left, !(left && runs), "B11", || {
            "the client left, and its request was not signalled".to_owned()
        })
    }
}

impl State {
    fn life(&self, node: u8) -> Life {
        self.lives.get(usize::from(node)).copied().unwrap_or(Life::Dead)
    }

    fn view(&self, node: u8) -> Option<u8> {
        self.views.get(usize::from(node)).copied().flatten()
    }

    fn message(&self, which: Which) -> Message {
        match which {
            Which::Request => self.request,
            Which::Cancel => self.cancel,
        }
    }

    fn message_mut(&mut self, which: Which) -> &mut Message {
        match which {
            Which::Request => &mut self.request,
            Which::Cancel => &mut self.cancel,
        }
    }
}

impl Forwarding {
    fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}
