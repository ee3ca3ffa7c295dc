//! The facts that one run shows: whether a cancel is sent, what it names, and how the program continues after it.

use std::time::Duration;

use rescind_testkit::Answer;
use serde_json::Value;

use super::record::{Asked, Ending, Event, Play, Record};
use super::server_dialect::{CancelForm, Role, ServerDialect, looks_like};

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

const NO_CANCEL: &str = "it sent no cancel that names a request";

/// The ids that the cancels of a run name, and their places.
fn named(record: &Record) -> impl Iterator<Item = (usize, &Value)> {
    record.cancels().filter_map(|(at, form)| match form {
        CancelForm::OfRequest { id, .. } => (!id.is_null()).then_some((at, id)),
        CancelForm::OfSession(_) => None,
    })
}

/// The requests of a run: place, id, role.
fn requests(record: &Record) -> impl Iterator<Item = (usize, &Value, Role)> {
    record.entries.iter().enumerate().filter_map(|(at, entry)| match &entry.event {
        Event::Request { id, role, .. } => Some((at, id, *role)),
        _ => None,
    })
}

pub(super) fn spells_cancel(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let mut forms = record.cancels().map(|(_, form)| form).peekable();
    if forms.peek().is_none() {
        return Look::not_asked("it sent no cancel");
    }
    let wrong = forms.find_map(|form| match form {
        CancelForm::OfRequest { misspelled, .. } => misspelled.as_ref(),
        CancelForm::OfSession(_) => None,
    });
    wrong.map_or_else(|| Look::yes("method and params are those of the protocol"), Look::no)
}

/// All messages of a run together.
pub(super) fn message_form(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let wrong = record.entries.iter().find_map(|entry| match &entry.event {
        Event::Noise(what) => Some(format!("it sent this, which is not a message: {what}")),
        Event::Deviation(seen) => Some(format!("{}: {}", seen.deviation, seen.sent)),
        _ => None,
    });
    match wrong {
        Some(wrong) => Look::no(wrong),
        None if record.is_connected() => Look::yes(""),
        None => Look::not_asked("it did not connect"),
    }
}

pub(super) fn names_request(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let mut any = false;
    for (_, id) in named(record) {
        any = true;
        let meant = requests(record).find(|(_, asked, _)| *asked == id || looks_like(asked, id));
        match meant {
            None => return Look::no(format!("its cancel names the id {id}, and no request has it")),
            Some((_, _, Role::Slow | Role::Initialize)) => {}
            Some((_, _, Role::Quick | Role::Other)) => {
                return Look::no(format!("its cancel names the id {id}, which another request has"));
            }
        }
    }
    if any { Look::yes("each cancel names the id of its request") } else { Look::not_asked(NO_CANCEL) }
}

pub(super) fn keeps_id_type(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let mut any = false;
    for (_, id) in named(record) {
        if requests(record).any(|(_, asked, _)| asked == id) {
            any = true;
        } else if let Some((_, asked, _)) = requests(record).find(|(_, asked, _)| looks_like(asked, id)) {
            return Look::no(format!("the request has the id {asked}, its cancel names {id}"));
        }
    }
    if any { Look::yes("the same type and value") } else { Look::not_asked(NO_CANCEL) }
}

pub(super) fn cancels_once(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let counts: Vec<usize> = record.slow().map(|slow| record.cancels_of(slow).len()).collect();
    match counts.iter().max() {
        None | Some(0) => Look::not_asked("it sent no cancel for a slow request"),
        Some(1) => Look::yes("one cancel for each cancelled request"),
        Some(more) => Look::no(format!("{more} cancels came for one request")),
    }
}

pub(super) fn follows_request(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    let mut any = false;
    for (cancel, id) in named(record) {
        let Some((request, _, _)) = requests(record).find(|(_, asked, _)| *asked == id) else { continue };
        any = true;
        if cancel < request && record.ordered {
            return Look::no(format!("the cancel of the request {id} came before the request"));
        }
        if cancel < request {
            return Look::unsure(
                "a cancel came before its request, on a transport that does not keep the order",
            );
        }
    }
    if any { Look::yes("each cancel came after its request") } else { Look::not_asked(NO_CANCEL) }
}

pub(super) fn never_cancels_initialize(_: ServerDialect, record: &Record, _: &[Record]) -> Look {
    for (_, id) in named(record) {
        let is_it = |(_, asked, role): (usize, &Value, Role)| {
            role == Role::Initialize && (asked == id || looks_like(asked, id))
        };
        if requests(record).any(is_it) {
            return Look::no(format!("it cancelled `initialize`, whose id is {id}"));
        }
    }
    if record.play != Play::Initialize {
        return Look::not_asked("only the scenario `initialize` shows it");
    }
    if record.is_skipped() {
        return Look::not_asked("the program skips the scenario `initialize`");
    }
    if !record.ordered {
        return Look::not_asked(
            "over HTTP a cancel that comes before the session is refused, and is not seen",
        );
    }
    if requests(record).any(|(_, _, role)| role == Role::Initialize) && record.exited_well() {
        return Look::yes("its handshake was not answered; it ended without a cancel");
    }
    Look::not_asked(format!("the program did not stop its handshake; {}", record.ending()))
}

pub(super) fn ids_not_reused(server: ServerDialect, record: &Record, _: &[Record]) -> Look {
    if record.exchange_scoped {
        return Look::not_asked("on this transport ids belong to one exchange");
    }
    let always = server.never_reuses_ids();
    let mut seen: Vec<(usize, &Value)> = Vec::new();
    for (at, entry) in record.entries.iter().enumerate() {
        match &entry.event {
            // A new connection is a new session.
            Event::Connected => seen.clear(),
            Event::Request { id, .. } => {
                let earlier = seen.iter().find(|(_, used)| *used == id);
                let open = earlier.is_some_and(|_| record.answered(id).is_none_or(|answer| answer > at));
                if earlier.is_some() && (always || open) {
                    let when = if open { "while the first request with it was open" } else { "again" };
                    return Look::no(format!("the id {id} was used {when}"));
                }
                seen.push((at, id));
            }
            _ => {}
        }
    }
    if seen.len() < 2 {
        return Look::not_asked("the program made no two requests");
    }
    Look::yes(format!("{} requests, each with an id of its own", seen.len()))
}
