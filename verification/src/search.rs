//! Exhaustive search: every state that the machine can reach, nearest first, up to a given number.
//!
//! A state is kept as the last step of its path, and reached again by a replay of the path, because a session is
//! large and a step is small.

use std::collections::BTreeMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use rescind_core::inspect::Inspection;

use super::dialect_class::{Class, Order};
use super::input::Input;
use super::invariants::{Broken, Tally};
use super::shutdown_oracle::Known;
use super::state::{MachineState, Numbers};
use super::trace::{TRACE, Trace};

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The class, and the kind of transport.
    pub class: (Class, Order),
    /// Distinct states of the machine alone. Each was checked against the invariants.
    pub states: usize,
    /// The same, with different ledgers counted separately.
    pub accounts: usize,
    /// The same, with different histories counted separately too, because the history limits the next inputs.
    pub nodes: usize,
    /// States of the machine in which a cascade was between two of its slices.
    pub cascading: usize,
    /// The inputs, and how often each was given.
    pub given: BTreeMap<&'static str, u64>,
    /// How often each invariant was judged.
    pub judged: Tally,
    /// The number of steps, without replays.
    pub steps: usize,
    /// Every path with this many inputs was searched. Some of the paths with one more input were searched too.
    pub depth: usize,
    /// Whether every reachable state was seen.
    pub complete: bool,
    /// The duration.
    pub took: Duration,
}

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, accounts, nodes, cascading, steps, depth, complete, .. } = self;
        let all = if *complete { "all there are" } else { "nearest first" };
        write!(
            f,
            "{states} states of the machine ({all}), {cascading} of them within a cascade; {accounts} with what it owes, in {nodes} \
             situations, {steps} inputs; every way of {depth} inputs"
        )
    }
}

/// The number of states in the beginning of a search. It is small enough to be searched again whenever the page is
/// checked. The page is stale if the result differs.
pub const BEGINNING: usize = 1_000;

impl Searched {
    /// The result of a search of [`BEGINNING`] states, for the page.
    #[must_use]
    pub fn beginning(&self) -> String {
        let Self { states, accounts, nodes, steps, .. } = self;
        format!("the first {states} with {accounts} accounts in {nodes} situations by {steps} inputs")
    }
}

/// A state that violates an invariant, and its path.
#[derive(Clone, Debug)]
pub struct Found {
    /// The violation.
    pub broken: Broken,
    /// The inputs that lead there. There is no shorter path.
    pub way: Trace,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.broken)?;
        for (number, input) in self.way.inputs.iter().enumerate() {
            writeln!(f, "{:>4} {input:?}", number + 1)?;
        }
        let test = "cargo test -p rescind-verification --test search the_requested_trace";
        write!(f, "replay it and see each step: {TRACE}='{}' {test} -- --nocapture", self.way)
    }
}

impl std::error::Error for Found {}

/// A state, as the last step of its path.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    depth: u16,
    input: Input,
    /// Whether the machine was in this state for the first time.
    is_first: bool,
}

/// Searches states, nearest first, until this many states of the machine were found or there are no more.
///
/// A visited state is identified by the machine and its ledger together, because the ledger determines what must
/// follow. Only the states of the machine are counted. Inputs that name nothing must change nothing, regardless of
/// the ledger: they are tried when the machine is in a state for the first time.
///
/// Two threads search, each a part of the next states. Their results are merged in order, so that all counts are
/// equal to those of one thread.
///
/// # Errors
/// If an invariant is violated.
pub fn search(class: Class, order: Order, most: usize) -> Result<Searched, Box<Found>> {
    let begun = Instant::now();
    let _ = Tally::taken();
    let root = MachineState::new(class, order, begun);
    let here = root.inspect();
    let (machine, account) = root.numbers(&here);
    let with_room = || Numbers::with_capacity_and_hasher(most, BuildHasherDefault::default());
    let (mut states, mut accounts, mut situations) = (with_room(), with_room(), with_room());
    let (mut given, mut cascading) = (BTreeMap::new(), 0);
    states.insert(machine);
    accounts.insert(account);
    situations.insert(root.situation(account));
    // The root has no parent. Its input is never used.
    let mut nodes = vec![Node { parent: 0, depth: 0, input: Input::Time, is_first: true }];
    let first = Passed { node: 0, world: root, seen: here };
    let mut here = Worker::from(first.clone());
    let mut beside = Worker::from(first);
    let (mut next, mut steps) = (0, 0);
    while next < nodes.len() && states.len() < most {
        let end = nodes.len().min(next + 2 * BATCH);
        let middle = next + (end - next) / 2;
        let (came, more) = thread::scope(|scope| {
            let other = scope.spawn(|| beside.look(&nodes, middle..end, &accounts));
            (here.look(&nodes, next..middle, &accounts), other.join())
        });
        let more = more.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let found = |(broken, parent, last): Violation| {
            let inputs = way_to(&nodes, parent).into_iter().chain(last).collect();
            Box::new(Found { broken, way: Trace { class, order, inputs } })
        };
        let came = came.map_err(found)?.into_iter().chain(more.map_err(found)?);
        for NodeSteps { parent, steps: of_node } in came {
            if states.len() >= most {
                break;
            }
            next += 1;
            let depth = nodes.get(place(parent)).map_or(0, |node| node.depth) + 1;
            for Step { input, machine, account, situation, is_within } in of_node {
                steps += 1;
                *given.entry(input.word()).or_default() += 1;
                if !situations.insert(situation) {
                    continue;
                }
                let is_first = states.insert(machine);
                cascading += usize::from(is_first && is_within);
                accounts.insert(account);
                nodes.push(Node { parent, depth, input, is_first });
            }
        }
    }
    let mut judged = here.judged;
    judged += beside.judged;
    Ok(Searched {
        class: (class, order),
        states: states.len(),
        accounts: accounts.len(),
        nodes: nodes.len(),
        cascading,
        given,
        judged,
        steps,
        // Nearest first: the states that are not searched yet are on the last complete level.
        depth: nodes.get(next).or(nodes.last()).map_or(0, |node| node.depth.into()),
        complete: next == nodes.len(),
        took: begun.elapsed(),
    })
}

/// How many states a thread searches before its results are merged.
const BATCH: usize = 512;

/// The data of one thread of a search.
struct Worker {
    trail: Trail,
    /// The states that are known to reach their end.
    ended: Known,
    judged: Tally,
}

/// The possible steps from one state.
struct NodeSteps {
    parent: u32,
    steps: Vec<Step>,
}

/// An input, and the hashes of the resulting state.
struct Step {
    input: Input,
    machine: u64,
    account: u64,
    situation: u64,
    /// Whether a cascade is between two slices.
    is_within: bool,
}

/// A violation, its node, and the input before it.
type Violation = (Broken, u32, Option<Input>);

impl From<Passed> for Worker {
    fn from(root: Passed) -> Self {
        Self { trail: Trail(vec![root]), ended: Known::default(), judged: Tally::default() }
    }
}

impl Worker {
    /// Applies every possible input in each of these states.
    fn look(
        &mut self,
        nodes: &[Node],
        batch: Range<usize>,
        accounts: &Numbers,
    ) -> Result<Vec<NodeSteps>, Violation> {
        let mut all = Vec::with_capacity(batch.len());
        let mut new = Numbers::default();
        for (at, node) in nodes.iter().enumerate().take(batch.end).skip(batch.start) {
            let parent = u32::try_from(at).unwrap_or(u32::MAX);
            let here = self.trail.go(nodes, parent).map_err(|broken| (broken, parent, None))?;
            let Some(Passed { world, seen, .. }) = here else { break };
            let mut steps = Vec::new();
            for input in world.inputs(seen) {
                if input.names_no_request() && !node.is_first {
                    continue;
                }
                let stumbled = |broken| (broken, parent, Some(input));
                let mut there = world.clone();
                let view = there.apply(input, seen).map_err(stumbled)?;
                let (machine, account) = there.numbers(&view);
                let situation = there.situation(account);
                if !accounts.contains(&account) && new.insert(account) {
                    there.check_end(account, &mut self.ended).map_err(stumbled)?;
                }
                steps.push(Step { input, machine, account, situation, is_within: !view.cascades.is_empty() });
            }
            all.push(NodeSteps { parent, steps });
        }
        self.judged += Tally::taken();
        Ok(all)
    }
}

/// The path to the last searched situation, with all states on it. The next path shares most of it, because
/// situations with the same parent are neighbours.
struct Trail(Vec<Passed>);

#[derive(Clone)]
struct Passed {
    node: u32,
    world: MachineState,
    seen: Inspection,
}

impl Trail {
    /// Goes to this situation: back to where the paths separate, and on from there.
    fn go(&mut self, nodes: &[Node], to: u32) -> Result<Option<&Passed>, Broken> {
        let mut ahead = Vec::new();
        let mut number = to;
        while let Some(node) = nodes.get(place(number)) {
            let shared = self.0.get(usize::from(node.depth)).is_some_and(|passed| passed.node == number);
            if shared {
                self.0.truncate(usize::from(node.depth) + 1);
                break;
            }
            ahead.push((number, node.input));
            number = node.parent;
        }
        for (number, input) in ahead.into_iter().rev() {
            let Some(last) = self.0.last() else { break };
            let mut world = last.world.clone();
            let seen = world.apply(input, &last.seen)?;
            self.0.push(Passed { node: number, world, seen });
        }
        Ok(self.0.last())
    }
}

/// Replays a path. `tell` gets each input and the content of the session after it.
///
/// # Errors
/// If an invariant is violated on it.
pub fn replay(way: &Trace, mut tell: impl FnMut(Input, &Inspection)) -> Result<MachineState, Broken> {
    let mut world = MachineState::new(way.class, way.order, Instant::now());
    let mut here = world.inspect();
    for input in &way.inputs {
        here = world.apply(*input, &here)?;
        tell(*input, &here);
    }
    Ok(world)
}

fn way_to(nodes: &[Node], mut number: u32) -> Vec<Input> {
    let mut way = Vec::new();
    while let Some(node) = nodes.get(place(number)).filter(|node| node.depth > 0) {
        way.push(node.input);
        number = node.parent;
    }
    way.reverse();
    way
}

fn place(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
