//! The measured operations and libraries. Nothing here is an API.
//!
//! A [`subject`] is one connection of one library: of this one, of another one ([`peers`]), or of the floor, which
//! writes and reads the same frames on the same transport without a library. [`driven`] runs the same work on this
//! library and the others, and the [`harness`] gives them turns. Figures of two runs cannot be compared; their ratios
//! can.

#[cfg(feature = "count")]
pub mod counts;
pub mod cross_process;
pub mod generic_driver;
pub mod harness;
pub mod limits;
pub mod load_test;
pub mod lsp_client;
#[cfg(feature = "peers")]
pub mod peers;
pub mod raw;
pub mod report;
pub mod resources;
pub mod steps;
pub mod subject;
pub mod subjects;
#[cfg(feature = "count")]
pub mod transport_echo;
pub mod wire_subjects;

/// A text of this many bytes, as params.
#[must_use]
pub fn params(bytes: usize) -> Box<serde_json::value::RawValue> {
    text_between(r#"[""#, bytes, r#""]"#)
}

/// JSON with a text of this many bytes. It is made in one allocation, so that what is measured after it finds no memory that was used
/// before.
pub(crate) fn text_between(begin: &str, bytes: usize, end: &str) -> Box<serde_json::value::RawValue> {
    let mut json = String::with_capacity(begin.len() + bytes + end.len());
    json.push_str(begin);
    json.extend(std::iter::repeat_n('x', bytes));
    json.push_str(end);
    serde_json::value::RawValue::from_string(json).expect("a text is JSON")
}

/// Nanoseconds on a clock that all processes of this machine share.
#[must_use]
pub fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
