//! What is judged on each wire, and how often at least: an invariant whose subject never is there holds too.

use super::{Case, Played, Wire};
use crate::coverage::ENGINES;

/// Of a thousand runs of any protocol on this wire, how often this invariant is judged at least: a quarter of what was counted, of the
/// protocol that has the fewest.
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
        // Posts have no order that every frame could be held against, and what is closed has no cancel.
        "I12" if closes => 180,
        "I12" if posts => 640,
        "I12" => 4_000,
        "I13" => 7_300,
        "I14" => 2_600,
        "L1" => 280,
        "L3" => 470,
        // Each run ends, once (L4). What else is claimed wants a line of its own.
        _ => 1_000,
    }
}

impl Case {
    /// The invariants that the page says are checked here, but for those whose subject its protocol does not have.
    pub fn claimed(&self) -> impl Iterator<Item = &'static str> {
        let engine = ENGINES.iter().find(|engine| engine.name == "simulation");
        let checks = engine.map_or(&[] as &[_], |engine| engine.checks).iter().copied();
        checks.filter(|invariant| match *invariant {
            // A request has descendants where its handler may ask its caller.
            "I5" => self.serves_both(),
            "I9" => self.speech.opening().is_some(),
            _ => true,
        })
    }

    /// What is claimed and was judged too seldom, and what was judged and is not claimed. Where few runs are asked for it is luck how
    /// often something is judged, and only the second is said.
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
