//! The model of forwarding: a session's request and the client's own cancel of it reach any of three nodes, while nodes
//! die, restart, lose connections between them and have stale views of who is where.
//!
//! A session's id names the node that made it and that node's life. A view maps this name to an address, and each
//! node has a view of its own, which may be wrong from the start. A node forwards with a mark. A node that receives a
//! marked message for a session that it does not own refuses it.

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
pub(super) struct ForwardingState {
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
    type State = ForwardingState;
    type Step = Step;

    /// Every combination of views.
    fn starts(&self) -> Vec<ForwardingState> {
        let unsent = Message { place: Place::Unsent, entry: 0, hops: 0 };
        let start = |views| ForwardingState {
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

    fn steps(&self, state: &ForwardingState) -> Vec<(Step, Force)> {
        self.possible(state)
    }

    fn apply(&self, state: &ForwardingState, step: Step) -> Result<(ForwardingState, &'static str), Broken> {
        let mut next = *state;
        let event = self.take(&mut next, step)?;
        if next.work == Work::Ended {
            next.accepted = false;
        }
        Ok((next, event))
    }

    /// Nothing moves any more: nobody waits, except for work that runs, and no cancel was lost.
    fn check_rest(&self, state: &ForwardingState) -> Result<(), Broken> {
        let ForwardingState { request, cancel, work, client, .. } = *state;
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

impl ForwardingState {
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

// The steps that are possible in a state.

impl Forwarding {
    pub(super) fn possible(self, state: &ForwardingState) -> Vec<(Step, Force)> {
        let mut owed = Vec::new();
        let mut free = Vec::new();
        for which in [Which::Request, Which::Cancel] {
            let message = state.message(which);
            match message.place {
                Place::Unsent => {
                    let may = which == Which::Request || state.request.place != Place::Unsent;
                    let entries = (0..NODES).filter(|node| may && state.life(*node) != Life::Dead);
                    free.extend(entries.map(|entry| Step::Send(which, entry)));
                }
                Place::Coming { .. } => owed.push(Step::Arrives(which)),
                Place::Returning(_) => owed.push(Step::Returns(which)),
                Place::AtOwner if state.life(OWNER) != Life::First => {
                    owed.extend((!self.has(Bug::DeadOwnerAwaited)).then_some(Step::LossNoticed));
                }
                Place::AtOwner | Place::Answered(_) => {}
            }
            let crosses = match message.place {
                Place::Coming { forwarded, .. } => forwarded,
                Place::AtOwner | Place::Returning(Answer::Accepted | Answer::NotFound) => message.hops > 0,
                Place::Unsent | Place::Returning(Answer::Lost) | Place::Answered(_) => false,
            };
            free.extend((crosses && state.mishaps.cuts > 0).then_some(Step::Cut(which)));
        }
        match state.work {
            Work::Runs => free.push(Step::WorkEnds),
            // A handler ends in the end, once it is signalled.
            Work::Signalled => owed.push(Step::WorkEnds),
            Work::NotYet | Work::Ended => {}
        }
        self.client_steps(state, &mut owed, &mut free);
        mishaps(state, &mut free);
        let owed = owed.into_iter().map(|step| (step, Force::Owed));
        owed.chain(free.into_iter().map(|step| (step, Force::Free))).collect()
    }

    fn client_steps(self, state: &ForwardingState, owed: &mut Vec<Step>, free: &mut Vec<Step>) {
        let place = state.request.place;
        let is_coming = matches!(place, Place::Coming { .. });
        if state.client == Client::Waits && !matches!(place, Place::Unsent | Place::Answered(_)) {
            free.push(Step::ClientLeaves);
        }
        // The request reaches the owner before the close of its own stream.
        let is_passed_on = state.request.entry == OWNER || !self.has(Bug::LeaveNotForwarded);
        if state.client == Client::Leaves && !is_coming && is_passed_on {
            owed.push(Step::StreamCloses);
        }
        // The owner keeps an early cancel longer than its request may be on its way.
        if state.early && !is_coming {
            owed.push(Step::EarlyCancelExpires);
        }
    }
}

/// The faults that can change something: until all has ended, and for views until both messages have passed their
/// entry nodes.
fn mishaps(state: &ForwardingState, free: &mut Vec<Step>) {
    let places = [state.request.place, state.cancel.place];
    let is_sent = |place: &Place| !matches!(place, Place::Unsent | Place::Coming { forwarded: false, .. });
    let is_answered = |place: &Place| matches!(place, Place::Answered(_));
    if places.iter().all(is_answered) && !matches!(state.work, Work::Runs | Work::Signalled) {
        return;
    }
    let is_routed = places.iter().all(is_sent);
    for node in 0..NODES {
        match state.life(node) {
            Life::Dead => free.push(Step::Restarts(node)),
            Life::First | Life::Second if state.mishaps.deaths > 0 => free.push(Step::Dies(node)),
            Life::First | Life::Second => {}
        }
        if state.mishaps.new_views > 0 && !is_routed {
            let others = VIEWS.into_iter().filter(|view| *view != state.view(node));
            free.extend(others.map(|view| Step::NewView(node, view)));
        }
    }
}

// A node serves a message, forwards it once, or refuses it.

impl Forwarding {
    pub(super) fn take(self, state: &mut ForwardingState, step: Step) -> Result<&'static str, Broken> {
        match step {
            Step::Send(which, entry) => {
                let place = Place::Coming { to: entry, forwarded: false };
                *state.message_mut(which) = Message { place, entry, hops: 0 };
                Ok("sent")
            }
            Step::Arrives(which) => self.arrives(state, which),
            Step::Returns(which) => {
                if let Place::Returning(answer) = state.message(which).place {
                    state.message_mut(which).place = Place::Answered(answer);
                }
                Ok("answer returns")
            }
            Step::WorkEnds => {
                state.work = Work::Ended;
                if state.request.place == Place::AtOwner {
                    state.request.place = Place::Returning(Answer::Accepted);
                }
                Ok("work ends")
            }
            Step::LossNoticed => {
                state.request.place = Place::Returning(Answer::Lost);
                Ok("loss noticed")
            }
            Step::ClientLeaves => {
                state.client = Client::Leaves;
                Ok("client leaves")
            }
            Step::StreamCloses => {
                state.client = Client::Left;
                if state.work != Work::Runs {
                    return Ok("stream closes after the work");
                }
                state.work = Work::Signalled;
                Ok("stream closes")
            }
            Step::EarlyCancelExpires => {
                state.early = false;
                Ok("early cancel expires")
            }
            Step::Dies(_) | Step::Restarts(_) | Step::Cut(_) | Step::NewView(..) => Ok(state.suffer(step)),
        }
    }

    fn arrives(self, state: &mut ForwardingState, which: Which) -> Result<&'static str, Broken> {
        let Place::Coming { to, forwarded } = state.message(which).place else { return Ok("") };
        let is_owner = to == OWNER && state.life(to) == Life::First;
        match state.life(to) {
            // The connection is refused, so the entry node knows at once. The client of a dead entry node knows it
            // from its balancer.
            Life::Dead if forwarded => {
                state.message_mut(which).place = Place::Returning(Answer::Lost);
                Ok("owner's address dead")
            }
            Life::Dead => {
                state.message_mut(which).place = Place::Answered(Answer::Lost);
                Ok("entry node dead")
            }
            Life::First | Life::Second
                if is_owner && !(self.has(Bug::OwnerAsksItsView) && state.view(to) != Some(to)) =>
            {
                serve(state, which, to)
            }
            Life::Second if to == OWNER && self.has(Bug::FormerLifeServed) => serve(state, which, to),
            Life::Second if to == OWNER => {
                refuse(state, which, to, "refused: the session is of a former life")
            }
            Life::First | Life::Second if forwarded && self.has(Bug::ForwardedIsTrusted) => {
                serve(state, which, to)
            }
            Life::First | Life::Second if forwarded && !self.has(Bug::ForwardTwice) => {
                refuse(state, which, to, "refused: forwarded to a node that is not the owner")
            }
            Life::First | Life::Second => self.forward(state, which, to),
        }
    }

    /// Asks this node's view where the owner is.
    fn forward(self, state: &mut ForwardingState, which: Which, from: u8) -> Result<&'static str, Broken> {
        if which == Which::Cancel && self.has(Bug::CancelAcceptedAnywhere) {
            state.accepted = true;
            state.cancel.place = Place::Returning(Answer::Accepted);
            return Ok("cancel accepted anywhere");
        }
        match state.view(from) {
            None => refuse(state, which, from, "refused: no address"),
            Some(to) if to == from => refuse(state, which, from, "refused: the address is the node's own"),
            Some(to) => {
                let message = state.message_mut(which);
                message.hops += 1;
                message.place = Place::Coming { to, forwarded: true };
                holds(message.hops == 1, "B9", || format!("it is forwarded again: {message:?}"))?;
                Ok("forwarded")
            }
        }
    }
}

/// A node serves a message.
fn serve(state: &mut ForwardingState, which: Which, node: u8) -> Result<&'static str, Broken> {
    let life = state.life(node);
    holds(node == OWNER && life == Life::First, "B10", || {
        format!("node {node} in its life {life:?} serves a session that it did not make")
    })?;
    match which {
        Which::Request => {
            holds(state.work == Work::NotYet, "B10", || "the request is served twice".to_owned())?;
            state.request.place = Place::AtOwner;
            let is_cancelled = std::mem::take(&mut state.early);
            state.work = if is_cancelled { Work::Signalled } else { Work::Runs };
            Ok(match state.request.hops {
                _ if is_cancelled => "request served as cancelled",
                0 => "request served at its entry",
                _ => "request served where it was forwarded",
            })
        }
        Which::Cancel => {
            state.cancel.place = Place::Returning(Answer::Accepted);
            state.accepted = true;
            Ok(match state.work {
                Work::NotYet => {
                    state.early = true;
                    "cancel accepted before the request"
                }
                Work::Runs => {
                    state.work = Work::Signalled;
                    "cancel accepted in time"
                }
                Work::Signalled | Work::Ended => "cancel accepted after the end",
            })
        }
    }
}

/// A node answers 404.
fn refuse(
    state: &mut ForwardingState,
    which: Which,
    node: u8,
    event: &'static str,
) -> Result<&'static str, Broken> {
    let is_owner = node == OWNER && state.life(node) == Life::First;
    holds(!is_owner, "B10", || "the owner refuses its own session".to_owned())?;
    state.message_mut(which).place = Place::Returning(Answer::NotFound);
    Ok(event)
}

// What is lost with a node, a connection or a view.

impl ForwardingState {
    fn suffer(&mut self, step: Step) -> &'static str {
        match step {
            Step::Dies(node) => {
                self.mishaps.deaths -= 1;
                self.live(node, Life::Dead);
                self.die(node)
            }
            Step::Restarts(node) => {
                self.live(node, Life::Second);
                "node restarts"
            }
            Step::Cut(which) => {
                self.mishaps.cuts -= 1;
                if which == Which::Request && self.client == Client::Waits {
                    self.client = Client::Leaves;
                }
                self.message_mut(which).place = Place::Returning(Answer::Lost);
                "connection cut"
            }
            Step::NewView(node, view) => {
                self.mishaps.new_views -= 1;
                if let Some(place) = self.views.get_mut(usize::from(node)) {
                    *place = view;
                }
                "new view"
            }
            _ => "",
        }
    }

    fn live(&mut self, node: u8, life: Life) {
        if let Some(place) = self.lives.get_mut(usize::from(node)) {
            *place = life;
        }
    }

    /// A dead node's work is lost, and so are the connections of the clients that entered through it.
    fn die(&mut self, node: u8) -> &'static str {
        if node == OWNER {
            self.early = false;
            self.accepted = false;
            if matches!(self.work, Work::Runs | Work::Signalled) {
                self.work = Work::Ended;
            }
        }
        let mut event = "node dies";
        for which in [Which::Request, Which::Cancel] {
            let message = self.message_mut(which);
            let is_entry = message.entry == node;
            let is_open = match message.place {
                Place::Coming { forwarded, .. } => forwarded,
                Place::AtOwner | Place::Returning(_) => true,
                Place::Unsent | Place::Answered(_) => false,
            };
            if is_entry && is_open {
                message.place = Place::Answered(Answer::Lost);
                event = "answer lost with the entry node";
                if which == Which::Request && self.client == Client::Waits {
                    self.client = Client::Leaves;
                }
            }
        }
        event
    }
}
