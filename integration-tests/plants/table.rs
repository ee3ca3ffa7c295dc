//! The tables: each way in which a foreign peer is wrong, with what tells it, and each way in which it is right and
//! awkward.

/// A wrong peer.
pub(crate) struct Row {
    /// The option of `foreign-peer`.
    pub(crate) plant: &'static str,
    /// What it does, for the page.
    pub(crate) does: &'static str,
    /// The dialects in which it can be wrong like that.
    pub(crate) dialects: &'static [&'static str],
    /// The question of the driver that it fails.
    pub(crate) question: &'static str,
}

const ALL: &[&str] = &["mcp", "lsp", "acp"];
const ANSWERING: &[&str] = &["lsp", "acp"];
const MCP: &[&str] = &["mcp"];

#[rustfmt::skip]
pub(crate) const WRONG: [Row; 21] = [
    Row { plant: "ignores-cancel", does: "a cancelled request runs to its normal end", dialects: ALL, question: "cancelled" },
    Row { plant: "answers-twice", does: "a request is answered twice", dialects: MCP, question: "normal" },
    Row { plant: "answers-twice", does: "a cancelled request is answered twice", dialects: ANSWERING, question: "cancelled" },
    Row { plant: "answers-twice-late", does: "the result follows the cancelled answer", dialects: ANSWERING, question: "cancelled" },
    Row { plant: "answers-after-silence", does: "a cancelled request is answered when its time is over", dialects: MCP, question: "cancelled" },
    Row { plant: "answers-cancelled", does: "a cancelled request is answered at once", dialects: MCP, question: "cancelled" },
    Row { plant: "wrong-cancelled-code", does: "a cancelled request fails with -32603", dialects: ANSWERING, question: "cancelled" },
    Row { plant: "crossing-ids", does: "after a cancel the answers of two requests are swapped", dialects: ALL, question: "siblings" },
    Row { plant: "dead-after-cancel", does: "nothing is answered after a cancel", dialects: ALL, question: "survival" },
    Row { plant: "slot-not-freed", does: "a cancelled request keeps one of eight slots", dialects: ALL, question: "slots" },
    Row { plant: "progress-after-answer", does: "a progress notification follows the answer", dialects: ALL, question: "progress" },
    Row { plant: "late-cancel-kills-next", does: "a cancel for an answered request cancels the next one", dialects: ALL, question: "late cancel" },
    Row { plant: "unknown-cancel-kills", does: "a cancel for an unknown id ends the program", dialects: ALL, question: "unknown cancel" },
    Row { plant: "never-answers-cancelled", does: "a cancelled request is never answered", dialects: ANSWERING, question: "cancelled" },
    Row { plant: "cancels-sibling", does: "of two requests the wrong one is cancelled", dialects: ALL, question: "siblings" },
    Row { plant: "work-goes-on", does: "a cancelled request works to its end unseen", dialects: ALL, question: "cancelled" },
    Row { plant: "exits-after-cancel", does: "the program exits after a cancel", dialects: ALL, question: "survival" },
    Row { plant: "malformed-cancel-kills", does: "a cancel without an id ends the program", dialects: ALL, question: "malformed cancel" },
    Row { plant: "stdout-noise", does: "stdout has text beside messages", dialects: ALL, question: "output" },
    Row { plant: "wrong-unknown-method", does: "an unknown method gets a result", dialects: ALL, question: "unknown method" },
    Row { plant: "answers-notification", does: "an unknown notification is answered", dialects: ALL, question: "unknown notification" },
];

/// A right peer: its options, and the questions of the driver that it may answer otherwise.
pub(crate) struct RightRow {
    pub(crate) flags: &'static [&'static str],
    pub(crate) dialects: &'static [&'static str],
    pub(crate) but: &'static [&'static str],
}

const NOTHING: &[&str] = &[];

#[rustfmt::skip]
pub(crate) const RIGHT: [RightRow; 24] = [
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
    RightRow { flags: &["--one-at-a-time"], dialects: ALL, but: &["siblings", "slots", "cancelled", "survival"] },
    RightRow { flags: &["--other-framing", "--pieces"], dialects: ALL, but: NOTHING },
    RightRow { flags: &["--lingers"], dialects: ALL, but: NOTHING },
    // No document demands that a cancel is honoured.
    RightRow { flags: &["--ignores-cancel"], dialects: &["lsp"], but: &["cancelled", "siblings", "survival"] },
    RightRow { flags: &["--ignores-cancel", "--serial"], dialects: &["lsp"], but: &["cancelled", "siblings", "survival"] },
];
