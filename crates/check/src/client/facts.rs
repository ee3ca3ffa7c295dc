//! The questions about a client. Their names do not change.

use super::looks::{self, Look};
use super::looks_ids;
use super::record::{Play, Record};
use super::server_dialect::ServerDialect;

/// One question.
pub(super) struct Question {
    pub(super) name: &'static str,
    pub(super) statement: &'static str,
    /// The runs that can show it.
    pub(super) plays: &'static [Play],
    /// The answer that one run gives. All first runs are there for comparison.
    pub(super) look: fn(ServerDialect, &Record, &[Record]) -> Look,
}

const CANCELS: &[Play] = &[Play::Cancelled, Play::LateResult, Play::LateError];
const ALL: &[Play] = &Play::ALL;

pub(super) const QUESTIONS: [Question; 17] = [
    Question {
        name: "sends_cancel",
        statement: "sends a cancel when its request is cancelled",
        plays: CANCELS,
        look: looks::sends_cancel,
    },
    Question {
        name: "spells_cancel",
        statement: "spells the cancel as the protocol does",
        plays: ALL,
        look: looks_ids::spells_cancel,
    },
    Question {
        name: "names_request",
        statement: "the cancel names the request that it means",
        plays: ALL,
        look: looks_ids::names_request,
    },
    Question {
        name: "keeps_id_type",
        statement: "the id in the cancel has the type that it has in the request",
        plays: ALL,
        look: looks_ids::keeps_id_type,
    },
    Question {
        name: "cancels_once",
        statement: "sends one cancel for one request",
        plays: ALL,
        look: looks_ids::cancels_once,
    },
    Question {
        name: "cancel_follows_request",
        statement: "sends no cancel before its request",
        plays: ALL,
        look: looks_ids::follows_request,
    },
    Question {
        name: "never_cancels_initialize",
        statement: "never cancels `initialize`",
        plays: ALL,
        look: looks_ids::never_cancels_initialize,
    },
    Question {
        name: "goes_on",
        statement: "goes on once the cancelled request has ended",
        plays: &[Play::Cancelled],
        look: looks::goes_on,
    },
    Question {
        name: "late_result_ignored",
        statement: "a normal answer that comes after the cancel does no harm",
        plays: &[Play::LateResult],
        look: looks::late_answer,
    },
    Question {
        name: "late_error_ignored",
        statement: "an error that comes long after the cancel does no harm",
        plays: &[Play::LateError],
        look: looks::late_answer,
    },
    Question {
        name: "no_cancel_when_answered",
        statement: "sends no cancel for a request that was answered",
        plays: &[Play::AnsweredFirst],
        look: looks::no_cancel_when_answered,
    },
    Question {
        name: "ids_not_reused",
        statement: "does not use the id of a request again",
        plays: ALL,
        look: looks_ids::ids_not_reused,
    },
    Question {
        name: "other_calls_untouched",
        statement: "cancels only the request that it was asked to cancel",
        plays: &[Play::Pair],
        look: looks::other_calls_untouched,
    },
    Question {
        name: "honours_cancels",
        statement: "stops its own work when the server cancels a request",
        plays: &[Play::Serve],
        look: looks::honours_cancels,
    },
    Question {
        name: "timeout_sends_cancel",
        statement: "sends a cancel when its time limit is over",
        plays: &[Play::Timeout],
        look: looks::timeout_sends_cancel,
    },
    Question {
        name: "closes_cleanly",
        statement: "closes in the middle of a request and ends",
        plays: &[Play::Close],
        look: looks::closes_cleanly,
    },
    Question {
        name: "message_form",
        statement: "sends messages in the form of the protocol, and nothing else",
        plays: ALL,
        look: looks_ids::message_form,
    },
];
