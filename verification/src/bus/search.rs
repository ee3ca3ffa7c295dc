//! The search through all interleavings of a small model, nearest first.
//!
//! A step is either *owed* or *free*. Owed steps happen in the end if nothing prevents them: a reply arrives, a
//! connection is opened again, time passes. Free steps may never happen: a cancel, the end of a request, a fault. A
//! state without owed steps is *at rest*. If no path of owed steps is endless, then every fair run comes to rest, and
//! "it happens in the end" is the same as "it has happened in every state at rest". So the search checks both.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::invariants::{Broken, Tally, holds};

/// Whether a step happens in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Force {
    /// It happens in the end, unless another step makes it impossible.
    Owed,
    /// It may happen or not.
    Free,
}

/// A model that can be searched.
pub(super) trait Model {
    /// Everything that distinguishes two situations.
    type State: Clone + Debug + Eq + Hash;
    /// One atomic step of one of the parts.
    type Step: Copy + Debug;

    /// The states in which a run may begin.
    fn starts(&self) -> Vec<Self::State>;

    /// The steps that are possible in a state.
    fn steps(&self, state: &Self::State) -> Vec<(Step<Self>, Force)>;

    /// The state after a step, and what happened in it, as one of the model's words.
    ///
    /// # Errors
    /// If the step violates a property.
    fn apply(&self, state: &Self::State, step: Self::Step) -> Result<(Self::State, &'static str), Broken>;

    /// Judges a state in which nothing is owed.
    ///
    /// # Errors
    /// If the state violates a property.
    fn check_rest(&self, state: &Self::State) -> Result<(), Broken>;
}

type Step<M> = <M as Model>::Step;

/// The result of a search of all reachable states.
#[derive(Clone, Debug)]
pub struct Searched {
    /// Distinct states.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// The states at rest.
    pub rests: usize,
    /// The longest shortest path to a state.
    pub depth: usize,
    /// What happened in the steps, and how often.
    pub events: BTreeMap<&'static str, u64>,
    /// How often each property was judged.
    pub judged: Tally,
    /// The duration.
    pub took: Duration,
}

impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, rests, depth, .. } = self;
        write!(f, "{states} states (all there are), {rests} of them at rest, {steps} steps, {depth} deep")
    }
}

/// A violated property, and the path there.
#[derive(Clone, Debug)]
pub struct Found {
    /// The violation.
    pub broken: Broken,
    /// The steps that lead there. There is no shorter path, except for a run that never comes to rest.
    pub path: Vec<String>,
    /// The last state on it that was reached.
    pub state: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.broken)?;
        self.path
            .iter()
            .enumerate()
            .try_for_each(|(number, step)| write!(f, "\n{:>4} {step}", number + 1))?;
        write!(f, "\n{}", self.state)
    }
}

impl std::error::Error for Found {}

/// How a state was reached first.
#[derive(Debug)]
struct Node<S> {
    parent: usize,
    depth: usize,
    /// The first states have none.
    step: Option<S>,
}

/// Searches every state that can be reached.
///
/// # Errors
/// If a property is violated.
pub(super) fn search<M: Model>(model: &M) -> Result<Searched, Box<Found>> {
    let begun = Instant::now();
    let _ = Tally::taken();
    let mut known: HashMap<M::State, usize> = HashMap::new();
    let mut nodes: Vec<Node<M::Step>> = Vec::new();
    let mut ahead = VecDeque::new();
    for state in model.starts() {
        if known.insert(state.clone(), nodes.len()).is_none() {
            ahead.push_back((nodes.len(), state));
            nodes.push(Node { parent: nodes.len(), depth: 0, step: None });
        }
    }
    let (mut steps, mut rests, mut events, mut owed) = (0, 0, BTreeMap::new(), Vec::new());
    while let Some((here, state)) = ahead.pop_front() {
        let found = |broken, nodes: &[Node<M::Step>], last| {
            Box::new(Found { broken, path: path_to(nodes, here, last), state: format!("{state:?}") })
        };
        let possible = model.steps(&state);
        if possible.iter().all(|(_, force)| *force == Force::Free) {
            rests += 1;
            model.check_rest(&state).map_err(|broken| found(broken, &nodes, None))?;
        }
        let depth = nodes.get(here).map_or(0, |node| node.depth) + 1;
        for (step, force) in possible {
            let next = model.apply(&state, step);
            let (next, event) = next.map_err(|broken| found(broken, &nodes, Some(step)))?;
            steps += 1;
            *events.entry(event).or_default() += 1;
            let there = known.get(&next).copied().unwrap_or_else(|| {
                let there = nodes.len();
                known.insert(next.clone(), there);
                ahead.push_back((there, next));
                nodes.push(Node { parent: here, depth, step: Some(step) });
                there
            });
            if force == Force::Owed {
                owed.push((here, there));
            }
        }
    }
    let endless = on_a_cycle(nodes.len(), &owed);
    let what = || "steps that are owed lead back to the state before them".to_owned();
    holds(endless.is_none(), "B12", what).map_err(|broken| {
        let path = path_to(&nodes, endless.unwrap_or(0), None);
        Box::new(Found { broken, path, state: String::new() })
    })?;
    let depth = nodes.last().map_or(0, |node| node.depth);
    let judged = Tally::taken();
    Ok(Searched { states: nodes.len(), steps, rests, depth, events, judged, took: begun.elapsed() })
}

/// A state to which a path of these steps leads back, if there is one. States without such steps are removed until none
/// is left, or each that is left has a step to another. A walk through those comes to one of them again.
fn on_a_cycle(states: usize, steps: &[(usize, usize)]) -> Option<usize> {
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); states];
    let mut out = vec![0_usize; states];
    for (from, to) in steps {
        if let (Some(before), Some(out)) = (before.get_mut(*to), out.get_mut(*from)) {
            before.push(*from);
            *out += 1;
        }
    }
    let mut ended: Vec<usize> = (0..states).filter(|state| out.get(*state) == Some(&0)).collect();
    while let Some(state) = ended.pop() {
        for from in before.get(state).into_iter().flatten() {
            if let Some(out) = out.get_mut(*from) {
                *out -= 1;
                if *out == 0 {
                    ended.push(*from);
                }
            }
        }
    }
    let is_left = |state: usize| out.get(state).is_some_and(|out| *out > 0);
    let mut here = (0..states).find(|state| is_left(*state))?;
    let mut after: HashMap<usize, usize> = HashMap::new();
    after.extend(steps.iter().filter(|(from, to)| is_left(*from) && is_left(*to)).copied());
    let mut passed = HashSet::new();
    while passed.insert(here) {
        here = *after.get(&here)?;
    }
    Some(here)
}

/// The steps to a state, and one after it.
fn path_to<S: Copy + Debug>(nodes: &[Node<S>], mut here: usize, last: Option<S>) -> Vec<String> {
    let mut path: Vec<String> = last.iter().map(|step| format!("{step:?}")).collect();
    while let Some(Node { parent, step: Some(step), .. }) = nodes.get(here) {
        path.push(format!("{step:?}"));
        here = *parent;
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::on_a_cycle;

    #[test]
    fn a_cycle_is_found_and_a_tree_is_not_one() {
        assert_eq!(on_a_cycle(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]), None);
        assert_eq!(on_a_cycle(4, &[(0, 1), (1, 2), (2, 1), (2, 3)]), Some(1));
        assert_eq!(on_a_cycle(2, &[(0, 1), (1, 1)]), Some(1));
        assert_eq!(on_a_cycle(3, &[]), None);
    }
}
