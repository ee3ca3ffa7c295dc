//! Exhaustive search: every state the machine can get into, nearest first, up to a number of them.
//!
//! A state is kept as the last step of the way to it, and reached again by going it: a session is large, a step is small.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use rescind_core::inspect::Inspection;

use super::class::{Class, Order};
use super::input::Input;
use super::invariants::Broken;
use super::number::Numbers;
use super::shutdown_oracle::Known;
use super::state::MachineState;
use super::tally::Tally;
use super::trace::{TRACE, Trace};

/// What a search came to.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The class, and the kind of wire.
    pub class: (Class, Order),
    /// Distinct states of the machine alone. Each was held against the invariants.
    pub states: usize,
    /// The same with the account of what it owes told apart.
    pub accounts: usize,
    /// The same with what was done before told apart too, as it bounds what can be done next.
    pub nodes: usize,
    /// States of the machine in which a cascade stood between two of its slices.
    pub cascading: usize,
    /// What was given, and how often.
    pub given: BTreeMap<&'static str, u64>,
    /// How often each invariant was judged.
    pub judged: Tally,
    /// Steps taken to find them, replays left out.
    pub steps: usize,
    /// Every way of so many inputs was gone. Some of the ways of one more were, too.
    pub depth: usize,
    /// Every state that can be reached was seen.
    pub complete: bool,
    /// So long it took.
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

/// States of the machine in the beginning of a search. It is small enough to be searched again wherever the page is looked at, and the
/// page is stale if it comes to something else.
pub const BEGINNING: usize = 1_000;

impl Searched {
    /// What a search of [`BEGINNING`] came to, for the page.
    #[must_use]
    pub fn beginning(&self) -> String {
        let Self { states, accounts, nodes, steps, .. } = self;
        format!("the first {states} with {accounts} accounts in {nodes} situations by {steps} inputs")
    }
}

/// A state in which an invariant does not hold, and the way to it.
#[derive(Clone, Debug)]
pub struct Found {
    /// What does not hold.
    pub broken: Broken,
    /// The inputs that lead there; there is no shorter way.
    pub way: Trace,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.broken)?;
        for (number, input) in self.way.inputs.iter().enumerate() {
            writeln!(f, "{:>4} {input:?}", number + 1)?;
        }
        let test = "cargo test -p rescind-verification --test search the_trace";
        write!(f, "replay it and see each step: {TRACE}='{}' {test} -- --nocapture", self.way)
    }
}

impl std::error::Error for Found {}

/// A state, by the last step of the way to it.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    depth: u16,
    input: Input,
    /// The machine was in this state for the first time.
    is_first: bool,
}

/// Looks at states, nearest first, until there are so many of the machine or no more.
///
/// What was visited is told by the machine and the account of it together, as the account says what has to come next; what is counted is
/// the machine alone. What names nothing must change nothing, whatever the account: it is tried where the machine is in a state for the
/// first time.
///
/// Two threads look, each at a stretch of what comes next; what they saw is put together in order, so that all counts are those of one.
///
/// # Errors
/// An invariant does not hold.
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
    // The root is nobody's child; its input is never looked at.
    let mut nodes = vec![Node { parent: 0, depth: 0, input: Input::Time, is_first: true }];
    let first = Passed { node: 0, world: root, seen: here };
    let mut here = Looking::from(first.clone());
    let mut beside = Looking::from(first);
    let (mut next, mut steps) = (0, 0);
    while next < nodes.len() && states.len() < most {
        let end = nodes.len().min(next + 2 * STRETCH);
        let middle = next + (end - next) / 2;
        let (came, more) = thread::scope(|scope| {
            let other = scope.spawn(|| beside.look(&nodes, middle..end, &accounts));
            (here.look(&nodes, next..middle, &accounts), other.join())
        });
        let more = more.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let found = |(broken, parent, last): Stumbled| {
            let inputs = way_to(&nodes, parent).into_iter().chain(last).collect();
            Box::new(Found { broken, way: Trace { class, order, inputs } })
        };
        let came = came.map_err(found)?.into_iter().chain(more.map_err(found)?);
        for Came { parent, steps: of_node } in came {
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
        // Nearest first: what has not been looked at yet stands on the last level that was found whole.
        depth: nodes.get(next).or(nodes.last()).map_or(0, |node| node.depth.into()),
        complete: next == nodes.len(),
        took: begun.elapsed(),
    })
}

/// So many states a thread looks at before what it saw is put together with the rest.
const STRETCH: usize = 512;

/// What one thread has of a search.
struct Looking {
    trail: Trail,
    /// What is known to come to its end.
    ended: Known,
    judged: Tally,
}

/// What can be done in one state.
struct Came {
    parent: u32,
    steps: Vec<Step>,
}

/// An input, and the numbers of what it led to.
struct Step {
    input: Input,
    machine: u64,
    account: u64,
    situation: u64,
    /// Between two slices of a cascade.
    is_within: bool,
}

/// What does not hold: where, and behind which input.
type Stumbled = (Broken, u32, Option<Input>);

impl From<Passed> for Looking {
    fn from(root: Passed) -> Self {
        Self { trail: Trail(vec![root]), ended: Known::default(), judged: Tally::default() }
    }
}

impl Looking {
    /// Does all that can be done in each of these states.
    fn look(
        &mut self,
        nodes: &[Node],
        stretch: Range<usize>,
        accounts: &Numbers,
    ) -> Result<Vec<Came>, Stumbled> {
        let mut all = Vec::with_capacity(stretch.len());
        let mut new = Numbers::default();
        for (at, node) in nodes.iter().enumerate().take(stretch.end).skip(stretch.start) {
            let parent = u32::try_from(at).unwrap_or(u32::MAX);
            let here = self.trail.go(nodes, parent).map_err(|broken| (broken, parent, None))?;
            let Some(Passed { world, seen, .. }) = here else { break };
            let mut steps = Vec::new();
            for input in world.inputs(seen) {
                if input.names_nothing() && !node.is_first {
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
            all.push(Came { parent, steps });
        }
        self.judged += Tally::taken();
        Ok(all)
    }
}

/// The way to the situation that was looked at last, with all it came by. The next one shares most of it: nearest first, those of one
/// parent stand side by side.
struct Trail(Vec<Passed>);

#[derive(Clone)]
struct Passed {
    node: u32,
    world: MachineState,
    seen: Inspection,
}

impl Trail {
    /// Goes to this situation: back to where the ways part, and on from there.
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

/// Goes a way again; `tell` hears of each input and of what the session holds behind it.
///
/// # Errors
/// An invariant does not hold on it.
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
