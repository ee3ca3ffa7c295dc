//! Exhaustive search of the machine, a class of dialects and a kind of wire each (VERIFICATION: "exhaustive search").
#![expect(clippy::expect_used, reason = "what the tests share is part of them")]

use rescind_testkit::verify::search::search;
use rescind_testkit::verify::{Class, page};

/// States asked of each search: in release what the design asks for, else what fits into a test run.
const STATES: usize = if cfg!(debug_assertions) { 4_000 } else { 1_000_000 };

fn every_state_holds(class: Class, ordered: bool) {
    match search(class, ordered, STATES) {
        Ok(searched) => {
            let what = format!("{class:?}, {}", if ordered { "ordered" } else { "unordered" });
            println!("{searched}, {:.1} s", searched.took.as_secs_f32());
            page::reached("search", &what, &searched.to_string()).expect("the page can be written");
            assert!(searched.states >= STATES, "there are more states than were seen: {searched}");
        }
        Err(found) => panic!("{found}"),
    }
}

macro_rules! searches {
    ($($name:ident: $class:ident, $ordered:literal;)*) => {
        $(
            #[test]
            fn $name() {
                every_state_holds(Class::$class, $ordered);
            }
        )*
    };
}

searches! {
    answer_owed_in_order: AnswerOwed, true;
    answer_owed_without_order: AnswerOwed, false;
    silence_in_order: Silence, true;
    silence_without_order: Silence, false;
    acknowledged_in_order: Acknowledged, true;
    acknowledged_without_order: Acknowledged, false;
    gated_in_order: Gated, true;
    gated_without_order: Gated, false;
}
