//! The fixture's counters in the form that a vector uses.

use serde_json::Value;

use crate::profile::{Witness, follow};
use crate::step::Work;

/// Reads the result of `test/stats`, or of a foreign peer's witness.
pub(crate) fn read(result: &Value, witness: Option<&Witness>) -> Work {
    let count = |path: &str| follow(result, path).and_then(Value::as_u64);
    match witness {
        None => Work {
            started: count("started"),
            finished: count("finished"),
            cancelled: count("cancelled"),
            running: count("running"),
            queued: count("queued"),
            draining: count("draining"),
            slots: count("slots"),
            unknown_cancels: count("unknown_cancels"),
            late_answers: count("late_answers"),
        },
        Some(witness) => Work {
            running: witness.running.as_deref().and_then(count),
            cancelled: witness.cancelled.as_deref().and_then(count),
            ..Work::default()
        },
    }
}

/// Returns the counts since `baseline`, without `own` echoes of the runner. Gauges are not changed, except by what
/// ran at a foreign peer before: a peer that already runs may do work for other clients or still for a vector that it
/// failed.
pub(crate) fn since(now: Work, baseline: Work, own: u64, shown: Shown) -> Work {
    let less = |now: Option<u64>, then: Option<u64>, own: u64| {
        now.map(|now| now.saturating_sub(then.unwrap_or_default()).saturating_sub(own))
    };
    Work {
        started: less(now.started, baseline.started, own),
        finished: less(now.finished, baseline.finished, own),
        cancelled: less(now.cancelled, baseline.cancelled, 0),
        unknown_cancels: less(now.unknown_cancels, baseline.unknown_cancels, 0),
        late_answers: less(now.late_answers, baseline.late_answers, 0),
        running: match shown {
            Shown::All => now.running,
            Shown::Some => less(now.running, baseline.running, 0),
        },
        ..now
    }
}

/// The first counter that differs. A foreign peer need not have all of them.
pub(crate) fn difference(wanted: Work, seen: Work, all: Shown) -> Option<String> {
    let pairs = [
        ("started", wanted.started, seen.started),
        ("finished", wanted.finished, seen.finished),
        ("cancelled", wanted.cancelled, seen.cancelled),
        ("running", wanted.running, seen.running),
        ("queued", wanted.queued, seen.queued),
        ("draining", wanted.draining, seen.draining),
        ("slots", wanted.slots, seen.slots),
        ("unknown_cancels", wanted.unknown_cancels, seen.unknown_cancels),
        ("late_answers", wanted.late_answers, seen.late_answers),
    ];
    pairs.into_iter().find_map(|(name, wanted, seen)| match (wanted?, seen) {
        (wanted, Some(seen)) if wanted == seen => None,
        (wanted, Some(seen)) => Some(format!("`{name}` should be {wanted} and is {seen}")),
        (_, None) if all == Shown::Some => None,
        (_, None) => Some(format!("`{name}` is not shown")),
    })
}

/// Which counters a subject has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// All of them.
    All,
    /// Those that its profile names.
    Some,
}
