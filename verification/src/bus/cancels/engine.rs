//! The connections to the engine, the engine's absence, and time.

use super::canceller::expires;
use super::{AWAY, Cancels, SLOW, Stage, State, Step};
use crate::bus::Bug;
use crate::bus::search::Force;
use crate::invariants::Broken;

impl Cancels {
    pub(super) fn engine_steps(&self, state: &State, steps: &mut Vec<(Step, Force)>) {
        for (node, connected) in state.connected.iter().enumerate() {
            if *connected && self.is_used(node) && state.faults.losses > 0 {
                steps.push((Step::ConnectionLost(node), Force::Free));
            }
            if !connected && !state.engine_away {
                steps.push((Step::ConnectionReturns(node), Force::Owed));
            }
        }
        if state.engine_away {
            steps.push((Step::EngineReturns, Force::Owed));
        } else if state.faults.outages > 0 {
            steps.push((Step::EngineAway, Force::Free));
        }
        // Time changes something only while a tombstone lives or a cancel is on its way.
        let counts = state.tombstones.iter().flatten().copied().any(expires)
            || state.cancellers.iter().flatten().any(|it| it.stage != Stage::Idle && it.took <= SLOW);
        let is_late = state.watches.iter().flatten().any(|it| it.behind >= AWAY && !it.is_current());
        if counts && !is_late {
            steps.push((Step::Tick, Force::Owed));
        }
    }

    pub(super) fn engine_step(&self, state: &mut State, step: Step) -> Result<&'static str, Broken> {
        match step {
            Step::ConnectionLost(node) => {
                state.faults.losses -= 1;
                let rang = self.lose(state, node)?;
                Ok(if rang { "doorbell lost" } else { "connection lost" })
            }
            Step::ConnectionReturns(node) => {
                if let Some(connected) = state.connected.get_mut(node) {
                    *connected = true;
                }
                let of_node = |of: u8| usize::from(of) == node;
                let watches = state.watches.iter_mut().flatten().filter(|watch| of_node(watch.of.node));
                watches.for_each(|watch| watch.regain_connection(self.bug));
                Ok("connection returns")
            }
            Step::EngineAway => {
                state.faults.outages -= 1;
                state.engine_away = true;
                if self.has(Bug::EngineForgets) {
                    state.tombstones = [None; super::KEYS];
                }
                for node in (0..state.connected.len()).filter(|node| self.is_used(*node)) {
                    self.lose(state, node)?;
                }
                Ok("engine away")
            }
            Step::EngineReturns => {
                state.engine_away = false;
                Ok("engine returns")
            }
            _ => Ok(pass_time(state)),
        }
    }

    /// Whether a watcher uses the connection of this node.
    fn is_used(&self, node: usize) -> bool {
        self.parts.watchers.iter().any(|watcher| usize::from(watcher.node) == node)
    }

    /// A node loses its connection. Returns whether a doorbell was on its way.
    fn lose(&self, state: &mut State, node: usize) -> Result<bool, Broken> {
        if let Some(connected) = state.connected.get_mut(node) {
            *connected = false;
        }
        let mut rang = false;
        for watch in state.watches.iter_mut().flatten() {
            if usize::from(watch.of.node) == node {
                rang |= watch.lose_connection(self.bug)?;
            }
        }
        Ok(rang)
    }
}

/// One tick.
fn pass_time(state: &mut State) -> &'static str {
    let mut event = "tick";
    for place in &mut state.tombstones {
        let Some(tombstone) = place.as_mut().filter(|tombstone| expires(**tombstone)) else { continue };
        tombstone.left -= 1;
        if tombstone.left == 0 {
            *place = None;
            event = "tombstone expires";
        }
    }
    for watch in state.watches.iter_mut().flatten().filter(|watch| !watch.is_current()) {
        watch.behind += 1;
    }
    for canceller in state.cancellers.iter_mut().flatten().filter(|it| it.stage != Stage::Idle) {
        canceller.took = canceller.took.saturating_add(1).min(SLOW + 1);
    }
    event
}
