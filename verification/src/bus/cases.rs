//! The cases that are searched: who takes part, and how often each fault may happen.

use super::Bug;
use super::cancels::{self, Cancels, Faults, Parts, Watcher};
use super::forwarding::{self, Forwarding, Mishaps};
use super::search::{Found, Searched, search};
use Size::{Large, Small};

/// One search.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name on the page.
    pub name: &'static str,
    /// Which builds search it.
    pub size: Size,
    model: Kind,
}

/// How large a case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Every build searches it.
    Small,
    /// Only optimised builds search it. `.ci/verify` runs one.
    Large,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Cancels(Parts),
    Forwarding(Mishaps),
}

const fn watcher(key: u8, node: u8) -> Watcher {
    Watcher { key, node, after: None }
}

const fn faults(losses: u8, outages: u8, failures: u8) -> Faults {
    Faults { losses, outages, failures }
}

const fn mishaps(deaths: u8, cuts: u8, new_views: u8) -> Mishaps {
    Mishaps { deaths, cuts, new_views }
}

const ONE: &[Watcher] = &[watcher(0, 0)];
const TWO_KEYS: &[Watcher] = &[watcher(0, 0), watcher(1, 0)];
const TWO_NODES: &[Watcher] = &[watcher(0, 0), watcher(0, 1)];
const ONE_AFTER_THE_OTHER: &[Watcher] = &[watcher(0, 0), Watcher { key: 1, node: 0, after: Some(0) }];

const fn cancels(
    name: &'static str,
    size: Size,
    watchers: &'static [Watcher],
    cancels: &'static [u8],
    faults: Faults,
) -> Case {
    Case { name, size, model: Kind::Cancels(Parts { watchers, cancels, faults }) }
}

const fn forwarding(name: &'static str, size: Size, mishaps: Mishaps) -> Case {
    Case { name, size, model: Kind::Forwarding(mishaps) }
}

/// Every case.
pub const CASES: &[Case] = &[
    cancels("a slot used twice, two cancels", Small, ONE_AFTER_THE_OTHER, &[2], faults(1, 0, 0)),
    cancels("one request, two cancellers", Small, ONE, &[1, 1], faults(1, 1, 1)),
    cancels("two requests on one connection, two cancels", Small, TWO_KEYS, &[2], faults(1, 0, 0)),
    cancels("one key watched on two nodes", Small, TWO_NODES, &[1], faults(1, 1, 1)),
    forwarding("a request and its cancel, lost connections", Small, mishaps(0, 1, 1)),
    forwarding("a request and its cancel, dead nodes", Small, mishaps(1, 0, 0)),
    cancels("a slot used twice, two cancellers", Large, ONE_AFTER_THE_OTHER, &[1, 1], faults(1, 1, 0)),
    cancels("one request, three cancels", Large, ONE, &[2, 1], faults(2, 1, 1)),
    cancels("two requests on one connection, two cancellers", Large, TWO_KEYS, &[1, 1], faults(1, 0, 0)),
    cancels("one key watched on two nodes, two cancellers", Large, TWO_NODES, &[1, 1], faults(1, 0, 0)),
    forwarding("a request and its cancel, every fault", Large, mishaps(1, 1, 1)),
];

/// All that can happen in a step of the models.
pub const EVENTS: [&[&str]; 2] = [cancels::EVENTS, forwarding::EVENTS];

impl Case {
    /// Whether the bug is in the code of this case.
    #[must_use]
    pub fn has(&self, bug: Bug) -> bool {
        let is_of_forwarding = matches!(bug.breaks(), "B9" | "B10" | "B11");
        match self.model {
            Kind::Cancels(_) => !is_of_forwarding,
            Kind::Forwarding(_) => is_of_forwarding,
        }
    }

    /// Searches every state of the case, with a bug if one is planted.
    ///
    /// # Errors
    /// If a property is violated.
    pub fn search(&self, bug: Option<Bug>) -> Result<Searched, Box<Found>> {
        match self.model {
            Kind::Cancels(parts) => search(&Cancels { parts, bug }),
            Kind::Forwarding(mishaps) => search(&Forwarding { mishaps, bug }),
        }
    }
}
