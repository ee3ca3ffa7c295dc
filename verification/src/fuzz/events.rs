//! Any sequence of inputs of a session, checked against every invariant.

use std::time::Instant;

use super::pieces;
use crate::search::Found;
use crate::{Class, MachineState, Order, Trace};

/// The most inputs.
const INPUTS: usize = 200;

/// The first byte selects the class of dialects and whether the transport keeps the order. Each further byte selects
/// one of the possible inputs.
pub(super) fn check(data: &[u8]) {
    let Some((control, picks)) = pieces::controlled(data) else { return };
    let class = Class::ALL.get(usize::from(control) % Class::ALL.len()).copied().unwrap_or(Class::Silence);
    let orders = class.orders();
    let order =
        orders.get(usize::from(control & 4) / 4).or(orders.first()).copied().unwrap_or(Order::Ordered);
    let mut world = MachineState::new(class, order, Instant::now());
    let mut way = Trace { class, order, inputs: Vec::new() };
    let mut seen = world.inspect();
    for pick in picks.iter().take(INPUTS) {
        let inputs = world.inputs(&seen);
        let Some(input) = inputs.get(usize::from(*pick) % inputs.len().max(1)) else { break };
        way.inputs.push(*input);
        match world.apply(*input, &seen) {
            Ok(after) => seen = after,
            Err(broken) => panic!("{}", Found { broken, way }),
        }
    }
    if let Err(broken) = world.ends() {
        panic!("at the end: {}", Found { broken, way });
    }
}
