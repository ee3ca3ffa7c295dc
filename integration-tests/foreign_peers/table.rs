//! The tables: each way in which a foreign peer is wrong, with what tells it, and each way in which it is right and
//! awkward.

/// A wrong peer.
pub(crate) struct Row {
    /// The option of `foreign-peer`.
    pub(crate) fault: &'static str,
    /// More options. The profile then names no request with progress, which would tell it sooner.
    pub(crate) with: &'static [&'static str],
    /// What it does, for the page.
    pub(crate) does: &'static str,
    /// The dialects in which it can be wrong like that.
    pub(crate) dialects: &'static [&'static str],
    /// The question of the driver that it fails.
    pub(crate) question: &'static str,
    /// The facts that must be `no`, each with an evidence.
    pub(crate) told: &'static [(&'static str, &'static str)],
    /// The facts that may be `no` as well, because they follow from it.
    pub(crate) also: &'static [&'static str],
    /// The exit code of `rescind check`. 2: it cannot be checked at all.
    pub(crate) exit: i32,
}

const ALL: &[&str] = &["mcp", "lsp", "acp"];
const ANSWERING: &[&str] = &["lsp", "acp"];
const MCP: &[&str] = &["mcp"];
const LSP: &[&str] = &["lsp"];
const ACP: &[&str] = &["acp"];

#[rustfmt::skip]
pub(crate) const WRONG: [Row; 50] = [
    Row { fault: "ignores-cancel", with: &[], does: "a cancelled request runs to its normal end", dialects: MCP, question: "cancelled", told: &[("cancels_running", "wire"), ("stays_silent", "wire"), ("stops_work", "progress")], also: &[], exit: 0 },
    Row { fault: "ignores-cancel", with: &[], does: "a cancelled request runs to its normal end", dialects: LSP, question: "cancelled", told: &[("cancels_running", "wire"), ("stops_work", "progress")], also: &[], exit: 0 },
    Row { fault: "ignores-cancel", with: &[], does: "a cancelled request and a cancelled turn run to their normal end", dialects: ACP, question: "cancelled", told: &[("cancels_running", "wire"), ("stops_work", "progress"), ("turn_cancelled", "wire"), ("turn_ends_soon", "wire")], also: &[], exit: 1 },
    Row { fault: "ignores-cancel", with: &["--slows-down"], does: "a cancelled request runs to its normal end, three times as long as the baseline", dialects: MCP, question: "cancelled", told: &[("cancels_running", "wire"), ("stays_silent", "wire")], also: &[], exit: 0 },
    Row { fault: "answers-twice", with: &[], does: "a request is answered twice", dialects: MCP, question: "normal", told: &[("answers_once", "wire")], also: &[], exit: 1 },
    Row { fault: "answers-twice", with: &[], does: "a cancelled request is answered twice", dialects: ANSWERING, question: "cancelled", told: &[("answers_once", "wire")], also: &[], exit: 1 },
    Row { fault: "answers-twice-late", with: &[], does: "the result follows the cancelled answer", dialects: ANSWERING, question: "cancelled", told: &[("answers_once", "wire"), ("stops_work", "progress")], also: &[], exit: 1 },
    Row { fault: "answers-after-silence", with: &[], does: "a cancelled request is answered when its time is over", dialects: MCP, question: "cancelled", told: &[("stays_silent", "wire")], also: &[], exit: 0 },
    Row { fault: "answers-cancelled", with: &[], does: "a cancelled request is answered at once", dialects: MCP, question: "cancelled", told: &[("stays_silent", "wire")], also: &[], exit: 0 },
    Row { fault: "wrong-cancelled-code", with: &[], does: "a cancelled request fails with -32603", dialects: LSP, question: "cancelled", told: &[("cancelled_code", "wire")], also: &[], exit: 0 },
    Row { fault: "wrong-cancelled-code", with: &[], does: "a cancelled request and a cancelled turn fail with -32603", dialects: ACP, question: "cancelled", told: &[("cancelled_code", "wire"), ("turn_cancelled", "wire")], also: &[], exit: 1 },
    Row { fault: "crossing-ids", with: &[], does: "after a cancel the answers of two requests are swapped", dialects: ALL, question: "siblings", told: &[("siblings_untouched", "wire")], also: &[], exit: 1 },
    Row { fault: "dead-after-cancel", with: &[], does: "nothing is answered after a cancel", dialects: ALL, question: "survival", told: &[("session_survives", "wire")], also: &["siblings_untouched", "frees_slot", "turn_cancelled", "turn_ends_soon", "next_turn_served"], exit: 1 },
    Row { fault: "slot-not-freed", with: &[], does: "a cancelled request keeps one of eight slots", dialects: ALL, question: "slots", told: &[("frees_slot", "wire")], also: &[], exit: 1 },
    Row { fault: "progress-after-answer", with: &[], does: "a progress notification follows the answer", dialects: MCP, question: "progress", told: &[("progress_ends_with_answer", "wire")], also: &[], exit: 1 },
    Row { fault: "progress-after-answer", with: &[], does: "a progress notification follows the answer", dialects: ANSWERING, question: "progress", told: &[("progress_ends_with_answer", "wire")], also: &["stops_work"], exit: 0 },
    Row { fault: "late-cancel-kills-next", with: &[], does: "a cancel for an answered request cancels the next one", dialects: ALL, question: "late cancel", told: &[("late_cancel_ignored", "wire")], also: &["session_survives"], exit: 1 },
    Row { fault: "unknown-cancel-kills", with: &[], does: "a cancel for an unknown id ends the program", dialects: ALL, question: "unknown cancel", told: &[("unknown_cancel_ignored", "wire")], also: &["session_survives", "tells_ids_apart"], exit: 1 },
    Row { fault: "never-answers-cancelled", with: &[], does: "a cancelled request is never answered", dialects: LSP, question: "cancelled", told: &[("answers_cancelled", "wire")], also: &[], exit: 1 },
    Row { fault: "never-answers-cancelled", with: &[], does: "a cancelled request and a cancelled turn are never answered", dialects: ACP, question: "cancelled", told: &[("answers_cancelled", "wire"), ("turn_cancelled", "wire"), ("turn_ends_soon", "wire")], also: &[], exit: 1 },
    Row { fault: "cancels-sibling", with: &[], does: "of two requests the wrong one is cancelled", dialects: ALL, question: "siblings", told: &[("siblings_untouched", "wire")], also: &[], exit: 1 },
    Row { fault: "work-goes-on", with: &[], does: "a cancelled request works to its end, and reports it", dialects: ALL, question: "cancelled", told: &[("stops_work", "progress")], also: &[], exit: 0 },
    Row { fault: "work-goes-on", with: &["--busy"], does: "a cancelled request works to its end, with the processor", dialects: ALL, question: "cancelled", told: &[("stops_work", "processor")], also: &[], exit: 0 },
    Row { fault: "work-goes-on", with: &["--serial"], does: "a cancelled request works to its end, and the next one waits", dialects: ALL, question: "cancelled", told: &[("stops_work", "serial")], also: &["serves_concurrently"], exit: 0 },
    Row { fault: "exits-after-cancel", with: &[], does: "the program exits after a cancel", dialects: ALL, question: "survival", told: &[("session_survives", "wire")], also: &["next_turn_served"], exit: 1 },
    Row { fault: "malformed-cancel-kills", with: &[], does: "a cancel without an id ends the program", dialects: ALL, question: "malformed cancel", told: &[("malformed_cancel_ignored", "wire")], also: &["session_survives"], exit: 0 },
    Row { fault: "stdout-noise", with: &[], does: "stdout has text beside messages", dialects: ALL, question: "output", told: &[("clean_output", "wire")], also: &[], exit: 1 },
    Row { fault: "wrong-unknown-method", with: &[], does: "an unknown method gets a result", dialects: ALL, question: "unknown method", told: &[("unknown_method_refused", "wire")], also: &["reserved_method_refused"], exit: 1 },
    Row { fault: "reserved-not-answered", with: &[], does: "an unknown request in `$/` is not answered", dialects: LSP, question: "unknown method", told: &[("reserved_method_refused", "wire")], also: &[], exit: 1 },
    Row { fault: "reserved-code", with: &[], does: "an unknown request in `$/` is refused with -32600", dialects: LSP, question: "unknown method", told: &[("reserved_method_refused", "wire")], also: &[], exit: 1 },
    Row { fault: "answers-notification", with: &[], does: "an unknown notification is answered", dialects: ALL, question: "unknown notification", told: &[("unknown_notification_ignored", "wire")], also: &[], exit: 1 },
    Row { fault: "text-id-cancels-number", with: &[], does: "a cancel for \"1\" cancels the request 1", dialects: ALL, question: "ids", told: &[("tells_ids_apart", "wire")], also: &[], exit: 0 },
    Row { fault: "zero-id-not-cancelled", with: &[], does: "a cancel for the id 0 is ignored", dialects: ALL, question: "id zero", told: &[("cancels_id_zero", "wire")], also: &[], exit: 0 },
    Row { fault: "zero-id-not-served", with: &[], does: "a request with the id 0 is taken for a notification", dialects: ALL, question: "id zero served", told: &[("cancels_id_zero", "wire")], also: &[], exit: 0 },
    Row { fault: "text-ids", with: &[], does: "the ids of answers are texts", dialects: ALL, question: "form", told: &[("repeats_ids", "wire")], also: &[], exit: 1 },
    Row { fault: "fraction-ids", with: &[], does: "the ids of answers are numbers as 1.0", dialects: ALL, question: "form", told: &[("repeats_ids", "wire")], also: &[], exit: 1 },
    Row { fault: "no-version", with: &[], does: "answers have no `jsonrpc`", dialects: ALL, question: "form", told: &[("names_version", "wire")], also: &[], exit: 1 },
    Row { fault: "answers-in-array", with: &[], does: "each answer comes in an array", dialects: ALL, question: "form", told: &[("answer_form", "wire")], also: &[], exit: 1 },
    Row { fault: "error-is-text", with: &[], does: "an error is a text", dialects: MCP, question: "form", told: &[("answer_form", "wire")], also: &[], exit: 1 },
    Row { fault: "error-is-text", with: &[], does: "an error is a text, and has no code", dialects: LSP, question: "form", told: &[("answer_form", "wire"), ("cancelled_code", "wire"), ("reserved_method_refused", "wire")], also: &[], exit: 1 },
    Row { fault: "error-is-text", with: &[], does: "an error is a text, and has no code", dialects: ACP, question: "form", told: &[("answer_form", "wire"), ("cancelled_code", "wire")], also: &[], exit: 1 },
    Row { fault: "byte-order-mark", with: &[], does: "a byte order mark is before each message", dialects: ALL, question: "form", told: &[("clean_output", "wire")], also: &[], exit: 1 },
    Row { fault: "lone-surrogate", with: &[], does: "a text has half of a surrogate pair", dialects: ALL, question: "form", told: &[("whole_characters", "wire")], also: &[], exit: 0 },
    Row { fault: "cancels-oldest", with: &[], does: "whichever request is named, the oldest one is cancelled", dialects: ALL, question: "newest", told: &[("siblings_untouched", "wire")], also: &[], exit: 1 },
    Row { fault: "turn-ends-normally", with: &[], does: "`session/cancel` ends a turn with `end_turn`", dialects: ACP, question: "turn", told: &[("turn_cancelled", "wire")], also: &[], exit: 1 },
    Row { fault: "turn-fails", with: &[], does: "`session/cancel` ends a turn with an error", dialects: ACP, question: "turn", told: &[("turn_cancelled", "wire")], also: &[], exit: 1 },
    Row { fault: "turn-ignores-cancel", with: &[], does: "`session/cancel` is ignored", dialects: ACP, question: "turn", told: &[("turn_cancelled", "wire"), ("turn_ends_soon", "wire")], also: &[], exit: 1 },
    Row { fault: "turn-ends-late", with: &[], does: "`session/cancel` shows only at the normal end of the turn", dialects: ACP, question: "turn is soon over", told: &[("turn_ends_soon", "wire")], also: &[], exit: 0 },
    Row { fault: "turns-of-all-sessions", with: &[], does: "`session/cancel` ends the turns of all sessions", dialects: ACP, question: "other turns", told: &[("other_turns_untouched", "wire")], also: &[], exit: 1 },
    Row { fault: "session-dead-after-turn", with: &[], does: "a session takes no prompt after `session/cancel`", dialects: ACP, question: "next turn", told: &[("next_turn_served", "wire")], also: &[], exit: 1 },
];

/// A right peer: its options, and the questions of the driver that it may answer otherwise.
pub(crate) struct RightRow {
    pub(crate) flags: &'static [&'static str],
    pub(crate) dialects: &'static [&'static str],
    pub(crate) but: &'static [&'static str],
}

const NOTHING: &[&str] = &[];

#[rustfmt::skip]
pub(crate) const RIGHT: [RightRow; 28] = [
    RightRow { flags: &[], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--serial"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--busy"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--busy", "--serial"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--busy", "--forks"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--slices"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--slices", "--serial"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--slow-start"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--lazy"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--partial-results"], dialects: ANSWERING, but: NOTHING },
    RightRow { flags: &["--chatty"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--asks"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--chatty", "--asks", "--serial"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--quick-fails"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--needs-setup"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--stderr-noise"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--forks"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--error-null"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--answers-bad-json"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--one-at-a-time"], dialects: ALL, but: &["siblings", "newest", "other turns", "slots", "cancelled", "id zero", "survival"] },
    RightRow { flags: &["--other-framing", "--pieces"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--lingers"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--slows-down"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--second-is-quick"], dialects: ALL, but: &["newest"] },
    RightRow { flags: &["--rate-limited"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--supersedes"], dialects: ALL, but: &["siblings", "newest", "other turns", "late cancel"] },
    // No document demands that a cancel is honoured.
    RightRow { flags: &["--ignores-cancel"], dialects: LSP, but: &["cancelled", "siblings", "newest", "id zero", "survival"] },
    RightRow { flags: &["--ignores-cancel", "--serial"], dialects: LSP, but: &["cancelled", "siblings", "newest", "id zero", "survival"] },
];
