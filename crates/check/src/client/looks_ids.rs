//! The facts that the cancels and ids of one run show.

use serde_json::Value;

use super::looks::Look;
use super::record::{Event, Play, Record};
use super::server_dialect::{CancelForm, Role, ServerDialect, looks_like};

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
