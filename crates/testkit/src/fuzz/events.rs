//! Any sequence of things that happen to a session, held against every invariant.

use std::collections::HashSet;
use std::time::Instant;

use super::pieces;
use crate::verify::{Class, Input, World};

/// So many things happen at most.
const INPUTS: usize = 200;

/// A byte that picks the class of dialects and whether the wire keeps its order; then each byte picks one of the things that
/// can happen.
pub(super) fn check(data: &[u8]) {
    let Some((control, picks)) = pieces::controlled(data) else { return };
    let class = Class::ALL.get(usize::from(control) % Class::ALL.len()).copied().unwrap_or(Class::Silence);
    let is_ordered = control & 4 == 0;
    let mut world = World::new(class, is_ordered, Instant::now());
    let mut happened: Vec<Input> = Vec::new();
    let mut seen = world.inspect();
    for pick in picks.iter().take(INPUTS) {
        let inputs = world.inputs(&seen);
        let Some(input) = inputs.get(usize::from(*pick) % inputs.len().max(1)) else { break };
        happened.push(*input);
        match world.apply(*input, &seen) {
            Ok(after) => seen = after,
            Err(broken) => panic!("{broken}\nin {class:?}, ordered: {is_ordered}, after {happened:#?}"),
        }
    }
    if let Err(broken) = world.check_end(&mut HashSet::new()) {
        panic!("{broken}\nin {class:?}, ordered: {is_ordered}, at the end of {happened:#?}");
    }
}
