//! Which invariants are judged on each transport, and how often at least: an invariant whose subject never exists
//! holds too.

use super::{Case, Played, Wire};
use crate::coverage::ENGINES;

/// The minimum number of judgements of this invariant in a thousand runs of any protocol on this transport: a quarter
/// of the count of the protocol with the fewest.
fn least(invariant: &str, wire: Wire) -> u64 {
    let (posts, closes) = (wire.has_connections(), wire.serves_all_by_one());
    match invariant {
        "I1" => 850,
        "I2" => 95,
        "I3" => 460,
        "I4" => 950,
        "I5" => 30,
        "I6" => 230,
        "I7" => 550,
        "I9" => 6,
        "I10" => 210,
        // Posts have no order for all frames, and a closed exchange has no cancel message.
        "I12" if closes => 180,
        "I12" if posts => 640,
        "I12" => 4_000,
        "I13" => 7_300,
        "I14" => 2_600,
        "L1" => 280,
        "L3" => 470,
        // Each run ends, once (L4). Other claimed invariants need a separate line.
        _ => 1_000,
    }
}

impl Case {
    /// The invariants that the page claims for this engine, except those whose subject does not exist in its
    /// protocol.
    pub fn claimed(&self) -> impl Iterator<Item = &'static str> {
        let engine = ENGINES.iter().find(|engine| engine.name == "simulation");
        let checks = engine.map_or(&[] as &[_], |engine| engine.checks).iter().copied();
        checks.filter(|invariant| match *invariant {
            // A request has descendants if its handler may call its caller.
            "I5" => self.serves_both(),
            "I9" => self.speech.opening().is_some(),
            _ => true,
        })
    }

    /// Claimed invariants that were judged too rarely, and judged ones that are not claimed. With few runs the number
    /// of judgements is random, so only the second kind is reported.
    #[must_use]
    pub fn misjudged(&self, played: &Played) -> Vec<String> {
        let judged =
            |number: &str| played.judged.judged().find(|(it, _)| *it == number).map_or(0, |(_, often)| often);
        let floor = |number: &str| least(number, self.wire) * played.seeds / 1_000;
        let seldom = self.claimed().filter(|number| floor(number) >= 5 && judged(number) < floor(number));
        let seldom = seldom
            .map(|number| format!("{number} is judged {} times, not {}", judged(number), floor(number)));
        let is_claimed = |number| self.claimed().any(|claimed| claimed == number);
        let more = played.judged.judged().filter(|(number, _)| !is_claimed(*number));
        seldom.chain(more.map(|(number, _)| format!("{number} is judged, and not claimed"))).collect()
    }
}
