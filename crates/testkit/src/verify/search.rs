//! Exhaustive search: every state the machine can get into, nearest first, up to a number of them.
//!
//! A state is kept as the way to it, and reached again by going it: a session is large, a step is small.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

use super::class::Class;
use super::input::Input;
use super::invariants::Broken;
use super::world::{World, number_of};

/// What a search came to.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The class, and whether the wire kept its order.
    pub class: (Class, bool),
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
    /// The class, and whether the wire kept its order.
    pub class: (Class, bool),
    /// What does not hold.
    pub broken: Broken,
    /// The inputs that lead there; there is no shorter way.
    pub way: Vec<Input>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({:?})", self.broken, self.class)?;
        for (number, input) in self.way.iter().enumerate() {
            writeln!(f, "{:>4} {input:?}", number + 1)?;
        }
        write!(f, "replay it with `search::replay` and these inputs")
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
pub fn search(class: Class, ordered: bool, most: usize) -> Result<Searched, Box<Found>> {
    let begun = Instant::now();
    let root = World::new(class, ordered, begun);
    let mut seen = HashSet::with_capacity(most);
    seen.insert(root.fingerprint(&root.inspect()));
    let (mut machine, mut ended) = (HashSet::with_capacity(most), HashSet::new());
    machine.insert(number_of(&(&root.inspect(), &root.ledger)));
    // The root is nobody's child; its input is never looked at.
    let mut nodes = vec![Node { parent: 0, depth: 0, input: Input::Time }];
    let mut next = 0;
    let mut steps = 0;
    while let Some(node) = nodes.get(next).copied() {
        if machine.len() >= most {
            break;
        }
        let way = way_to(&nodes, next);
        let found = |broken, last: Option<Input>| {
            let way = way.iter().copied().chain(last).collect();
            Box::new(Found { class: (class, ordered), broken, way })
        };
        let world = walk(&root, &way).map_err(|broken| found(broken, None))?;
        let here = world.inspect();
        for input in world.inputs(&here) {
            let mut there = world.clone();
            let view = there.apply(input, &here).map_err(|broken| found(broken, Some(input)))?;
            steps += 1;
            if seen.insert(there.fingerprint(&view)) {
                machine.insert(number_of(&(&view, &there.ledger)));
                there.check_end(&mut ended).map_err(|broken| found(broken, Some(input)))?;
                let parent = u32::try_from(next).unwrap_or(u32::MAX);
                nodes.push(Node { parent, depth: node.depth + 1, input });
            }
        }
        next += 1;
    }
    Ok(Searched {
        class: (class, ordered),
        states: machine.len(),
        nodes: nodes.len(),
        steps,
        depth: nodes.last().map_or(0, |node| node.depth.into()),
        complete: next == nodes.len(),
        took: begun.elapsed(),
    })
}

/// Goes a way again.
///
/// # Errors
/// An invariant does not hold on it.
pub fn replay(class: Class, ordered: bool, way: &[Input]) -> Result<World, Broken> {
    walk(&World::new(class, ordered, Instant::now()), way)
}

fn walk(root: &World, way: &[Input]) -> Result<World, Broken> {
    let mut world = root.clone();
    let mut here = world.inspect();
    for input in way {
        here = world.apply(*input, &here)?;
    }
    Ok(world)
}

fn way_to(nodes: &[Node], mut number: usize) -> Vec<Input> {
    let mut way = Vec::new();
    while let Some(node) = nodes.get(number).filter(|node| node.depth > 0) {
        way.push(node.input);
        number = usize::try_from(node.parent).unwrap_or_default();
    }
    way.reverse();
    way
}
