//! The facts that one run shows: whether a cancel is sent, and how the program continues after it.

use std::time::Duration;

use rescind_testkit::Answer;

use super::record::{Asked, Ending, Event, Play, Record};
use super::server_dialect::{CancelForm, ServerDialect};

/// The answer that one run gives to a question.
pub(super) struct Look {
    pub(super) answer: Answer,
    pub(super) detail: String,
    pub(super) cancel_us: Vec<u64>,
}

impl Look {
    fn new(answer: Answer, detail: impl Into<String>) -> Self {
        Self { answer, detail: detail.into(), cancel_us: Vec::new() }
    }

    pub(super) fn yes(detail: impl Into<String>) -> Self {
        Self::new(Answer::Yes, detail)
    }

    pub(super) fn no(detail: impl Into<String>) -> Self {
        Self::new(Answer::No, detail)
    }

    pub(super) fn unsure(detail: impl Into<String>) -> Self {
        Self::new(Answer::Unsure, detail)
    }

    pub(super) fn not_asked(detail: impl Into<String>) -> Self {
        Self::new(Answer::NotAsked, detail)
    }

    fn timed(mut self, time: Duration) -> Self {
        self.cancel_us.extend(u64::try_from(time.as_micros()));
        self
    }
}

/// The slow request of a run, or why there is none.
pub(super) fn slow_of(record: &Record) -> Result<Asked<'_>, Look> {
    if record.is_skipped() {
        return Err(Look::not_asked(format!("the program skips the scenario `{}`", record.play.scenario())));
    }
    record.slow().next().ok_or_else(|| {
        let made = record.methods().join(", ");
        let scenario = record.play.scenario();
        Look::not_asked(format!(
            "in the scenario `{scenario}` the program did not make the slow request; it made: {made}; {}",
            record.ending()
        ))
    })
}

pub(super) fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1_000.0)
}

pub(super) fn sends_cancel(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let slow = match slow_of(record) {
        Ok(slow) => slow,
        Err(look) => return look,
    };
    let any = record.position(|event| matches!(event, Event::Cancel(..)));
    let first = record.cancels_of(slow).first().copied().or(any);
    if let Some(at) = first {
        let how = match record.entries.get(at).map(|entry| &entry.event) {
            Some(Event::Cancel(CancelForm::OfSession(_), _)) => " by `session/cancel`",
            Some(Event::StreamClosed(_)) => " by closing its stream",
            _ => "",
        };
        return Look::yes(format!("{} after the request{how}", millis(record.between(slow.index, at))));
    }
    let went_on = record.quick().is_some_and(|quick| record.answered(slow.id).is_none_or(|at| quick < at));
    Look::no(if went_on {
        "no cancel came, and the program went on without one"
    } else {
        "no cancel came while the request was open"
    })
}

pub(super) fn goes_on(server: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let slow = match slow_of(record) {
        Ok(slow) => slow,
        Err(look) => return look,
    };
    let Some(cancel) = record.cancels_of(slow).first().copied() else {
        return Look::not_asked("it sent no cancel for the request");
    };
    let (from, what) = if server.owes_silence() {
        (cancel, "its cancel, to which no answer is due")
    } else {
        (record.answered(slow.id).unwrap_or(cancel), "the cancelled answer")
    };
    match record.request_after(cancel) {
        Some(next) => {
            let took = record.between(from, next);
            Look::yes(format!("its next request came {} after {what}", millis(took))).timed(took)
        }
        None => Look::no(format!("no next request came after {what}; {}", record.ending())),
    }
}

pub(super) fn late_answer(_: ServerDialect, record: &Record, all: &[Record]) -> Look {
    let slow = match slow_of(record) {
        Ok(slow) => slow,
        Err(look) => return look,
    };
    let Some(cancel) = record.cancels_of(slow).first().copied() else {
        return Look::not_asked("it sent no cancel for the request");
    };
    let Some(answer) = record.answered(slow.id).filter(|answer| *answer > cancel) else {
        return Look::not_asked(format!("the program was gone before the answer; {}", record.ending()));
    };
    let quick = record.requests(super::server_dialect::Role::Quick).next();
    let matched = quick.is_some_and(|quick| record.answered(quick.id).is_some());
    if matched && record.exited_well() {
        let late = millis(record.between(cancel, answer));
        return Look::yes(format!("the answer came {late} after the cancel; the next request was answered"));
    }
    let plain = all.iter().find(|other| other.play == Play::Cancelled);
    if plain.is_none_or(|plain| !plain.exited_well() || plain.quick().is_none()) {
        return Look::unsure(format!(
            "the program does not end well without a late answer either; {}",
            record.ending()
        ));
    }
    Look::no(format!("after the answer {}", record.ending()))
}

/// From here on a frame that came later was sent later, on a transport that does not keep the order.
const CLEARLY_LATER: Duration = Duration::from_millis(50);

pub(super) fn no_cancel_when_answered(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let slow = match slow_of(record) {
        Ok(slow) => slow,
        Err(look) => return look,
    };
    let Some(answer) = record.answered(slow.id) else {
        return Look::not_asked(format!("the program was gone before the answer; {}", record.ending()));
    };
    let Some(quick) = record.quick() else {
        return Look::not_asked(format!("no next request came after the answer; {}", record.ending()));
    };
    match record.cancels_of(slow).into_iter().find(|cancel| *cancel > answer) {
        None => Look::yes("the request was answered at once, and no cancel came"),
        // The next request shows that the program has read the answer.
        Some(cancel)
            if cancel > quick && (record.ordered || record.between(quick, cancel) > CLEARLY_LATER) =>
        {
            Look::no(format!(
                "a cancel came {} after the answer, when the next request had been made already",
                millis(record.between(answer, cancel))
            ))
        }
        Some(cancel) => Look::unsure(format!(
            "a cancel came {} after the answer, which the program may not have read",
            millis(record.between(answer, cancel))
        )),
    }
}

pub(super) fn other_calls_untouched(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    if let Err(look) = slow_of(record) {
        return look;
    }
    let slow: Vec<Asked<'_>> = record.slow().collect();
    let [one, other, ..] = slow.as_slice() else {
        return Look::not_asked("the program made one slow request, and the scenario `pair` has two");
    };
    let by_session = record.cancels().any(|(_, form)| matches!(form, CancelForm::OfSession(_)));
    if by_session && one.session == other.session {
        return Look::not_asked("both requests are of one session, and `session/cancel` means all of them");
    }
    match (record.cancels_of(*one).is_empty(), record.cancels_of(*other).is_empty()) {
        (true, true) => Look::not_asked("it sent no cancel for either request"),
        (false, false) => Look::no("it cancelled both requests"),
        _ if record.exited_well() => {
            Look::yes("of two open requests one was cancelled; the other was answered")
        }
        _ => Look::unsure(format!("one of two open requests was cancelled, but {}", record.ending())),
    }
}

pub(super) fn honours_cancels(server: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let slow = match slow_of(record) {
        Ok(slow) => slow,
        Err(look) => return look,
    };
    let Some(cancel) = record.position(|event| matches!(event, Event::AskedCancel(_))) else {
        let answer = record.position(|event| matches!(event, Event::Answer { .. }));
        let text = answer.and_then(|at| record.entries.get(at)).map(|entry| match &entry.event {
            Event::Answer { text, .. } => format!("it answered the request before its cancel: {text}"),
            _ => String::new(),
        });
        return Look::not_asked(text.unwrap_or_else(|| record.ending()));
    };
    let released = record.answered(slow.id).unwrap_or(usize::MAX);
    let answered =
        record.entries.iter().enumerate().skip(cancel).find_map(|(at, entry)| match &entry.event {
            Event::Answer { error, text } => Some((at, *error, text)),
            _ => None,
        });
    if let Some((at, error, text)) = answered.filter(|(at, ..)| *at < released) {
        let took = record.between(cancel, at);
        let how = match error {
            Some(-32800) => "as cancelled".to_owned(),
            _ => format!("with {text}"),
        };
        return Look::yes(format!("it answered {how}, {} after the cancel", millis(took))).timed(took);
    }
    if let Some(quick) = record.quick().filter(|quick| *quick > cancel && *quick < released) {
        let took = record.between(cancel, quick);
        return Look::yes(format!("its handler ended {} after the cancel", millis(took))).timed(took);
    }
    if server.owes_silence() {
        return Look::unsure(
            "nothing shows that its handler ended: make the quick request when the handler is cancelled",
        );
    }
    Look::no("the cancelled request of the server was not answered")
}

pub(super) fn timeout_sends_cancel(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let slow = match slow_of(record) {
        Ok(slow) => slow,
        Err(look) => return look,
    };
    if let Some(at) = record.cancels_of(slow).first() {
        return Look::yes(format!("{} after the request", millis(record.between(slow.index, *at))));
    }
    let released = record.answered(slow.id).unwrap_or(usize::MAX);
    if record.quick().is_some_and(|quick| quick < released) || record.exited_well() && released == usize::MAX
    {
        return Look::no("the program went on, and no cancel came");
    }
    Look::not_asked("the program waited for its answer and has no time limit")
}

pub(super) fn closes_cleanly(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let slow = match slow_of(record) {
        Ok(slow) => slow,
        Err(look) => return look,
    };
    if record.quick().is_some() || record.answered(slow.id).is_some() && record.cancels_of(slow).is_empty() {
        return Look::not_asked("the program went on and did not close in the middle of the request");
    }
    let cancel = if record.cancels_of(slow).is_empty() { "without a cancel" } else { "with a cancel" };
    match &record.ending {
        Ending::Exited(end) if end.code == Some(0) => {
            Look::yes(format!("it closed {cancel} and ended with 0"))
        }
        Ending::Exited(_) | Ending::Deadline(_) => {
            Look::no(format!("it closed {cancel}; {}", record.ending()))
        }
    }
}
