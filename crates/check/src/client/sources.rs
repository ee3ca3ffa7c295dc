//! What the documents demand of a client, in our words.

use rescind_testkit::Demand;

use super::server_dialect::{Family, ServerDialect};

/// How much the documents demand of the fact with this name, and where they say so.
pub(super) fn source(name: &str, server: ServerDialect) -> (Demand, String) {
    let (demand, text) = match server.family {
        Family::Mcp | Family::Mcp2026 => mcp(name),
        Family::Lsp => lsp(name),
        // Only the draft forbids it.
        Family::Acp if name == "never_cancels_initialize" && server.name != "acp-draft" => {
            (Demand::Open, "a cancel of `initialize` is not mentioned.")
        }
        Family::Acp => acp(name),
    };
    let origin = match server.name {
        "lsp" => "LSP 3.18",
        "mcp" => "MCP 2025-11-25",
        "mcp-2026" => "MCP 2026-07-28",
        "acp-v2" => "ACP v2",
        "acp-draft" => "ACP draft",
        _ => "ACP",
    };
    (demand, format!("{origin}: {text}"))
}

const FORM: &str = "its messages are those of JSON-RPC 2.0: each names the version, and an answer repeats the id as it was sent.";

fn mcp(name: &str) -> (Demand, &'static str) {
    use Demand::{Must, Open, Should};
    match name {
        "message_form" => (Must, FORM),
        "sends_cancel" => (Should, "a party that wants to cancel a request sends `notifications/cancelled`."),
        "spells_cancel" => {
            (Must, "a cancel is the notification `notifications/cancelled` with the `requestId`.")
        }
        "names_request" | "cancel_follows_request" => {
            (Must, "a cancel must name only a request that was sent before, in the same direction.")
        }
        "keeps_id_type" => {
            (Must, "`requestId` is the id of the request: a text or a number, as it was sent.")
        }
        "cancels_once" => (Open, "nothing is said about a second cancel of one request."),
        "never_cancels_initialize" => (Must, "clients must not cancel `initialize`."),
        "goes_on" => {
            (Should, "the receiver of a cancel should not answer, so the sender has nothing to wait for.")
        }
        "late_result_ignored" | "late_error_ignored" => {
            (Should, "the sender of a cancel should ignore an answer that comes after it.")
        }
        "no_cancel_when_answered" => {
            (Must, "a cancel must name only a request that is believed to be in progress.")
        }
        "ids_not_reused" => {
            (Must, "an id must not have been used before by the same side in the same session.")
        }
        "other_calls_untouched" => (Must, "a cancel ends the request that it names, and no other."),
        "honours_cancels" => (Should, "the receiver of a cancel should stop the work of the request."),
        "timeout_sends_cancel" => (
            Should,
            "when the time limit of a request is over, the sender should cancel it and stop waiting.",
        ),
        _ => (Open, "how a client closes while a request is open is left to it."),
    }
}

fn lsp(name: &str) -> (Demand, &'static str) {
    use Demand::{Must, Open, Should};
    match name {
        "message_form" => (Must, FORM),
        "spells_cancel" => {
            (Must, "a cancel is the notification `$/cancelRequest` with the `id` of the request.")
        }
        "names_request" | "cancel_follows_request" => {
            (Must, "`id` in a cancel is the id of the request to cancel.")
        }
        "keeps_id_type" => (Must, "an id is a number or a text, and an answer or a cancel repeats it."),
        "never_cancels_initialize" => {
            (Must, "until `initialize` is answered the client must not send other requests or notifications.")
        }
        "goes_on" => (Should, "a cancelled request is answered, and the answer ends it."),
        "late_result_ignored" | "late_error_ignored" => {
            (Should, "a cancelled request is still answered: with an error or with a partial result.")
        }
        "ids_not_reused" => (Should, "JSON-RPC matches an answer with its request by the id alone."),
        "other_calls_untouched" => (Must, "a cancel ends the request that it names, and no other."),
        "honours_cancels" => (Should, "a cancelled request must still be answered; both sides may cancel."),
        "sends_cancel" => (Open, "a request may be cancelled by `$/cancelRequest`; nobody must."),
        "timeout_sends_cancel" => (Open, "the protocol has no time limits."),
        "no_cancel_when_answered" => (Open, "a cancel for a request that has ended is not forbidden."),
        "cancels_once" => (Open, "nothing is said about a second cancel of one request."),
        _ => (Open, "how a client closes while a request is open is left to it."),
    }
}

fn acp(name: &str) -> (Demand, &'static str) {
    use Demand::{Must, Open, Should};
    match name {
        "message_form" => (Must, FORM),
        "spells_cancel" => (Must, "a cancel is the notification of the protocol with the id of the request."),
        "names_request" | "cancel_follows_request" => {
            (Must, "a cancel carries the id of the request to cancel.")
        }
        "keeps_id_type" => (Must, "the id in a cancel is that of the request: a text or a number."),
        "never_cancels_initialize" => (Must, "`initialize` cannot be cancelled."),
        "goes_on" => (Should, "a cancelled request is answered, and the answer ends it."),
        "late_result_ignored" | "late_error_ignored" => {
            (Should, "a cancelled request is answered with -32800 or a valid response, partial or whole.")
        }
        "ids_not_reused" => (Should, "JSON-RPC matches an answer with its request by the id alone."),
        "other_calls_untouched" => (Must, "other requests that run at the same time are not affected."),
        "honours_cancels" => (Should, "the receiver of a cancel stops the work and answers the request."),
        "sends_cancel" => (Open, "a request may be cancelled; nobody must."),
        "timeout_sends_cancel" => (Open, "the protocol has no time limits."),
        "no_cancel_when_answered" => {
            (Open, "a cancel for a request that has ended is ignored by its receiver.")
        }
        "cancels_once" => (Open, "nothing is said about a second cancel of one request."),
        _ => (Open, "how a client closes while a request is open is left to it."),
    }
}
