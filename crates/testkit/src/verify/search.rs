//! Exhaustive search: every state the machine can get into, nearest first, up to a number of them.
//!
//! A state is kept as the last step of the way to it, and reached again by going it: a session is large, a step is small.

use std::fmt;
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use rescind_core::inspect::Inspection;

use super::class::{Class, Order};
use super::input::Input;
use super::invariants::Broken;
use super::number::Numbers;
use super::way::{WAY, Way};
use super::world::World;

/// What a search came to.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The class, and the kind of wire.
    pub class: (Class, Order),
    /// Distinct states of the machine, and of the account of what it owes. Each was held against the invariants.
    pub states: usize,
    /// The same with what was done before told apart, as it bounds what can be done next.
    pub nodes: usize,
    /// Steps taken to find them, replays left out.
    pub steps: usize,
    /// The most inputs to one of them.
    pub depth: usize,
    /// Every state that can be reached was seen.
    pub complete: bool,
    /// So long it took.
    pub took: Duration,
}

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class: _, states, nodes, steps, depth, complete, took: _ } = self;
        let all = if *complete { "all there are" } else { "nearest first" };
        write!(
            f,
            "{states} states of the machine and of what it owes ({all}) in {nodes} situations, {steps} inputs, depth {depth}"
        )
    }
}

/// A state in which an invariant does not hold, and the way to it.
#[derive(Clone, Debug)]
pub struct Found {
    /// What does not hold.
    pub broken: Broken,
    /// The inputs that lead there; there is no shorter way.
    pub way: Way,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.broken)?;
        for (number, input) in self.way.inputs.iter().enumerate() {
            writeln!(f, "{:>4} {input:?}", number + 1)?;
        }
        let test = "cargo test -p rescind-integration-tests --test search the_way";
        write!(f, "go it again, and see each step: {WAY}='{}' {test} -- --nocapture", self.way)
    }
}

impl std::error::Error for Found {}

/// A state, by the last step of the way to it.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    depth: u16,
    input: Input,
}

/// Looks at states, nearest first, until there are so many or no more.
///
/// # Errors
/// An invariant does not hold.
pub fn search(class: Class, order: Order, most: usize) -> Result<Searched, Box<Found>> {
    let begun = Instant::now();
    let root = World::new(class, order, begun);
    let here = root.inspect();
    let first = root.number(&here);
    let mut states = Numbers::with_capacity_and_hasher(most, BuildHasherDefault::default());
    let mut situations = Numbers::with_capacity_and_hasher(most, BuildHasherDefault::default());
    let mut ended = Numbers::default();
    states.insert(first);
    situations.insert(root.situation(first));
    // The root is nobody's child; its input is never looked at.
    let mut nodes = vec![Node { parent: 0, depth: 0, input: Input::Time }];
    let mut trail = Trail(vec![Passed { node: 0, world: root, seen: here }]);
    let mut next = 0;
    let mut steps = 0;
    while let Some(node) = nodes.get(next).copied() {
        if states.len() >= most {
            break;
        }
        let parent = u32::try_from(next).unwrap_or(u32::MAX);
        let found = |broken, last: Option<Input>| {
            let inputs = way_to(&nodes, parent).into_iter().chain(last).collect();
            Box::new(Found { broken, way: Way { class, order, inputs } })
        };
        let Some(Passed { world, seen, .. }) =
            trail.go(&nodes, parent).map_err(|broken| found(broken, None))?
        else {
            break;
        };
        let mut fresh = Vec::new();
        for input in world.inputs(seen) {
            let mut there = world.clone();
            let view = there.apply(input, seen).map_err(|broken| found(broken, Some(input)))?;
            steps += 1;
            let number = there.number(&view);
            if situations.insert(there.situation(number)) {
                fresh.push(Node { parent, depth: node.depth + 1, input });
                if states.insert(number) {
                    there.check_end(view, number, &mut ended).map_err(|broken| found(broken, Some(input)))?;
                }
            }
        }
        nodes.append(&mut fresh);
        next += 1;
    }
    Ok(Searched {
        class: (class, order),
        states: states.len(),
        nodes: nodes.len(),
        steps,
        depth: nodes.last().map_or(0, |node| node.depth.into()),
        complete: next == nodes.len(),
        took: begun.elapsed(),
    })
}

/// The way to the situation that was looked at last, with all it came by. The next one shares most of it: nearest first, those of one
/// parent stand side by side.
struct Trail(Vec<Passed>);

struct Passed {
    node: u32,
    world: World,
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
pub fn replay(way: &Way, mut tell: impl FnMut(Input, &Inspection)) -> Result<World, Broken> {
    let mut world = World::new(way.class, way.order, Instant::now());
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
