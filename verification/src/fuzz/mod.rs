//! What the fuzz targets assert, as plain functions: the fuzzer calls them with bytes of its own making, and a test of the
//! workspace with every file of the corpus.
//!
//! A target panics where something does not hold. Each looks at its input in several ways that must agree: cut differently,
//! read by a naive reference, written and read again.

mod envelope;
mod events;
mod framing;
mod headers;
mod id;
mod meaning;
mod naive;
mod pieces;
mod reference;
mod round_trip;
mod stream;

use rescind_core::dialect;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    check: fn(&[u8]),
}

/// Every target.
pub const TARGETS: [Target; 13] = [
    Target { name: "id", check: id::check },
    Target { name: "newline", check: framing::newline },
    Target { name: "content_length", check: framing::content_length },
    Target { name: "envelope_acp", check: |data| envelope::check(&dialect::ACP, data) },
    Target { name: "envelope_acp_v2", check: |data| envelope::check(&dialect::ACP_V2, data) },
    Target { name: "envelope_acp_draft", check: |data| envelope::check(&dialect::ACP_DRAFT, data) },
    Target { name: "envelope_lsp", check: |data| envelope::check(&dialect::LSP, data) },
    Target { name: "envelope_mcp", check: |data| envelope::check(&dialect::MCP, data) },
    Target { name: "envelope_mcp_2026", check: |data| envelope::check(&dialect::MCP_2026, data) },
    Target { name: "envelope_abp", check: |data| envelope::check(&dialect::ABP, data) },
    Target { name: "http_headers", check: headers::check },
    Target { name: "event_stream", check: stream::check },
    Target { name: "events", check: events::check },
];

impl Target {
    /// Holds the input against all that this target asserts.
    ///
    /// # Panics
    /// Something does not hold: the message says what.
    pub fn check(&self, data: &[u8]) {
        (self.check)(data);
    }
}

/// Holds the input against all that the target of this name asserts.
///
/// # Panics
/// Something does not hold, or there is no such target.
pub fn check(target: &str, data: &[u8]) {
    let Some(target) = TARGETS.iter().find(|known| known.name == target) else {
        panic!("there is no target {target}")
    };
    target.check(data);
}
