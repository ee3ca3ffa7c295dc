//! Facts that exclude each other. Two probes may look at different requests or at different times, and a witness may be
//! wrong. Then the fact that is known less directly is `unsure`, so that no report says both.

use rescind_testkit::Answer::{self, No, Yes};
use rescind_testkit::Fact;

/// Two answers of which one must be wrong: what the frames show, and what gives way.
type Exclusion = ((&'static str, Answer), (&'static str, Answer));

const TABLE: [Exclusion; 7] = [
    // A request that ran to its normal end was not stopped, was answered, and not as cancelled.
    (("cancels_running", No), ("stops_work", Yes)),
    (("cancels_running", No), ("stays_silent", Yes)),
    (("cancels_running", No), ("cancelled_code", Yes)),
    (("cancels_running", No), ("cancelled_code", No)),
    (("cancels_running", No), ("cancels_id_zero", Yes)),
    (("answers_cancelled", No), ("cancelled_code", Yes)),
    (("session_survives", No), ("frees_slot", Yes)),
];

/// The pairs of facts that exclude each other, by their names. `facts`: their names and answers.
#[must_use]
pub fn contradictions(facts: &[(&str, Answer)]) -> Vec<(&'static str, &'static str)> {
    let holds = |one: (&'static str, Answer)| facts.contains(&one);
    let both = TABLE.iter().filter(|(sure, other)| holds(*sure) && holds(*other));
    both.map(|((sure, _), (other, _))| (*sure, *other)).collect()
}

/// The detail of a fact that gave way begins so.
pub const CONTRADICTS: &str = "it contradicts another fact";

/// Makes the weaker fact of each contradiction `unsure`.
pub(super) fn resolve(facts: &mut [Fact]) {
    let answers: Vec<(&str, Answer)> = facts.iter().map(|fact| (fact.name, fact.answer)).collect();
    for (sure, other) in contradictions(&answers) {
        let found = facts.iter().find(|fact| fact.name == sure);
        let said = found.map_or_else(String::new, |fact| format!("{}: no, {}", fact.statement, fact.detail));
        if let Some(fact) = facts.iter_mut().find(|fact| fact.name == other) {
            fact.answer = Answer::Unsure;
            fact.detail = format!("{CONTRADICTS} ({said}): {}", fact.detail);
            fact.evidence.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use rescind_testkit::Demand;

    use super::*;
    use crate::peer::statements::Question;

    #[test]
    fn the_fact_that_is_known_less_directly_gives_way() {
        let fact = |name, answer| Fact::new(name, name, answer, Demand::Open);
        let mut facts = [fact("cancels_running", No), fact("stops_work", Yes), fact("frees_slot", Yes)];
        resolve(&mut facts);
        assert_eq!(facts.each_ref().map(|fact| fact.answer), [No, Answer::Unsure, Yes]);
        let [_, stops_work, _] = &facts;
        assert!(stops_work.detail.starts_with(CONTRADICTS), "{}", stops_work.detail);
        let answers: Vec<_> = facts.iter().map(|fact| (fact.name, fact.answer)).collect();
        assert_eq!(contradictions(&answers), []);

        let mut facts = [fact("cancels_running", Yes), fact("stops_work", Yes)];
        resolve(&mut facts);
        assert!(facts.iter().all(|fact| fact.answer == Yes));
    }

    #[test]
    fn the_table_names_facts_that_there_are() {
        let known: Vec<_> = Question::ALL.into_iter().map(|question| question.asked("mcp").name).collect();
        for ((sure, _), (other, _)) in TABLE {
            assert!(known.contains(&sure) && known.contains(&other), "{sure}, {other}");
        }
    }
}
