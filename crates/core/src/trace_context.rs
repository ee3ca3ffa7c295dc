//! The trace of a request, in the format of the W3C recommendation "Trace Context".

use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::members::{self, PickedMembers};

/// The longest `tracestate` that is read, in bytes. A longer one is left out.
///
/// Trace Context, 3.3.1.5: vendors should propagate at least 512 characters.
const MAX_STATE_BYTES: usize = 512;
/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// Where a request belongs in a trace: the trace, and the span that caused the request. It is read from the HTTP headers
/// `traceparent` and `tracestate`, or from the members of `params._meta` with these names (MCP, ACP). A value that does
/// not have the format is ignored.
///
/// ```
/// use rescind_core::TraceContext;
///
/// let caused = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = TraceContext::parse(caused, Some("vendor=1")).unwrap();
/// assert_eq!(context.trace_id()[..2], [0x4b, 0xf9]);
/// assert!(context.is_sampled());
/// assert_eq!(context.traceparent(), caused);
/// assert!(TraceContext::parse("00-0-0-01", None).is_none());
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// The context of a span. `None` if an id is all zeros, which is not valid.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Option<Self> {
        let is_valid = trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, flags, state: None })
    }

    /// Reads a `traceparent` and the `tracestate` beside it. `None` if the `traceparent` does not have the format. A
    /// `tracestate` with other characters than printable ASCII, or of more than 512 bytes, is left out.
    ///
    /// Trace Context, 3.2.2 and 4.3: of a later version than 00 the members of version 00 are read.
    #[must_use]
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let text = traceparent.as_bytes();
        let fits = match text.get(..3)? {
            b"00-" => text.len() == LENGTH,
            _ => text.len() == LENGTH || text.get(LENGTH) == Some(&b'-'),
        };
        let [version] = hex(text.get(..2)?)?;
        let dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
        if !fits || !dashes || version == 0xff {
            return None;
        }
        let [flags] = hex(text.get(53..LENGTH)?)?;
        let parsed = Self::new(hex(text.get(3..35)?)?, hex(text.get(36..52)?)?, flags)?;
        Some(parsed.with_state(tracestate))
    }

    /// The context with this `tracestate`.
    #[must_use]
    pub fn with_state(mut self, tracestate: Option<&str>) -> Self {
        let printable = |state: &&str| state.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
        self.state = tracestate
            .map(str::trim)
            .filter(|state| !state.is_empty() && state.len() <= MAX_STATE_BYTES)
            .filter(printable)
            .map(Into::into);
        self
    }

    /// Reads the members `traceparent` and `tracestate` of `_meta` in a request's params (MCP, SEP-414; ACP,
    /// "Extensibility").
    #[must_use]
    pub fn of_params(params: &RawValue) -> Option<Self> {
        // Most params do not contain the name, and are not read.
        if !params.get().contains("\"traceparent\"") {
            return None;
        }
        let meta = members::member(Some(params), "_meta");
        let PickedMembers { values: [parent, state], .. } =
            PickedMembers::of(meta, ["traceparent", "tracestate"]);
        Self::parse(&members::string(parent?)?, state.and_then(members::string).as_deref())
    }

    /// The id of the trace.
    #[must_use]
    pub const fn trace_id(&self) -> &[u8; 16] {
        &self.trace_id
    }

    /// The id of the span that caused the request.
    #[must_use]
    pub const fn span_id(&self) -> &[u8; 8] {
        &self.span_id
    }

    /// The flags. The lowest bit says that the trace is sampled.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether the caller may have recorded the trace.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// The text of the `tracestate`.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The text of the `traceparent`, in version 00.
    #[must_use]
    pub fn traceparent(&self) -> String {
        self.to_string()
    }

    /// The context of a request that came with one in a header of its own and with one in `_meta`.
    ///
    /// Of one trace, the header is nearer to this side: each hop may write it, and `_meta` is the first caller's. Of two
    /// traces, `_meta` is the one that the caller of the request meant.
    #[cfg(feature = "tokio")]
    pub(crate) fn nearer(header: Option<Arc<Self>>, meta: Option<Self>) -> Option<Arc<Self>> {
        match (header, meta) {
            (Some(header), Some(meta)) if header.trace_id == meta.trace_id => Some(header),
            (_, Some(meta)) => Some(Arc::new(meta)),
            (header, None) => header,
        }
    }
}

/// The headers of a request over HTTP.
#[cfg(feature = "http")]
mod headers {
    use http::header::{HeaderMap, HeaderName, HeaderValue};

    use super::TraceContext;

    const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
    const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

    impl TraceContext {
        /// Reads the headers `traceparent` and `tracestate`. Several headers `tracestate` are one list (Trace Context, 3.3.1.4).
        #[must_use]
        pub fn of_headers(headers: &HeaderMap) -> Option<Self> {
            let mut parents = headers.get_all(TRACEPARENT).into_iter();
            // Two of them are not one caller.
            let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
            let mut states =
                headers.get_all(TRACESTATE).into_iter().map(|state| state.to_str().unwrap_or_default());
            let state =
                states.next().map(|first| states.fold(first.to_owned(), |list, state| list + "," + state));
            Self::parse(parent.to_str().ok()?.trim(), state.as_deref())
        }

        /// Sets the headers `traceparent` and `tracestate`.
        pub fn set_headers(&self, headers: &mut HeaderMap) {
            if let Ok(parent) = HeaderValue::try_from(self.traceparent()) {
                headers.insert(TRACEPARENT, parent);
                headers.remove(TRACESTATE);
                if let Some(state) = self.tracestate().and_then(|state| HeaderValue::from_str(state).ok()) {
                    headers.insert(TRACESTATE, state);
                }
            }
        }
    }
}

/// As `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", self.flags)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id: _, span_id: _, flags: _, state } = self;
        write!(f, "TraceContext({self}, {state:?})")
    }
}

/// Reads lower-case hexadecimal digits, two for each byte.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let &[high, low] = pair else { return None };
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn params(json: &str) -> Option<TraceContext> {
        TraceContext::of_params(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_traceparent_is_written_as_it_was_read() {
        let context = TraceContext::parse(PARENT, None).unwrap();
        assert_eq!(context.traceparent(), PARENT);
        assert_eq!(context.span_id(), &[0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert_eq!((context.flags(), context.tracestate()), (1, None));
    }

    #[test]
    fn a_malformed_traceparent_is_ignored() {
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-011",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473\u{e9}-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(wrong, None), None, "{wrong}");
        }
    }

    #[test]
    fn of_a_later_version_the_known_members_are_read() {
        let later = format!("cc{}-what the future has", &PARENT[2..]);
        assert_eq!(TraceContext::parse(&later, None).unwrap().traceparent(), PARENT);
    }

    #[test]
    fn a_tracestate_that_is_too_long_or_not_printable_is_left_out() {
        let state = |state: &str| {
            TraceContext::parse(PARENT, Some(state)).unwrap().tracestate().map(ToOwned::to_owned)
        };
        assert_eq!(state(" a=1,b=2 ").as_deref(), Some("a=1,b=2"));
        for wrong in ["", " ", "a=\r\nx: y", "a=\u{e9}", &"a".repeat(513)] {
            assert_eq!(state(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_context_of_a_request_is_in_its_meta() {
        let found = params(&format!(r#"{{"a":[],"_meta":{{"tracestate":"v=1","traceparent":"{PARENT}"}}}}"#));
        assert_eq!(found, TraceContext::parse(PARENT, Some("v=1")));
        for other in [
            format!(r#"{{"traceparent":"{PARENT}"}}"#),
            format!(r#"{{"_meta":["traceparent","{PARENT}"]}}"#),
            format!(r#"{{"arguments":{{"_meta":{{"traceparent":"{PARENT}"}}}}}}"#),
            format!(r#"["traceparent","{PARENT}"]"#),
            r#"{"_meta":{"traceparent":7}}"#.to_owned(),
            r#"{"_meta":{"traceparent":"00-"}}"#.to_owned(),
        ] {
            assert_eq!(params(&other), None, "{other}");
        }
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn of_one_trace_the_header_is_nearer_and_of_two_the_meta_counts() {
        let of = |trace: u8, span: u8| TraceContext::new([trace; 16], [span; 8], 1).unwrap();
        let nearer = |header: Option<TraceContext>, meta| {
            TraceContext::nearer(header.map(Arc::new), meta).map(|context| (*context).clone())
        };
        assert_eq!(nearer(Some(of(1, 1)), Some(of(1, 2))), Some(of(1, 1)));
        assert_eq!(nearer(Some(of(1, 1)), Some(of(2, 2))), Some(of(2, 2)));
        assert_eq!(nearer(Some(of(1, 1)), None), Some(of(1, 1)));
        assert_eq!(nearer(None, Some(of(2, 2))), Some(of(2, 2)));
        assert_eq!(nearer(None, None), None);
    }
}
