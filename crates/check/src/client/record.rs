//! What happened in one run.

use std::time::Duration;

use rescind_testkit::runner::{DeviationSeen, Direction, TraceLine};
use serde_json::Value;

use super::server_dialect::{CancelForm, Role};
use super::{ClientEnd, SKIPPED};

/// The behaviour of the server in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Play {
    /// It ends the request as the dialect demands, at once.
    Cancelled,
    /// It answers with a normal result, some time after the cancel.
    LateResult,
    /// It answers with an error, while the next request is open if there is one.
    LateError,
    /// It has answered before the program cancels.
    AnsweredFirst,
    /// It has two slow requests, of which one is cancelled.
    Pair,
    /// It makes a request, and cancels it.
    Serve,
    /// It never answers.
    Timeout,
    /// It never answers, and the program closes the connection.
    Close,
    /// It does not answer the handshake.
    Initialize,
}

impl Play {
    pub(super) const ALL: [Self; 9] = [
        Self::Cancelled,
        Self::LateResult,
        Self::LateError,
        Self::AnsweredFirst,
        Self::Pair,
        Self::Serve,
        Self::Timeout,
        Self::Close,
        Self::Initialize,
    ];

    /// The name that the program is given.
    pub(super) const fn scenario(self) -> &'static str {
        match self {
            Self::Cancelled | Self::LateResult | Self::LateError | Self::AnsweredFirst => "cancel",
            Self::Pair => "pair",
            Self::Serve => "serve",
            Self::Timeout => "timeout",
            Self::Close => "close",
            Self::Initialize => "initialize",
        }
    }

    /// The name in reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancel",
            Self::LateResult => "cancel, answered late with a result",
            Self::LateError => "cancel, answered late with an error",
            Self::AnsweredFirst => "cancel, answered before it",
            Self::Pair => "pair",
            Self::Serve => "serve",
            Self::Timeout => "timeout",
            Self::Close => "close",
            Self::Initialize => "initialize",
        }
    }
}

/// One run.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) play: Play,
    pub(super) entries: Vec<Entry>,
    /// Whether frames arrive in the order in which they were sent.
    pub(super) ordered: bool,
    /// Whether closing the stream of a request is its cancel.
    pub(super) exchange_scoped: bool,
    pub(super) ending: Ending,
}

/// How the run ended.
#[derive(Debug)]
pub(super) enum Ending {
    Exited(ClientEnd),
    /// The program was ended by this side.
    Deadline(Duration),
}

#[derive(Debug)]
pub(super) struct Entry {
    /// Since the program was started.
    pub(super) at: Duration,
    pub(super) event: Event,
}

/// What happened, seen from this side.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Connected,
    /// A request of the program.
    Request {
        id: Value,
        method: String,
        role: Role,
        session: Value,
        text: String,
    },
    /// A cancel by the program.
    Cancel(CancelForm, String),
    /// The program closed the stream of this request.
    StreamClosed(Value),
    /// An answer of the program to the server's request.
    Answer {
        error: Option<i64>,
        text: String,
    },
    Notification(String),
    /// Something that is not a message.
    Noise(String),
    /// A deviation in a message whose meaning is certain.
    Deviation(DeviationSeen),
    /// The server answered this request of the program.
    Answered {
        id: Value,
        as_cancelled: bool,
        text: String,
    },
    /// The server made its request.
    Asked(String),
    /// The server cancelled its request.
    AskedCancel(String),
    /// Another frame of the server.
    Said(String),
    Closed,
}

/// A slow request and its place in the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) index: usize,
    pub(super) id: &'a Value,
    pub(super) session: &'a Value,
}

impl Record {
    pub(super) fn new(play: Play) -> Self {
        let ending = Ending::Deadline(Duration::ZERO);
        Self { play, entries: Vec::new(), ordered: true, exchange_scoped: false, ending }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.entries.iter().any(|entry| entry.event == Event::Connected)
    }

    pub(super) fn is_skipped(&self) -> bool {
        matches!(&self.ending, Ending::Exited(end) if end.code == Some(SKIPPED))
    }

    pub(super) fn exited_well(&self) -> bool {
        matches!(&self.ending, Ending::Exited(end) if end.code == Some(0))
    }

    /// How the program ended, for people.
    pub(super) fn ending(&self) -> String {
        match &self.ending {
            Ending::Exited(end) => format!("the program ended with {}", end.text),
            Ending::Deadline(after) => format!("the program was still running after {after:?} and was ended"),
        }
    }

    /// The methods of the program's requests.
    pub(super) fn methods(&self) -> Vec<String> {
        let requests = self.entries.iter().filter_map(|entry| match &entry.event {
            Event::Request { method, .. } => Some(method.clone()),
            _ => None,
        });
        requests.collect()
    }

    pub(super) fn requests(&self, wanted: Role) -> impl Iterator<Item = Asked<'_>> {
        self.entries.iter().enumerate().filter_map(move |(index, entry)| match &entry.event {
            Event::Request { id, role, session, .. } if *role == wanted => Some(Asked { index, id, session }),
            _ => None,
        })
    }

    pub(super) fn slow(&self) -> impl Iterator<Item = Asked<'_>> {
        self.requests(Role::Slow)
    }

    /// The place of the quick request.
    pub(super) fn quick(&self) -> Option<usize> {
        self.requests(Role::Quick).next().map(|asked| asked.index)
    }

    /// The place of the first request after this place.
    pub(super) fn request_after(&self, place: usize) -> Option<usize> {
        let mut later = self.entries.iter().enumerate().skip(place + 1);
        later.find(|(_, entry)| matches!(entry.event, Event::Request { .. })).map(|(index, _)| index)
    }

    pub(super) fn cancels(&self) -> impl Iterator<Item = (usize, &CancelForm)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| match &entry.event {
            Event::Cancel(form, _) => Some((index, form)),
            _ => None,
        })
    }

    /// The places of the cancels of this request, by whatever spelling.
    pub(super) fn cancels_of(&self, asked: Asked<'_>) -> Vec<usize> {
        let events = self.entries.iter().enumerate().filter(|(_, entry)| match &entry.event {
            Event::Cancel(form, _) => form.means(asked.id, asked.session),
            Event::StreamClosed(id) => self.exchange_scoped && id == asked.id,
            _ => false,
        });
        events.map(|(index, _)| index).collect()
    }

    /// The place of the server's answer to this request.
    pub(super) fn answered(&self, wanted: &Value) -> Option<usize> {
        let is_it = |entry: &Entry| matches!(&entry.event, Event::Answered { id, .. } if id == wanted);
        self.entries.iter().position(is_it)
    }

    pub(super) fn position(&self, is_it: impl Fn(&Event) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| is_it(&entry.event))
    }

    pub(super) fn at(&self, index: usize) -> Duration {
        self.entries.get(index).map_or(Duration::ZERO, |entry| entry.at)
    }

    /// From one place to the other.
    pub(super) fn between(&self, from: usize, to: usize) -> Duration {
        self.at(to).saturating_sub(self.at(from))
    }

    pub(super) fn trace(&self) -> Vec<TraceLine> {
        let lines = self.entries.iter().filter_map(|entry| {
            let (direction, text) = match &entry.event {
                Event::Request { text, .. }
                | Event::Cancel(_, text)
                | Event::Answer { text, .. }
                | Event::Notification(text)
                | Event::Noise(text) => (Direction::Received, text),
                Event::Answered { text, .. }
                | Event::Asked(text)
                | Event::AskedCancel(text)
                | Event::Said(text) => (Direction::Sent, text),
                Event::StreamClosed(_) | Event::Deviation(_) | Event::Connected | Event::Closed => {
                    return None;
                }
            };
            Some(TraceLine::new(direction, text.as_str()))
        });
        lines.collect()
    }
}
